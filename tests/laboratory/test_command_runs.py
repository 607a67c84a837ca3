"""The laboratory's commands from end to end, over runs that no process makes."""

import functools
import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_runs import FakeRuns, altered

import harness.cli.campaign
import harness.cli.laboratory
import harness.cli.replay
import harness.laboratory.localize
from harness.cli import main
from harness.evidence.record import load_record
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate, study_predicate
from harness.experiment import ExperimentConfig, compose_experiment
from harness.laboratory.recheck import recheck, recheck_studies
from harness.laboratory.replay import replay
from harness.plan.load import load_plan
from harness.run.request import RunRequest

Run = Callable[..., tuple[int, Any]]
FEW = "--layers 0 --steps 0"
"""Boundaries enough to see where trials differ first."""


@functools.cache
def composed(overrides: tuple[str, ...], config_dir: Path) -> ExperimentConfig:
    return compose_experiment(overrides, config_dir=config_dir)


def composed_once(overrides: Sequence[str], *, config_dir: Path) -> ExperimentConfig:
    """What is composed anew in each test differs in its store alone."""
    rest = tuple(text for text in overrides if not text.startswith("store="))
    places = [text.removeprefix("store=") for text in overrides if text not in rest]
    config = composed(rest, config_dir)
    return replace(config, store=Path(places[-1])) if places else config


