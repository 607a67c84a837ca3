from pathlib import Path
from typing import Any

import pytest

from harness.errors import InvalidInputError
from harness.evidence.store import Store
from harness.laboratory.cases import Axes, FrozenCase, settings_at
from harness.laboratory.localize import Observed, localize, require_armable, run_cases
from harness.laboratory.recheck import recheck_studies
from harness.measure.environment import DeviceRequest
from harness.plan.load import LoadedPlan, load_plan
from harness.realize.arming import Arming
from harness.run.derivation import Settings
from harness.run.progress import Progress
from harness.run.request import RunRequest


def settings(**workload: Any) -> Settings:
    values = {
        "prompt_text": None,
        "prompt_token_ids": [3, 1, 2],
        "chunk_rows": 2,
        "decode_steps": 4,
        "max_positions": 8,
        "fresh_realizations": 1,
    }
    return Settings(
        name="small",
        model={},
        device={},
        workload=values | workload,
        realization={},
        determinism={"num_threads": 2, "dtype": "float32"},
        timeouts={},
        checks=None,
    )


@pytest.fixture(scope="module")
def plan(repo_root: Path) -> LoadedPlan:
    return load_plan(repo_root / "plans" / "tiny_llama.json")


def test_cases_are_every_combination_in_order() -> None:
    points = Axes(prompt_rows=(65, 66), num_threads=(1, 2)).points()
    assert points == [
        {"prompt_rows": rows, "num_threads": threads} for rows in (65, 66) for threads in (1, 2)
    ]
    assert Axes().points() == [{}]
    with pytest.raises(InvalidInputError, match="too many"):
        Axes(prompt_rows=tuple(range(1, 500))).points()


def test_a_case_changes_its_axes_and_the_number_of_processes_alone() -> None:
    point = {"prompt_rows": 7, "chunk_rows": 3, "num_threads": 1}
    made = settings_at(settings(), point, 5)
    assert made.workload["prompt_token_ids"] == [3, 1, 2, 3, 1, 2, 3]
    assert made.workload["max_positions"] == 11
    assert made.workload["chunk_rows"] == 3
    assert made.workload["fresh_realizations"] == 5
    assert made.determinism == {"num_threads": 1, "dtype": "float32"}
    assert settings_at(settings(), {"prompt_rows": 2}, 5).workload["max_positions"] == 8
    same = settings_at(settings(), {}, 1)
    assert same == settings()


@pytest.mark.parametrize("rows", [0, -1])
def test_a_length_needs_a_row(rows: int) -> None:
    with pytest.raises(InvalidInputError, match="prompt length"):
        settings_at(settings(), {"prompt_rows": rows}, 1)


def test_a_length_needs_token_ids() -> None:
    text = settings(prompt_token_ids=None, prompt_text="hello")
    with pytest.raises(InvalidInputError, match="given as text"):
        settings_at(text, {"prompt_rows": 3}, 1)


@pytest.mark.parametrize(
    "arming",
    [Arming(replay_step=2), Arming(num_rows=(65,)), Arming(layers=(99,)), Arming(steps=(50,))],
)
def test_an_arming_without_anything_to_observe_is_refused(plan: LoadedPlan, arming: Arming) -> None:
    with pytest.raises(InvalidInputError, match="nothing that this arming lets pass"):
        require_armable(plan.plan, arming)


def test_the_second_chunk_of_a_prompt_can_be_armed(plan: LoadedPlan) -> None:
    require_armable(plan.plan, Arming(num_rows=(6,), replay_step=1))


def test_a_case_that_could_not_start_keeps_its_place(plan: LoadedPlan, tmp_path: Path) -> None:
    base = RunRequest(
        experiment="small",
        plan_path=tmp_path / "none",
        plan_digest=None,
        store=tmp_path / "store",
        cache=tmp_path,
        device=DeviceRequest(kind="cpu"),
    )
    case = FrozenCase(point={"num_threads": 99}, plan=plan)

    def nothing_ran(*_: object) -> list[Observed]:
        return [Observed(case=case, completed=None, problem="no such machine")]

    with Progress() as progress:
        digest, study = localize(
            base, [case], Arming(repetitions=3), progress, execute_cases=nothing_ran
        )
    assert study.findings["status"] == "not_evaluated"
    (told,) = study.parameters["cases"]
    assert (told["problem"], told["record"]) == ("no such machine", None)
    store = Store(base.store)
    assert store.digests("studies") == [digest]
    assert recheck_studies(store) == []
    (finding,) = study.findings["cases"]
    assert (finding["num_trials"], finding["num_completed"]) == (2 * 3, 0)


def test_more_than_fits_into_one_study_is_refused_before_anything_runs(
    plan: LoadedPlan, tmp_path: Path
) -> None:
    base = RunRequest(
        experiment="small",
        plan_path=tmp_path / "none",
        plan_digest=None,
        store=tmp_path / "store",
        cache=tmp_path,
        device=DeviceRequest(kind="cpu"),
    )
    case = FrozenCase(point={}, plan=plan)
    with Progress() as progress, pytest.raises(InvalidInputError, match="too many cases"):
        run_cases(base, [case] * 1000, Arming(), progress)
    assert not base.store.exists()
