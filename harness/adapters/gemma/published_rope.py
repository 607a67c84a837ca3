"""Rotary parameters in the published forms: per kind of layer, or as older files have them.

Imports no torch.
"""

from collections.abc import Mapping
from typing import Any

from harness.adapters.common.fields import Fields
from harness.adapters.gemma.published_names import FULL_ATTENTION, SLIDING_ATTENTION

_TYPES = (FULL_ATTENTION, SLIDING_ATTENTION)


def rope_of_gemma3(fields: Fields) -> dict[str, Fields]:
    """Rotary parameters of each published kind of layer, each with its ``rope_theta``."""
    thetas = {
        FULL_ATTENTION: fields.number("rope_theta", default=1e6),
        SLIDING_ATTENTION: fields.number("rope_local_base_freq", default=1e4),
    }
    scaling, given = fields.take("rope_scaling", None), fields.take("rope_parameters", None)
    if scaling is not None and given is not None:
        fields.refuse("rope_scaling", "given together with rope_parameters")
    documents: dict[str, Any] = {FULL_ATTENTION: scaling}
    outer = fields
    if given is not None:
        outer = fields.child("rope_parameters", given)
        documents = {name: outer.take(name, None) for name in _TYPES}
        outer.refuse_rest()
    rope = {}
    for name, theta in thetas.items():
        inner = documents.get(name)
        path = name if given is not None else "rope_scaling"
        if inner is None or isinstance(inner, Mapping):
            inner = {"rope_theta": theta, **(inner or {})}
        rope[name] = outer.child(path, inner)
    return rope


def rope_of_gemma4(fields: Fields) -> dict[str, Fields]:
    """The same for the later generation, which knows one form only."""
    given = fields.take("rope_parameters", None)
    if given is None:
        full = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
        given = {FULL_ATTENTION: full, SLIDING_ATTENTION: {"rope_theta": 1e4}}
    outer = fields.child("rope_parameters", given)
    rope = {name: outer.child(name, outer.take(name, {})) for name in _TYPES}
    outer.refuse_rest()
    return rope


def frequencies(fields: Fields, head_dim: int) -> tuple[float, float, int]:
    """Base, divisor and number of rotating pairs."""
    kind = fields.text("rope_type", default="default")
    theta, factor, pairs = fields.number("rope_theta"), 1.0, max(1, head_dim // 2)
    older = fields.take("type", None)
    if older is not None and older != kind:
        # Implementations disagree on which of the two names wins, and on what it means alone.
        fields.refuse("type", f"{older!r} is not supported, only rope_type's {kind!r}")
        return theta, factor, pairs
    partial = fields.number("partial_rotary_factor", default=1.0)
    match kind:
        case "default":
            pass
        case "linear":
            factor = fields.number("factor")
        case "proportional":
            factor = fields.number("factor", default=1.0)
            rotating = int(min(partial, 1.0) * head_dim // 2)
            if partial > 1 or not rotating:
                message = f"{partial!r} of head_dim {head_dim} is not one pair or more, up to all"
                fields.refuse("partial_rotary_factor", message)
            pairs = max(1, rotating)
        case _:
            message = f"{kind!r} is not supported, only default, linear, proportional"
            fields.refuse("rope_type", message)
            return theta, factor, pairs
    if kind != "proportional" and partial != 1:
        fields.refuse("partial_rotary_factor", f"{partial!r} is not supported with {kind}")
    fields.refuse_rest()
    return theta, factor, pairs
