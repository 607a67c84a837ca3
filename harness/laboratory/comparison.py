"""What a comparison of two armed trials finds: exact integrity, then numbers, then decisions.

Pure functions over rows and kept tensors; whoever verifies a study calls them again. Digests are
compared under equal applicability keys only. A step counts while both sides were fed the same
tokens: behind the first token that differs, other numbers are no error.
"""

import hashlib
import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from harness.laboratory.decisions import (
    AMBIGUOUS,
    IDENTICAL,
    NOT_EVALUATED,
    WRONG,
    decide,
)
from harness.laboratory.kept import KeptTensor
from harness.laboratory.matrix import PHASE_ORDER
from harness.laboratory.metrics import metrics
from harness.plan.limits import LEAST, METRICS, holds
from harness.plan.records import ComparisonLimit

Row = Mapping[str, Any]
Place = tuple[str, int]
PASSED, FAILED = "passed", "failed"
EQUAL, DIFFERENT, INAPPLICABLE = "equal", "different", "inapplicable"
LOGITS = "logits"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One armed trial, as a comparison looks at it."""

    conditions: Mapping[str, Any]
    """The record's applicability key and the kind of boundary digests, by field."""
    prompt: tuple[int, ...]
    feeds_own_tokens: bool
    """Whether a decode step is fed the token that was chosen before it."""
    boundaries: Sequence[Row]
    steps: Sequence[Row]
    kept: Mapping[tuple[str, int, str], KeptTensor]
    """By phase, step and boundary name."""

    def digests(self) -> dict[tuple[int, int, int], Row]:
        """Rows by place in execution order."""
        found = {
            (PHASE_ORDER[row["phase"]], row["step"], row["boundary"]): row
            for row in self.boundaries
        }
        return dict(sorted(found.items()))

    def tokens(self) -> dict[Place, int | None]:
        """Token chosen after each step, in execution order."""
        rows = sorted(self.steps, key=lambda row: (PHASE_ORDER[row["phase"]], row["step"]))
        return {(row["phase"], row["step"]): row["token"] for row in rows}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows of a comparison's tables, and its findings."""

    differing: list[dict[str, Any]]
    metrics: list[dict[str, Any]]
    decisions: list[dict[str, Any]]
    findings: dict[str, Any]


def compare_sides(left: Side, right: Side, limits: Sequence[ComparisonLimit]) -> Comparison:
    """Compare two trials; ``left`` is the reference."""
    same = _same_inputs(left, right)
    exact, differing = _exact(left, right)
    numbers = _metric_rows(left, right, same)
    decisions = _decision_rows(left, right, same, _logit_limit(limits))
    judged = [_judge(limit, numbers) for limit in limits]
    integrity = _integrity([left, right])
    counts = Counter(row["outcome"] for row in decisions)
    findings = {
        "exact": exact,
        "kept_integrity": integrity,
        "numbers": _worst(numbers),
        "decisions": {name: counts[name] for name in (IDENTICAL, AMBIGUOUS, WRONG, NOT_EVALUATED)},
        "limits": judged,
    }
    findings["status"] = _status(findings, has_limits=any(x.kind == "acceptance" for x in limits))
    return Comparison(differing=differing, metrics=numbers, decisions=decisions, findings=findings)


def _status(findings: Mapping[str, Any], *, has_limits: bool) -> str:
    """Integrity, the finite gate and wrong tokens decide first; then limits, or exactness."""
    if (
        findings["kept_integrity"] == FAILED
        or findings["numbers"]["num_not_finite"]
        or findings["decisions"][WRONG]
    ):
        return FAILED
    if has_limits:
        states = {each["status"] for each in findings["limits"] if each["kind"] == "acceptance"}
        for state in (FAILED, NOT_EVALUATED):
            if state in states:
                return state
        return PASSED
    return {EQUAL: PASSED, DIFFERENT: FAILED}.get(findings["exact"]["state"], NOT_EVALUATED)


def _exact(left: Side, right: Side) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    fields = sorted({*left.conditions, *right.conditions})
    other = [f for f in fields if left.conditions.get(f) != right.conditions.get(f)]
    one, two = left.digests(), right.digests()
    shared = [place for place in one if place in two]
    differing = [] if other else [p for p in shared if _value(one[p]) != _value(two[p])]
    rows = [
        {
            **{name: one[place][name] for name in ("phase", "step", "boundary", "name")},
            "left_digest": one[place]["digest"],
            "right_digest": two[place]["digest"],
        }
        for place in differing
    ]
    unmatched = len(one.keys() ^ two.keys())
    state = DIFFERENT if differing or unmatched else EQUAL
    if other or not shared:
        state = INAPPLICABLE
    first = (
        {name: rows[0][name] for name in ("phase", "step", "boundary", "name")} if rows else None
    )
    return {
        "state": state,
        "inapplicable_fields": other,
        "num_compared": 0 if other else len(shared),
        "num_different": len(rows),
        "num_unmatched": unmatched,
        "first_different": first,
    }, rows


