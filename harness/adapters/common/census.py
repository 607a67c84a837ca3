"""What a whole checkpoint holds beside what a range needs: counted, or refused by name.

Looks at keys and sizes; knows no family.
"""

from collections.abc import Collection, Mapping, Sequence

from harness.errors import PlanError
from harness.plan.layout import CensusEntry, LeftOut
from harness.plan.records import Finding, ModelRange

RULE = "checkpoint-tensors"
_NOT_NEEDED = "not needed"
_UNKNOWN = "is no tensor of this model; it may change the model"
_RECOMPUTED = (".rotary_emb.inv_freq",)
"""Ends of keys of buffers that older files carry, and that every loader computes anew."""


def left_out(
    census: Sequence[CensusEntry],
    *,
    prefix: str,
    known: Collection[str],
    spec: ModelRange,
    num_layers: int,
    forbidden: Mapping[str, str],
) -> Mapping[str, str]:
    """Key -> rule, for every tensor of a checkpoint that nothing speaks against leaving out.

    What the range would have to read, were it this model's, is refused: a bias beside a projection,
    a head beside the shared table, a layer too many. The model that has them is another one.
    Tensors of the model's other layers, and of other models, are left out.

    Args:
        census: The whole checkpoint.
        prefix: Under which the model's own tensors lie; its layers under ``<prefix>layers.N.``.
        known: Keys that the model has.
        spec: The range.
        num_layers: Layers of the whole model.
        forbidden: Keys that contradict the configuration, each with the reason.

    Raises:
        PlanError: Naming every tensor that is of no such model.
    """
    ours = range(spec.start_layer, spec.end_layer)
    others = {str(layer) for layer in range(num_layers) if layer not in ours}

    def is_meant(key: str) -> bool:
        if key == "lm_head.weight" or key.endswith(".lm_head.weight"):
            return spec.owns_final_norm_head
        if not key.startswith(prefix) or key.endswith(_RECOMPUTED):
            return False
        rest = key.removeprefix(f"{prefix}layers.")
        return rest == key or rest.partition(".")[0] not in others

    keys = {entry.key for entry in census}
    reasons = {key: _UNKNOWN for key in keys if key not in known and is_meant(key)}
    refuse("the checkpoint contradicts its configuration", {**reasons, **forbidden})
    return dict.fromkeys(keys, _NOT_NEEDED)


def refuse(problem: str, reasons: Mapping[str, str]) -> None:
    """Refuse a checkpoint for the tensors named, if there are any.

    Raises:
        PlanError: With every key and its reason, sorted.
    """
    if reasons:
        listed = sorted(reasons.items())
        raise PlanError(
            problem, [Finding(path=key, rule=RULE, message=reason) for key, reason in listed]
        )


def count_left_out(
    census: Sequence[CensusEntry], needed: Collection[str], rules: Mapping[str, str]
) -> tuple[LeftOut, ...]:
    """Tensors and bytes that each rule leaves out, sorted by rule.

    Raises:
        PlanError: Naming every tensor that is neither needed nor left out.
    """
    others = [entry for entry in census if entry.key not in needed]
    unknown = [entry.key for entry in others if entry.key not in rules]
    message = "is no tensor of this model, and no rule leaves it out"
    refuse("the checkpoint holds what is not known", dict.fromkeys(unknown, message))
    sizes: dict[str, list[int]] = {}
    for entry in others:
        sizes.setdefault(rules[entry.key], []).append(entry.source_bytes)
    return tuple(
        LeftOut(rule=rule, num_tensors=len(own), source_bytes=sum(own))
        for rule, own in sorted(sizes.items())
    )
