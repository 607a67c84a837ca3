"""Checks of the sentinels: each canary fired, and then nothing was counted."""

from collections.abc import Callable

from harness.reconcile.findings import ABSENT, Findings, Row
from harness.reconcile.view import Subject

AFTER_RELEASE, AFTER_DECODE = "after_release", "after_decode"
_BOTH = (AFTER_RELEASE, AFTER_DECODE)
SENTINELS: dict[str, tuple[str, ...]] = {
    # Accesses count from the release on: at that point there can be none yet.
    "plan_accesses": (AFTER_DECODE,),
    "source_accesses": (AFTER_DECODE,),
    "staging_tensors_alive": _BOTH,
    "staging_mappings_alive": _BOTH,
    "checkpoint_descriptors": _BOTH,
    "checkpoint_mappings": _BOTH,
    "unplanned_tensors": _BOTH,
    "unplanned_pages": _BOTH,
    # Counted over steps, of which there is none before the execution.
    "nan": (AFTER_DECODE,),
    "inf": (AFTER_DECODE,),
}
"""Sentinels and the points at which each must have been read."""
CANARY_BYTES = 1 << 20
"""Size of the copy that is planted for the sentinels that count bytes."""
_REUSED_BYTES = 64 << 10
"""Of a planted copy, as much may come to lie in pages that the process had already."""


def _fires_at(subject: Subject) -> dict[str, int]:
    """Least count of a canary that fired, where that is more than 1."""
    allowances = subject.plan.memory_allowances
    hidden = _REUSED_BYTES + (0 if allowances is None else allowances.unplanned_host_bytes)
    return {
        "unplanned_tensors": CANARY_BYTES,
        # Counted is what exceeds the allowance.
        "unplanned_pages": max(1, CANARY_BYTES - hidden),
    }


def canaries(subject: Subject, findings: Findings) -> None:
    """Every sentinel was shown to count, at every point, before it was believed."""
    fires_at = _fires_at(subject)

    def judge(path: str, row: Row) -> None:
        fired, least = row["canary_count"], fires_at.get(row["name"], 1)
        expected = f"a canary that fired (at least {least})"
        findings.require(fired >= least, f"{path}.canary_count", expected, fired)

    _each(subject, findings, judge)


def zero(subject: Subject, findings: Findings) -> None:
    """Every sentinel counted nothing real."""
    _each(subject, findings, lambda path, row: findings.equal(f"{path}.count", 0, row["count"]))


def _each(subject: Subject, findings: Findings, judge: Callable[[str, Row], None]) -> None:
    required = [(name, point) for name, points in SENTINELS.items() for point in points]
    for _realization, table in subject.view.each(findings, "sentinels"):
        for key in required:
            if key not in table.rows:
                findings.differ(table.path(key), "a sentinel's reading", ABSENT)
        for key, row in table.rows.items():
            if key[0] in SENTINELS and key[1] in _BOTH:
                judge(table.path(key), row)
            else:
                findings.differ(table.path(key), ABSENT, "a sentinel that is not known")