def _value(row: Row) -> tuple[Any, ...]:
    return row["name"], row["digest"], row["dtype"], tuple(row["shape"])


def _same_inputs(left: Side, right: Side) -> dict[Place, bool]:
    """Whether both sides were fed the same tokens up to and in each common step."""
    one, two = left.tokens(), right.tokens()
    same = left.prompt == right.prompt
    follows = left.feeds_own_tokens or right.feeds_own_tokens
    found = {}
    for place in [each for each in one if each in two]:
        found[place] = same
        if follows and one[place] != two[place]:
            same = False
    return found


def _metric_rows(left: Side, right: Side, same: Mapping[Place, bool]) -> list[dict[str, Any]]:
    rows = []
    for phase, step, name in sorted(
        left.kept.keys() & right.kept.keys(), key=lambda p: (PHASE_ORDER[p[0]], p[1], p[2])
    ):
        one, two = left.kept[phase, step, name], right.kept[phase, step, name]
        if (one.dtype, one.shape) == (two.dtype, two.shape):
            rows.append(
                {
                    "phase": phase,
                    "step": step,
                    "name": name,
                    "dtype": one.dtype,
                    "has_same_inputs": same.get((phase, step), False),
                    **metrics(one, two),
                }
            )
    return rows


def _decision_rows(
    left: Side, right: Side, same: Mapping[Place, bool], limit: float | None
) -> list[dict[str, Any]]:
    one, two = left.tokens(), right.tokens()
    rows = []
    for (phase, step), is_same in same.items():
        tokens = one[phase, step], two[phase, step]
        if tokens[0] is None or tokens[1] is None:
            continue
        found: dict[str, Any] = {"outcome": NOT_EVALUATED, "margin": None, "error": None}
        if is_same:
            found = decide(
                tokens[0],
                tokens[1],
                left_logits=_logits(left, phase, step),
                right_logits=_logits(right, phase, step),
                limit=limit,
            )
        where = {"phase": phase, "step": step}
        rows.append(where | {"left_token": tokens[0], "right_token": tokens[1], **found})
    return rows


def _logits(side: Side, phase: str, step: int) -> Any:
    kept = side.kept.get((phase, step, LOGITS))
    is_finite = kept is not None and bool((abs(kept.values) < float("inf")).all())
    return kept.values if kept is not None and is_finite else None


def _logit_limit(limits: Sequence[ComparisonLimit]) -> float | None:
    found = [
        limit.limit
        for limit in limits
        if limit.metric == "max_abs" and limit.kind == "acceptance"
        if fnmatchcase(LOGITS, limit.tensors)
    ]
    return min(found, default=None)


def _judge(limit: ComparisonLimit, rows: Sequence[Row]) -> dict[str, Any]:
    """The worst value of a limit's metric, and whether the limit holds for it."""
    values = [
        row[limit.metric]
        for row in rows
        if row["has_same_inputs"] and fnmatchcase(row["name"], limit.tensors)
    ]
    if not values or None in values:
        worst, status = None, FAILED if None in values else NOT_EVALUATED
    else:
        worst = min(values) if limit.metric in LEAST else max(values)
        status = PASSED if holds(limit, worst) else FAILED
    return {**vars(limit), "worst": worst, "status": status}


def _worst(rows: Sequence[Row]) -> dict[str, Any]:
    counted = [row for row in rows if row["has_same_inputs"]]
    finite = [row for row in counted if row["is_finite"]]
    return {
        "num_compared": len(counted),
        "num_not_finite": len(counted) - len(finite),
        "worst": {
            name: (min if name in LEAST else max)((row[name] for row in finite), default=None)
            for name in METRICS
        },
    }


def _integrity(sides: Sequence[Side]) -> str:
    """Whether kept tensors have the digests that their boundaries had."""
    states = set()
    for side in sides:
        digests = {(r["phase"], r["step"], r["name"]): r["digest"] for r in side.boundaries}
        for place, tensor in side.kept.items():
            said = digests.get(place, "")
            found = _digest(said.partition(":")[0], tensor.data)
            states.add(NOT_EVALUATED if found is None else PASSED if found == said else FAILED)
    for state in (FAILED, NOT_EVALUATED):
        if state in states:
            return state
    return PASSED if states else NOT_EVALUATED


def _digest(kind: str, data: bytes) -> str | None:
    """A digest of some kind; ``None`` where the kind is not available here."""
    if kind == "xxh3-128":
        try:
            return f"{kind}:{importlib.import_module('xxhash').xxh3_128_hexdigest(data)}"
        except ImportError:
            return None
    return "sha256:" + hashlib.sha256(data).hexdigest()