@pytest.fixture(scope="module")
def configs(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project's folder for what commands write beside their store."""
    folder = tmp_path_factory.mktemp("project") / "experiments"
    folder.symlink_to(repo_root / "experiments")
    return folder


@pytest.fixture
def fake(one_record: Path, repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    runs = FakeRuns(one_record, repo_root / "plans" / "tiny_llama.json")
    for commands in (harness.cli.laboratory, harness.cli.campaign):
        monkeypatch.setattr(commands, "compose_experiment", composed_once)
    monkeypatch.setattr(harness.cli.laboratory, "freeze_cases", runs.freeze)
    monkeypatch.setattr(harness.laboratory.localize, "check", runs.check)
    monkeypatch.setattr(harness.laboratory.localize, "execute", runs.execute)
    monkeypatch.setattr(harness.cli.replay, "run_replay", partial(replay, run=runs.execute))
    return runs


@pytest.fixture
def run(tmp_path: Path, configs: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; returns its exit code and its answer, or its one message."""

    def _run(command: str, *more: str) -> tuple[int, Any]:
        arguments = [*command.split(), *more, "--json"]
        takes_overrides = arguments[0] in ("localize", "intervene")
        if takes_overrides:
            arguments.append(f"store={tmp_path / 'store'}")
        else:
            arguments += ["--store", str(tmp_path / "store")]
        if takes_overrides or arguments[0] == "campaign":
            arguments += ["--config-dir", str(configs)]
        capsys.readouterr()
        code = main(arguments)
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        return code, json.loads(shown.out)

    return _run


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def study_of(store: Store, answer: dict[str, Any]) -> StudyPredicate:
    return study_predicate(store.read_study(answer["study"]))


def test_localize_writes_a_study_and_its_page(fake: FakeRuns, run: Run, store: Store) -> None:
    code, answer = run(f"localize experiment=tiny_llama {FEW}")
    assert (code, answer["findings"]["status"]) == (0, "stable")
    assert "stable" in Path(answer["page"]).read_text()
    fake.varies = lambda request: True
    code, answer = run(f"localize experiment=tiny_llama {FEW}")
    assert (code, answer["findings"]["status"]) == (1, "varying")
    assert answer["findings"]["cases"][0]["earliest"]["name"] == "layers.0.kv_written"
    assert recheck_studies(store) == []


def test_a_killed_process_stays_in_the_ledger(fake: FakeRuns, run: Run, store: Store) -> None:
    fake.killed = {1}
    code, answer = run(f"localize experiment=tiny_llama {FEW}")
    (case,) = answer["findings"]["cases"]
    assert (code, case["state"]) == (0, "stable")
    assert (case["num_completed"], case["num_trials"]) == (2, 4)
    study = study_of(store, answer)
    (table,) = [each for each in study.tables if each.name == "case_trials"]
    rows = store.read_table_rows(table.written())
    assert [row["outcome"] for row in rows] == ["completed"] * 2 + ["killed"] * 2
    assert rows[-1]["message"] == "out of memory"
    fake.killed = {0, 1}
    assert run(f"localize experiment=tiny_llama {FEW}")[0] == 3
    assert recheck_studies(store) == []


def test_an_interrupt_leaves_a_study_of_what_had_run(
    fake: FakeRuns, run: Run, store: Store
) -> None:
    def interrupt(request: RunRequest) -> bool:
        if len(fake.requests) == 2:
            raise KeyboardInterrupt
        return False

    fake.varies = interrupt
    code, answer = run(f"localize experiment=tiny_llama {FEW} --num-threads 2,2,2")
    assert (code, answer["findings"]["status"]) == (3, "not_evaluated")
    assert [each["state"] for each in answer["findings"]["cases"]] == [
        "stable",
        "not_evaluated",
        "not_evaluated",
    ]
    cases = study_of(store, answer).parameters["cases"]
    assert [case["problem"] for case in cases] == [
        None,
        "interrupted while it ran",
        "not begun after an interrupt",
    ]
    assert recheck_studies(store) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("localize experiment=none_such", "none_such"),
        ("localize experiment=tiny_llama fault=nan_expert", "another family"),
        ("localize experiment=tiny_llama fault=none_such", "unknown fault"),
        ("localize experiment=tiny_llama --layers 99", "nothing that this arming lets pass"),
        ("localize experiment=tiny_llama --replay-from prefill:7", "nothing that this arming"),
        ("localize experiment=tiny_llama --phases sleep", "phases"),
        ("localize experiment=tiny_llama --prompt-rows 0", "prompt"),
        ("localize experiment=quickstart --prompt-rows 5", "prompt"),
        ("intervene experiment=tiny_llama --factor a:b=1", "b"),
        ("intervene experiment=tiny_llama --factor a:fault=null --factor a:fault=null", "names"),
        ("compare 0123abcd 0123abcd", "no such evidence"),
        ("compare 0123abcd:x 0123abcd", "not a trial"),
        ("replay 0123abcd", "no such evidence"),
        ("state 0123abcd", "no such evidence"),
        ("campaign run 0123abcd none.json", "no such evidence"),
        ("campaign size --share 0", "share is no probability"),
    ],
)
def test_bad_input_is_one_message(
    fake: FakeRuns, run: Run, store: Store, command: str, said: str
) -> None:
    store.root.mkdir()
    if command.startswith("campaign size"):
        assert main([*command.split()]) == 2
        return
    code, answer = run(command)
    assert code == 2
    assert said in json.dumps(answer)
    assert fake.requests == []
    assert store.digests("studies") == []


def test_intervene_names_the_cause_with_both_counts(fake: FakeRuns, run: Run, store: Store) -> None:
    fake.varies = lambda request: request.planted_fault is not None
    arms = "--factor race:fault=null --factor threads:determinism.num_threads=1"
    code, answer = run(f"intervene experiment=racing_thread {FEW} {arms} --max-runs 5")
    race, threads = answer["findings"]["factors"]
    assert (code, answer["findings"]["causes"]) == (0, ["race"])
    assert race["control"]["num_completed"] == race["treatment"]["num_completed"] == 8
    assert race["control"]["first_varying"] == "prefill 0: layers.0.kv_written"
    assert [each.planted_fault is None for each in fake.requests] == [False, True, True, False]
    # What was not reached says so, and is no verdict.
    assert (threads["state"], threads["reason"]) == ("not_executed", "not reached")
    study = study_of(store, answer)
    assert recheck(store, study) == []
    # A treatment that is another control, and arms that change their names.
    cases = study.parameters["cases"]
    borrowed = [{**case, "record": cases[0]["record"]} for case in cases]
    assert "the treatment of race changes nothing" in recheck(
        store, with_parameters(study, cases=borrowed)
    )
    renamed = [{**one, "arm": two["arm"]} for one, two in itertools.pairwise(cases)]
    assert "its runs are not in the counterbalanced order" in recheck(
        store, with_parameters(study, cases=[*renamed, cases[-1]])
    )


def test_without_a_cause_nothing_is_shown(fake: FakeRuns, run: Run) -> None:
    one = f"intervene experiment=racing_thread {FEW} --pairs 1"
    one += " --factor threads:determinism.num_threads=1"
    fake.varies = lambda request: request.planted_fault is not None
    code, answer = run(one)
    assert (code, answer["findings"]["causes"]) == (3, [])
    assert answer["findings"]["factors"][0]["reason"] == "the treatment varies as well"
    # A pair that lost its processes proves nothing either.
    fake.killed = {0, 1}
    code, answer = run(one)
    (threads,) = answer["findings"]["factors"]
    assert (code, threads["state"]) == (3, "not_shown")
    assert threads["reason"].startswith("0 and 0 completed trials")


# Replays ---------------------------------------------------------------------------------------


@pytest.fixture
def recorded(one_record: Path, store: Store) -> str:
    """The record, in the store of the commands."""
    shutil.copytree(one_record, store.root)
    return store.digests("records")[0]


def another_digest(rows: list[dict[str, Any]]) -> None:
    rows[0]["plane_digest"] = "sha256:" + "0" * 64


def test_replay_sets_the_state_that_it_shows(
    fake: FakeRuns, run: Run, store: Store, recorded: str
) -> None:
    code, answer = run(f"replay {recorded}")
    assert (code, answer["note"]) == (0, "valid")
    fake.change = lambda record: altered(record, "steps", another_digest)
    code, answer = run(f"replay {recorded}")
    assert (code, answer["note"]) == (1, "degraded")
    assert answer["findings"]["first_not_reproduced"]["column"] == "plane_digest"
    code, shown = run(f"state {recorded}")
    assert (code, shown["state"]) == (1, "degraded")
    assert [each["actor"] for each in shown["history"]] == ["replay"]
    fake.change = None
    assert run(f"replay {recorded}")[1]["note"] == "valid"
    assert recheck_studies(store) == []


def test_a_replay_may_not_lift_a_suspension(fake: FakeRuns, run: Run, recorded: str) -> None:
    run(f"state {recorded} --set suspended --reason doubt")
    code, answer = run(f"replay {recorded}")
    assert code == 0
    assert answer["note"].startswith("suspended (replay may not set")
    assert run(f"state {recorded}")[1]["state"] == "suspended"


def test_a_replay_that_was_killed_sets_nothing(fake: FakeRuns, run: Run, recorded: str) -> None:
    fake.killed = {1}
    code, answer = run(f"replay {recorded}")
    assert (code, answer["findings"]["state"], answer["note"]) == (3, None, "valid")


@pytest.mark.parametrize("kind", ["records", "plans", "tables"])
def test_a_damaged_record_is_not_replayed(
    fake: FakeRuns, run: Run, store: Store, recorded: str, kind: Any
) -> None:
    record = load_record(recorded, store)
    digest = {
        "records": recorded,
        "plans": record.predicate.plan.file_digest,
        "tables": next(t.digest for t in record.predicate.tables if t.name == "steps"),
    }[kind]
    path = store.path(kind, digest)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    code, answer = run(f"replay {recorded}")
    assert (code, "file was changed" in json.dumps(answer)) == (2, True)
    assert fake.requests == []


# Campaigns -------------------------------------------------------------------------------------


@pytest.fixture
def campaign(tmp_path: Path, repo_root: Path) -> dict[str, Any]:
    """A manifest whose one development case is the prompt of the fake runs' plan."""
    workload = load_plan(repo_root / "plans" / "tiny_llama.json").plan.workload
    assert workload is not None
    manifest = {
        "schema": "harness.campaign/1",
        "name": "one prompt",
        "development": [list(workload.prompt_token_ids)],
        "processes": 2,
        "repetitions": 2,
        "design": {"share": 0.9, "rate": 0.9, "confidence": 0.8},
        "limits": None,
    }
    holdout = {"schema": "harness.holdout/1", "salt": "s" * 32, "cases": [[7, 1]]}
    for name, document in (("manifest", manifest), ("holdout", holdout)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    return manifest


def test_a_campaign_is_frozen_run_and_its_holdout_opened_once(
    fake: FakeRuns, run: Run, store: Store, tmp_path: Path, campaign: dict[str, Any]
) -> None:
    files = [f"{tmp_path}/manifest.json", f"{tmp_path}/holdout.json"]
    given = ["--manifest", files[0], "--holdout", files[1]]
    code, answer = run("campaign freeze experiment=tiny_llama", *given)
    assert code == 0
    digest = answer["campaign"]
    code, answer = run(f"campaign run {digest} {files[0]}")
    assert (code, answer["findings"]["status"]) == (0, "stable")
    assert study_of(store, answer).parameters["campaign"] == digest
    other = tmp_path / "other.json"
    other.write_text(json.dumps(campaign | {"development": [[1, 2]]}))
    code, answer = run(f"campaign run {digest} {other}")
    assert (code, "not those that were frozen" in json.dumps(answer)) == (2, True)
    assert recheck_studies(store) == []
    fake.varies = lambda request: True
    code, answer = run(f"campaign holdout {digest} {files[1]}")
    assert (code, answer["findings"]["status"]) == (1, "varying")
    num_runs = len(fake.requests)
    code, answer = run(f"campaign holdout {digest} {files[1]}")
    assert (code, "opened before" in json.dumps(answer)) == (2, True)
    assert len(fake.requests) == num_runs
    assert recheck_studies(store) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"development": [[1, 2]]}, "whose holdout was never opened"),
        ({"processes": 3}, "other processes or repetitions"),
        (
            {"limits": [{"kind": "acceptance", "metric": "rms", "tensors": "logits", "limit": 1}]},
            "other limits than its campaign",
        ),
    ],
)
def test_a_run_that_is_not_its_campaign_s_is_found(
    fake: FakeRuns,
    run: Run,
    store: Store,
    tmp_path: Path,
    campaign: dict[str, Any],
    change: dict[str, Any],
    said: str,
) -> None:
    """The runs are those of the plan as it is, whatever the campaign asks for."""
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(campaign | change))
    given = ["--manifest", str(path), "--holdout", f"{tmp_path}/holdout.json"]
    _, answer = run("campaign freeze experiment=tiny_llama", *given)
    run(f"campaign run {answer['campaign']} {path}")
    assert said in "\n".join(problem.message for problem in recheck_studies(store))


