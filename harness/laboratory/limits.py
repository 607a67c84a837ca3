"""Declared limits of a comparison: which numbers are acceptance-bearing, and which are reported.

Read from a file that is hashed into the study, so that a limit cannot follow what was found.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.canonical import canonical_bytes, read_json, sha256_digest
from harness.errors import InvalidInputError
from harness.laboratory.metrics import METRICS

MAX_LIMITS_BYTES = 64 * 1024
SCHEMA = "harness.limits/1"
KINDS = ("acceptance", "telemetry")
LEAST = frozenset({"top_k_overlap"})
"""Metrics whose limit is the least allowed value."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit of one metric, over all compared tensors whose names match."""

    kind: str
    """``acceptance`` or ``telemetry``."""
    metric: str
    tensors: str
    """Pattern of boundary names, such as ``logits``."""
    limit: float

    def holds(self, value: float) -> bool:
        """Whether a value keeps to the limit."""
        return value >= self.limit if self.metric in LEAST else value <= self.limit


def read_limits(path: Path) -> tuple[Limit, ...]:
    """Read a limits file: ``{schema, limits: [{kind, metric, tensors, limit}]}``."""
    return parse_limits(read_json(path, max_bytes=MAX_LIMITS_BYTES), where=str(path))


def parse_limits(document: Any, *, where: str) -> tuple[Limit, ...]:
    """Read a limits document.

    Raises:
        InvalidInputError: Listing every fault.
    """
    if not isinstance(document, Mapping) or document.keys() != {"schema", "limits"}:
        raise InvalidInputError("not limits", expected="{schema, limits}", where=where)
    listed = document["limits"]
    if document["schema"] != SCHEMA or not isinstance(listed, list) or not listed:
        raise InvalidInputError(
            "not limits", expected=f"schema {SCHEMA} and a list of limits", where=where
        )
    faults = sorted(fault for n, each in enumerate(listed) for fault in _faults(n, each))
    if faults:
        raise InvalidInputError("limits are not valid", got="; ".join(faults), where=where)
    return tuple(Limit(**each | {"limit": float(each["limit"])}) for each in listed)


def limits_document(limits: tuple[Limit, ...]) -> dict[str, Any]:
    """Limits as JSON values."""
    return {"schema": SCHEMA, "limits": [dict(vars(limit)) for limit in limits]}


def limits_digest(limits: tuple[Limit, ...]) -> str:
    """Digest of the limits, whatever the file looked like."""
    return sha256_digest(canonical_bytes(limits_document(limits)))


def _faults(number: int, value: Any) -> list[str]:
    place = f"$.limits[{number}]"
    if not isinstance(value, Mapping) or value.keys() != {"kind", "metric", "tensors", "limit"}:
        return [f"{place}: not {{kind, metric, tensors, limit}}"]
    faults = []
    if value["kind"] not in KINDS:
        faults.append(f"{place}.kind: not {' or '.join(KINDS)}")
    if value["metric"] not in METRICS:
        faults.append(f"{place}.metric: not one of {', '.join(METRICS)}")
    if type(value["tensors"]) is not str or not value["tensors"]:
        faults.append(f"{place}.tensors: no pattern")
    number_of = value["limit"]
    if type(number_of) not in (int, float) or not math.isfinite(number_of) or number_of < 0:
        faults.append(f"{place}.limit: no finite number of 0 or more")
    return faults
