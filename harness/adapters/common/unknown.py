"""Checkpoint tensors that would change a model if they were its own. Knows keys, no family."""

from collections.abc import Collection, Iterable

from harness.plan.records import ModelRange

_RECOMPUTED = (".rotary_emb.inv_freq",)
"""Ends of keys of buffers that older files carry, and that every loader computes anew."""


def unknown_keys(
    keys: Iterable[str],
    *,
    prefix: str,
    known: Collection[str],
    spec: ModelRange,
    num_layers: int,
) -> tuple[str, ...]:
    """Those of ``keys`` that the range would have to read, were they this model's; sorted.

    A bias beside a projection, a head beside the shared table, a layer too many: the model that has
    them is another one. Tensors of the model's other layers, and of other models, are not meant.

    Args:
        keys: Keys of a whole checkpoint.
        prefix: Under which the model's own tensors lie; its layers under ``<prefix>layers.N.``.
        known: Keys that the model has, and that a rule of their own speaks of.
        spec: The range.
        num_layers: Layers of the whole model.
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

    return tuple(sorted(key for key in keys if key not in known and is_meant(key)))