# Lies ------------------------------------------------------------------------------------------


def with_case(study: StudyPredicate, **changes: Any) -> StudyPredicate:
    cases = [{**study.parameters["cases"][0], **changes}]
    return replace(study, parameters={**study.parameters, "cases": cases})


def with_parameters(study: StudyPredicate, **changes: Any) -> StudyPredicate:
    return replace(study, parameters={**study.parameters, **changes})


def test_a_study_that_lies_about_what_was_done_is_found(
    fake: FakeRuns, run: Run, store: Store
) -> None:
    _, answer = run(f"localize experiment=tiny_llama {FEW} --prompt-rows 70")
    study = study_of(store, answer)
    arming = study.parameters["arming"]
    assert recheck(store, study) == []
    dropped = tuple(t for t in study.tables if (t.name, t.realization) != ("boundaries", 1))
    lies = {
        "experiment": replace(study, experiment="quickstart"),
        "planted_fault": with_parameters(study, planted_fault="racing_thread"),
        "campaign": with_parameters(study, campaign="sha256:" + "0" * 64),
        "repetitions": with_parameters(study, arming={**arming, "repetitions": 3}),
        "digest_kind": with_parameters(study, arming={**arming, "digest_kind": "xxh3-128"}),
        # Filters that let more pass than was digested, so that something was left out.
        "layers": with_parameters(study, arming={**arming, "layers": None}),
        "steps": with_parameters(study, arming={**arming, "steps": None}),
        "phases": with_parameters(study, arming={**arming, "phases": ["decode"]}),
        "replay_phase": with_parameters(study, arming={**arming, "replay_phase": "decode"}),
        "point": with_case(study, point={"prompt_rows": 71}),
        "plan_digest": with_case(study, plan_digest="sha256:" + "0" * 64),
        "num_realizations": with_case(study, num_realizations=9),
        "too many processes": with_case(study, num_realizations=1 << 50),
        "unrun": with_case(study, num_realizations=1 << 50, record=None, problem="no machine"),
        "too many cases": with_parameters(study, cases=study.parameters["cases"] * 401),
        "audit": with_case(study, audit="failed"),
        "problem": with_case(study, problem="no machine"),
        "no record": with_case(study, record=None),
        "no case": with_parameters(study, cases=[]),
        "a process less": replace(study, tables=dropped),
        "no records": replace(study, records=()),
        "status": replace(study, findings={**study.findings, "status": "varying"}),
        "more": replace(study, findings={**study.findings, "more": 1}),
    }
    assert [name for name, lie in lies.items() if not recheck(store, lie)] == []
