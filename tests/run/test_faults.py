"""Each fault is planted in the runtime of a real run, and the audit must name what it broke."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.evidence.verify import verify_store
from harness.plan.load import LoadedPlan

MIRRORS = (
    "numpy",
    "cpp",
    # The same count of the same pages, over other ways to hold them.
    *(
        pytest.param(kind, marks=pytest.mark.long)
        for kind in ("tensor", "bytearray", "private-mmap", "shared-mmap")
    ),
)
NUMERIC = {
    "flip-before": {"tensors.expected", "correctness.exact"},
    "flip-after": {"tensors.unchanged", "correctness.exact"},
    "wrong-token": {"steps.complete"},
    "drift": {"steps.repeat", "correctness.exact"},
    "nan": {"numbers.finite", "sentinels.zero"},
    "inf": {"numbers.finite", "sentinels.zero"},
    "no-restore": {"state.selfproof"},
}
STATE = {
    "keep-staging": {"realization.release", "sentinels.zero", "memory.release"},
    "open-checkpoint": {"memory.release", "sentinels.zero"},
    "map-checkpoint": {"memory.release", "sentinels.zero"},
    "late-read": {"sentinels.zero"},
    "reread": {"sentinels.zero"},
    "reload-plan": {"sentinels.zero"},
    "dirty-state": {"state.selfproof"},
    "read-plan": {"sentinels.zero"},
    "wrong-lineage": {"realization.authorities"},
}
ALIKE = ("dirty-state", "inf", "map-checkpoint", "reload-plan", "reread")
"""Found by the counter that finds another of them."""
FINALS = {
    name: {"realization.materializations", "realization.release"}
    for name in (
        *("final-failed", "final-other-state", "final-wrong-memory", "final-wrong-bytes"),
        "final-wrong-representation",
    )
}
AUTHORITIES = {
    "authority-failed": {"realization.authorities"},
    "authority-elsewhere": {"realization.authorities"},
}
DEATHS = {
    "segfault": ("killed", "SIGSEGV"),
    "sigkill": ("killed", "SIGKILL"),
    "crash": ("failed", None),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MIRRORS)
def test_a_mirror_of_one_mebibyte_is_found(
    run_plan: Callable[..., Any], small_plan: LoadedPlan, kind: str
) -> None:
    trial = run_plan(small_plan, f"mirror-{kind}")
    assert trial.code == 1
    assert "memory.unplanned" in trial.failed
    assert "sentinels.zero" in trial.failed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        *(
            pytest.param(*item, marks=pytest.mark.long) if item[0] in ALIKE else item
            for item in sorted((NUMERIC | STATE).items())
        ),
        # Judged from the same columns of one row; unit tests of the auditor change each.
        *(
            pytest.param(*item, marks=pytest.mark.long) if index % 3 else item
            for index, item in enumerate(sorted((FINALS | AUTHORITIES).items()))
        ),
    ],
)
def test_a_fault_fails_the_checks_that_it_breaks(
    run_plan: Callable[..., Any], small_plan: LoadedPlan, fault: str, expected: set[str]
) -> None:
    trial = run_plan(small_plan, fault)
    assert trial.code == 1
    assert expected <= trial.failed
    assert verify_store(trial.store.root, plans=None) == []


@pytest.mark.parametrize("fault", ["flip-after"])
def test_a_flipped_bit_is_found(
    run_plan: Callable[..., Any], small_plan: LoadedPlan, fault: str
) -> None:
    trial = run_plan(small_plan, fault)
    assert trial.code == 1
    assert NUMERIC[fault] <= trial.failed


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "expected"), sorted(DEATHS.items()))
def test_a_child_that_dies_is_a_recorded_trial(
    run_plan: Callable[..., Any],
    small_plan: LoadedPlan,
    fault: str,
    expected: tuple[str, str | None],
) -> None:
    trial = run_plan(small_plan, fault)
    assert trial.code == 1
    assert "trials.completed" in trial.failed
    assert any(expected[0] in problem for problem in trial.summary["problems"])
    if expected[1] is not None:
        assert any(expected[1] in problem for problem in trial.summary["problems"])
    assert verify_store(trial.store.root, plans=None) == []


@pytest.mark.slow
def test_a_hanging_child_ends_in_bounded_time(
    run_plan: Callable[..., Any], freeze_plan: Callable[..., LoadedPlan]
) -> None:
    plan = freeze_plan(timeouts__realization_s=10)
    trial = run_plan(plan, "hang")
    assert trial.code == 1
    assert any("timed_out" in problem for problem in trial.summary["problems"])


@pytest.mark.slow
@pytest.mark.parametrize("step", ["fsync"])
def test_killed_at_every_write_nothing_partial_is_visible(
    run_plan: Callable[..., Any], small_plan: LoadedPlan, step: str
) -> None:
    """Each table takes one link and two fsyncs; kill the producer at every one of them."""
    name = {"link": "kill-at-write", "fsync": "kill-at-fsync"}[step]
    number, killed = 0, True
    while killed:
        # Every step of the first table, then in larger strides through the equal rest; each
        # step of a write by itself is killed in the evidence room's tests.
        number += 1 if number < 3 else 47
        trial = run_plan(small_plan, f"{name}={number}")
        killed = trial.code != 0
        assert trial.code in (0, 1)
        assert verify_store(trial.store.root, plans=None) == []
        assert not list(trial.store.root.glob(".*"))
    assert number > 47
