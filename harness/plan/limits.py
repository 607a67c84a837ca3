"""Declared limits of comparisons: what each number may be, and what a limit decides.

They lie in a plan, so that a limit cannot follow what was found. The audit of a record reads none
of them: a comparison of two trials does.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.canonical import canonical_bytes, sha256_digest
from harness.errors import InvalidInputError
from harness.plan.records import ComparisonLimit, Plan

KINDS = ("acceptance", "telemetry")
METRICS = ("max_abs", "rms", "p99_abs", "max_ulp", "top_k_max_abs", "top_k_overlap")
"""Names of the numbers that are compared."""
LEAST = frozenset({"top_k_overlap"})
"""Metrics whose limit is the least allowed value; of the others it is the largest."""
_FIELDS = frozenset({"kind", "metric", "tensors", "limit"})


def holds(limit: ComparisonLimit, value: float) -> bool:
    """Whether a value keeps to a limit."""
    return value >= limit.limit if limit.metric in LEAST else value <= limit.limit


def limits_of(plans: Iterable[Plan]) -> tuple[ComparisonLimit, ...]:
    """The limits of all plans, each once: what is compared must keep to every one of them."""
    listed = (plan.checks.comparison or () for plan in plans if plan.checks is not None)
    return tuple(dict.fromkeys(limit for limits in listed for limit in limits))


def parse_limits(values: Any, *, where: str) -> tuple[ComparisonLimit, ...]:
    """Read limits from JSON values, in the form that a plan has them.

    Raises:
        InvalidInputError: Listing every fault.
    """
    if not isinstance(values, list) or not values:
        raise InvalidInputError("not limits", expected="a list of limits", where=where)
    faults = [f"[{number}]{fault}" for number, fault in limit_faults(values)]
    if faults:
        raise InvalidInputError("limits are not valid", got="; ".join(faults), where=where)
    return tuple(ComparisonLimit(**each | {"limit": float(each["limit"])}) for each in values)


def limits_document(limits: Iterable[ComparisonLimit]) -> list[dict[str, Any]]:
    """Limits as JSON values."""
    return [dict(vars(limit)) for limit in limits]


def limits_digest(limits: Iterable[ComparisonLimit]) -> str:
    """Digest of limits, whatever the file that they came from looked like."""
    return sha256_digest(canonical_bytes(limits_document(limits)))


def limit_faults(values: Sequence[Any]) -> list[tuple[int, str]]:
    """What is wrong with limits, by place: ``.field: text``, in order."""
    faults: list[tuple[int, str]] = []
    seen: set[tuple[Any, ...]] = set()
    for number, value in enumerate(values):
        found = sorted(_faults(value))
        if not found:
            place = (value["kind"], value["metric"], value["tensors"])
            if place in seen:
                found.append(f".metric: duplicate {value['metric']!r} of {value['tensors']!r}")
            seen.add(place)
        faults += [(number, fault) for fault in found]
    return faults


def _faults(value: Any) -> Iterable[str]:
    if not isinstance(value, Mapping) or value.keys() != _FIELDS:
        yield f": not {{{', '.join(sorted(_FIELDS))}}}"
        return
    if value["kind"] not in KINDS:
        yield f".kind: not {' or '.join(KINDS)}"
    if value["metric"] not in METRICS:
        yield f".metric: not one of {', '.join(METRICS)}"
    if type(value["tensors"]) is not str or not value["tensors"]:
        yield ".tensors: no pattern"
    limit = value["limit"]
    if type(limit) not in (int, float) or not math.isfinite(limit) or limit < 0:
        yield ".limit: no finite number of 0 or more"
    elif value["metric"] in LEAST and limit > 1:
        yield ".limit: an overlap is at most 1"
