"""Interventions over made-up arms; no process is started."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from armed_rows import armed_step_rows, boundary_rows, digest, state_rows

from harness.errors import InvalidInputError
from harness.evidence.store import Store
from harness.laboratory.cases import FrozenCase
from harness.laboratory.intervene import Factor, intervene
from harness.laboratory.intervention import Arm, arms_in_order, intervention_findings
from harness.laboratory.localize import Observed
from harness.laboratory.recheck import recheck_studies
from harness.laboratory.trials import CaseTables
from harness.measure.environment import DeviceRequest
from harness.plan.load import load_plan
from harness.realize.arming import Arming
from harness.run.progress import Progress
from harness.run.request import RunRequest

STEPS = [
    {
        "repetition": 0,
        "phase": "prefill",
        "step": 0,
        "num_rows": 1,
        "token": 7,
        "plane_digest": digest("plane"),
        "logits_digest": digest("logits"),
    }
]


def run_of(*, varies: bool = False, outcome: str = "completed", other: object = "") -> CaseTables:
    """One process with two replays, which differ in one boundary or not."""

    def value(repetition: int, phase: str, step: int, name: str) -> object:
        return repetition if varies and name == "layers.0.q" else other

    return CaseTables(
        num_realizations=1,
        repetitions=2,
        ledger=[{"child": "producer", "realization": 0, "outcome": outcome, "message": None}],
        steps={0: STEPS},
        boundaries={0: boundary_rows(2, value=value)},
        armed_steps={0: armed_step_rows(STEPS)},
        replay_states={0: state_rows(2)},
    )


def judged(
    control: Sequence[CaseTables], treatment: Sequence[CaseTables], factor: str = "threads"
) -> dict[str, Any]:
    arms = [Arm(factor=factor, arm="control", pair=n) for n in range(len(control))]
    arms += [Arm(factor=factor, arm="treatment", pair=n) for n in range(len(treatment))]
    found = intervention_findings([factor], arms, [*control, *treatment])
    (only,) = found["factors"]
    assert found["causes"] == ([factor] if only["state"] == "cause" else [])
    return dict(only)


def test_the_order_is_counterbalanced_and_each_pair_is_whole() -> None:
    arms = arms_in_order(["a", "b"], 3)
    assert [(arm.factor, arm.arm, arm.pair) for arm in arms[:6]] == [
        ("a", "control", 0),
        ("a", "treatment", 0),
        ("a", "treatment", 1),
        ("a", "control", 1),
        ("a", "control", 2),
        ("a", "treatment", 2),
    ]
    assert [arm.factor for arm in arms[6:]] == ["b"] * 6


def test_a_factor_is_the_cause_if_its_control_varies_and_its_treatment_does_not() -> None:
    found = judged([run_of(varies=True)] * 2, [run_of()] * 2)
    assert found["state"] == "cause"
    assert found["control"]["first_varying"] == "prefill 0: layers.0.q"
    assert (found["control"]["num_completed"], found["treatment"]["num_completed"]) == (4, 4)
    assert found["treatment"]["num_varying"] == 0


@pytest.mark.parametrize(
    ("control", "treatment", "reason"),
    [
        ([run_of()] * 2, [run_of()] * 2, "control does not vary"),
        ([run_of(varies=True)] * 2, [run_of(varies=True)] * 2, "treatment varies as well"),
        # Each process repeats itself, and they differ from each other.
        ([run_of(varies=True)] * 2, [run_of(), run_of(other="x")], "treatment varies as well"),
        ([run_of(varies=True)] * 2, [run_of()], "4 and 2 completed"),
        ([run_of(varies=True)] * 2, [run_of(), run_of(outcome="killed")], "4 and 2 completed"),
    ],
)
def test_anything_else_is_not_shown(
    control: list[CaseTables], treatment: list[CaseTables], reason: str
) -> None:
    found = judged(control, treatment)
    assert found["state"] == "not_shown"
    assert reason in found["reason"]


def test_a_factor_that_was_not_reached_is_not_executed() -> None:
    arms = [Arm(factor="a", arm="control", pair=0), Arm(factor="a", arm="treatment", pair=0)]
    found = intervention_findings(["a", "b"], arms, [run_of(varies=True), run_of()])
    assert [each["state"] for each in found["factors"]] == ["cause", "not_executed"]
    assert found["causes"] == ["a"]


def test_runs_beyond_the_most_are_not_begun_and_a_study_is_kept(
    repo_root: Path, tmp_path: Path
) -> None:
    plan = load_plan(repo_root / "plans" / "tiny_llama.json")
    base = RunRequest(
        experiment="small",
        plan_path=tmp_path,
        plan_digest=None,
        store=tmp_path / "store",
        cache=tmp_path,
        device=DeviceRequest(kind="cpu"),
    )
    arm = FrozenCase(point={}, plan=plan, planted={})
    factors = [Factor(name=name, override="x=1", control=arm, treatment=arm) for name in ("a", "b")]
    begun: list[int] = []

    def nothing_ran(
        base: RunRequest, cases: Sequence[FrozenCase], arming: Arming, progress: Progress
    ) -> list[Observed]:
        del base, arming, progress
        begun.append(len(cases))
        return [Observed(case=case, completed=None, problem="no machine") for case in cases]

    with Progress() as progress:
        _, study = intervene(
            base,
            factors,
            Arming(repetitions=2),
            progress,
            num_pairs=2,
            max_runs=5,
            execute_cases=nothing_ran,
        )
        assert begun == [4]
        with pytest.raises(InvalidInputError, match="names of their own"):
            intervene(base, [factors[0]] * 2, Arming(), progress, num_pairs=1)
    assert [each["state"] for each in study.findings["factors"]] == ["not_shown", "not_executed"]
    assert recheck_studies(Store(base.store)) == []
