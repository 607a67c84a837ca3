"""What a checkpoint of the family may hold beside what a range needs, and what it must not.

Every tensor is needed, left out by one of the rules here, or refused by name. Looks at names and
shapes only; imports no torch.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from harness.adapters.common.census import RULE
from harness.adapters.qwen3_5_moe.config import QwenConfig
from harness.errors import PlanError
from harness.plan.layout import CensusEntry
from harness.plan.records import Finding, ModelRange

VISION = "vision tower"
FURTHER_TOKENS = "head for further tokens"
INPUT_SCALES = "input scales, which no op reads"
OTHER_LAYERS = "layers outside the range"
OTHER_ENDS = "ends that the range does not own"

_DIVISORS = (".weight_packed", ".weight_global_scale", ".input_global_scale")
_MAX_NAMED = 8
_MAX_DIGITS = 9


def left_out_by(
    config: QwenConfig,
    spec: ModelRange,
    census: Sequence[CensusEntry],
    all_keys: Collection[str],
) -> Mapping[str, str]:
    """Key -> rule, for every tensor that a rule leaves out.

    Args:
        config: The model.
        spec: The range.
        census: The whole checkpoint.
        all_keys: Keys of the whole model in its own forms, as far as layers go.

    Raises:
        PlanError: For another layout of the scales or the experts, or another number of experts.
    """
    findings = [*_foreign(census), *_expert_counts(config, census)]
    if findings:
        raise PlanError("the checkpoint is not laid out as this model", sorted(findings))
    rules: dict[str, str] = {}
    known = frozenset(all_keys)
    for entry in census:
        rule = _rule(config, spec, entry.key, known)
        if rule is not None:
            rules[entry.key] = rule
    return rules


def _rule(config: QwenConfig, spec: ModelRange, key: str, known: frozenset[str]) -> str | None:
    if key.startswith(("model.visual.", "visual.")):
        return VISION
    if key.startswith(("mtp.", "model.mtp.")):
        return FURTHER_TOKENS
    weight = key.removesuffix(".input_scale") + ".weight"
    is_input_scale = key.endswith(".input_scale") and weight in known
    if not is_input_scale and key not in known:
        return None
    layer = _layer_of(config, key)
    if layer is None:
        return INPUT_SCALES if is_input_scale else OTHER_ENDS
    if not spec.start_layer <= layer < spec.end_layer:
        return OTHER_LAYERS
    return INPUT_SCALES if is_input_scale else None


def _layer_of(config: QwenConfig, key: str) -> int | None:
    beginning = f"{config.key_prefix}layers."
    if not key.startswith(beginning):
        return None
    number = key[len(beginning) :].partition(".")[0]
    return int(number) if number.isdecimal() and len(number) <= _MAX_DIGITS else None


def _foreign(census: Sequence[CensusEntry]) -> Iterator[Finding]:
    """Layouts whose tensors mean something else."""
    divisors = [entry.key for entry in census if entry.key.endswith(_DIVISORS)]
    if divisors:
        message = (
            f"{_named(divisors)}: packed with global scales that divide (compressed-tensors); "
            "only those that multiply (modelopt) are supported"
        )
        yield Finding(path=divisors[0], rule=RULE, message=message)
    fused = [
        e.key for e in census if e.key.endswith((".experts.gate_up_proj", ".experts.down_proj"))
    ]
    if fused:
        message = f"{_named(fused)}: experts in one tensor; one tensor per expert is supported"
        yield Finding(path=fused[0], rule=RULE, message=message)


def _expert_counts(config: QwenConfig, census: Sequence[CensusEntry]) -> Iterator[Finding]:
    """Experts of each layer that has any, and whether they are those that were configured."""
    pattern = re.compile(
        re.escape(config.key_prefix) + r"layers\.(\d{1,9})\.mlp\.experts\.(\d{1,9})\."
    )
    found: dict[int, set[int]] = {}
    for entry in census:
        match = pattern.match(entry.key)
        if match:
            found.setdefault(int(match[1]), set()).add(int(match[2]))
    for layer, experts in sorted(found.items()):
        if experts != set(range(config.num_experts)):
            missing = sorted(set(range(config.num_experts)) - experts)
            extra = sorted(experts - set(range(config.num_experts)))
            parts = [f"{len(experts)} experts, configured are {config.num_experts}"]
            parts += [f"missing: {_named(map(str, missing))}"] if missing else []
            parts += [f"beyond them: {_named(map(str, extra))}"] if extra else []
            path = f"{config.key_prefix}layers.{layer}.mlp.experts"
            yield Finding(path=path, rule=RULE, message="; ".join(parts))


def _named(names: Collection[str] | Iterator[str]) -> str:
    listed = list(names)
    more = len(listed) - _MAX_NAMED
    return ", ".join(listed[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
