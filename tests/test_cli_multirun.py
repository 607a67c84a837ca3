import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.cli import main
from harness.cli.multirun import worst
from harness.errors import InvalidInputError
from harness.experiment import ExperimentConfig, compose_experiment
from harness.run import supervisor
from harness.run.request import RunRequest

FAKE_JOB = """\
#!{python}
import json, os, signal, sys
name = next(a.partition("=")[2] for a in sys.argv if a.startswith("name="))
with open({log!r}, "a") as file:
    file.write(json.dumps([os.getpid(), name, sys.argv[1:]]) + "\\n")
print("progress of", name, file=sys.stderr, flush=True)
if name == "passes":
    if "--json" in sys.argv:
        print(json.dumps({{"status": "passed"}}))
elif name == "fails":
    sys.exit(1)
elif name == "invalid":
    print("error: plan is odd\\n  got: x", file=sys.stderr)
    sys.exit(2)
elif name == "elsewhere":
    print("error: no such device", file=sys.stderr)
    sys.exit(3)
elif name == "bug":
    print("error: this is a bug in the harness", file=sys.stderr)
    sys.exit(70)
elif name == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
elif name == "orphan":
    if os.fork() == 0:
        import time
        time.sleep(8)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[list[object]]]:
    """Replace the Python that jobs run in, and the check of their plans; returns the jobs."""
    log = tmp_path / "started.jsonl"
    script = tmp_path / "python"
    script.write_text(FAKE_JOB.format(python=sys.executable, log=str(log)))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(supervisor, "check", _checked)

    def jobs() -> list[list[object]]:
        if not log.exists():
            return []
        return [json.loads(line) for line in log.read_text().splitlines()]

    return jobs


def _checked(request: RunRequest) -> object:
    """What a plan that passes is, as far as a sweep looks at it: here its file names the plan."""
    return SimpleNamespace(plan=SimpleNamespace(digest=f"plan of {request.plan_path.name}"))


def sweep(repo_root: Path, names: str, *options: str) -> list[str]:
    config_dir = str(repo_root / "experiments")
    return [
        "run",
        "-m",
        "experiment=tiny_llama",
        f"name={names}",
        "--config-dir",
        config_dir,
        *options,
    ]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((), 0),
        ((0, 0), 0),
        ((0, 3), 3),
        ((3, 2, 0), 2),
        ((2, 1, 3), 1),
        ((0, 70), 1),
        ((130, 2), 1),
    ],
)
def test_the_worst_code_decides(codes: tuple[int, ...], expected: int) -> None:
    assert worst(codes) == expected


def test_a_sweep_goes_on_after_every_kind_of_failure(
    started: Callable[[], list[list[object]]],
    repo_root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ("fails", "killed", "invalid", "bug", "elsewhere", "passes")
    assert main(sweep(repo_root, ",".join(names))) == 1
    jobs = started()
    assert [name for _, name, _ in jobs] == list(names)
    assert len({pid for pid, _, _ in jobs}) == len(names)
    assert os.getpid() not in {pid for pid, _, _ in jobs}
    captured = capsys.readouterr()
    assert "6 jobs, 1 passed, 5 not" in captured.out
    assert "SIGKILL" in captured.out
    assert "error: plan is odd" in captured.out
    assert "  got: x" in captured.out
    assert "error: no such device" in captured.out
    assert "exit code 70" in captured.out
    assert "audited and failed" in captured.out
    assert all(f"progress of {name}" in captured.err for name in names)


@pytest.mark.parametrize(
    ("names", "code"),
    [("passes,passes", 0), ("passes,elsewhere", 3), ("elsewhere,invalid", 2), ("killed,passes", 1)],
)
def test_the_exit_code_of_a_sweep(
    started: Callable[[], list[list[object]]], repo_root: Path, names: str, code: int
) -> None:
    assert main(sweep(repo_root, names)) == code
    assert len(started()) == 2


def test_a_sweep_as_json_is_one_document(
    started: Callable[[], list[list[object]]],
    repo_root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(sweep(repo_root, "passes,killed,invalid", "--json")) == 1
    first, second, third = json.loads(capsys.readouterr().out)["jobs"]
    assert first["result"] == {"status": "passed"}
    assert (first["exit_code"], first["message"]) == (0, None)
    assert (second["signal"], second["exit_code"]) == ("SIGKILL", 1)
    assert third["message"] == "error: plan is odd\n  got: x"
    assert third["overrides"] == ["experiment=tiny_llama", "name=invalid"]


@pytest.mark.slow
def test_a_killed_jobs_orphan_does_not_hang_the_sweep(
    started: Callable[[], list[list[object]]], repo_root: Path
) -> None:
    assert main(sweep(repo_root, "orphan,passes")) == 1
    assert [name for _, name, _ in started()] == ["orphan", "passes"]


def test_no_job_starts_when_one_plan_is_bad(
    started: Callable[[], list[list[object]]],
    repo_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def check(request: RunRequest) -> object:
        if request.plan_path.name == "b.json":
            raise InvalidInputError("a broken plan", where=str(request.plan_path))
        return _checked(request)

    monkeypatch.setattr(supervisor, "check", check)
    monkeypatch.setattr("harness.cli.multirun.run_request", _request)
    config_dir = str(repo_root / "experiments")
    assert main(["run", "-m", "plan=a.json,b.json,c.json", "--config-dir", config_dir]) == 2
    assert started() == []
    err = capsys.readouterr().err
    assert "1 of 3 jobs cannot be run" in err
    assert "plan=b.json: a broken plan" in err


def _request(config: object, options: object) -> object:
    return SimpleNamespace(
        plan_path=config.plan_path,  # type: ignore[attr-defined]
        plan_digest=None,
        store=Path("store"),
        cache=Path("cache"),
    )


def test_every_job_that_cannot_be_composed_is_named(
    started: Callable[[], list[list[object]]],
    repo_root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config_dir = str(repo_root / "experiments")
    overrides = ["experiment=tiny_llama,nope", "workload.repetitions=4,5"]
    assert main(["run", "-m", *overrides, "--config-dir", config_dir]) == 2
    assert started() == []
    err = capsys.readouterr().err
    assert "3 of 4 jobs cannot be run" in err
    assert "workload.repetitions: 4 -> 5" in err
    assert err.count("Could not find 'experiment/nope'") == 2


def test_jobs_that_run_at_once_are_reported_as_those_one_after_another(
    started: Callable[[], list[list[object]]],
    repo_root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("joblib", reason="needs joblib, of the extra `joblib`")
    names = "fails,killed,invalid,passes"
    assert main(sweep(repo_root, names, "launcher=joblib", "launcher.num_jobs=3", "--json")) == 1
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert [job["overrides"][1] for job in jobs] == [f"name={name}" for name in names.split(",")]
    assert [job["exit_code"] for job in jobs] == [1, 1, 2, 0]
    assert jobs[1]["signal"] == "SIGKILL"
    assert jobs[2]["message"] == "error: plan is odd\n  got: x"
    assert jobs[3]["result"] == {"status": "passed"}
    assert len(started()) == 4


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("launcher=basic,joblib",), "one launcher"),
        (("store=a,b",), "one store"),
        (("launcher=joblib", "launcher.num_jobs=0"), "num_jobs: 0 is no number"),
        (("+launcher.address=x",), "address: unknown to basic"),
    ],
)
def test_jobs_that_do_not_belong_together_are_not_started(
    overrides: tuple[str, ...],
    problem: str,
    started: Callable[[], list[list[object]]],
    repo_root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(sweep(repo_root, "passes,passes", *overrides)) == 2
    assert problem in capsys.readouterr().err
    assert started() == []


@pytest.mark.parametrize("engine", ["joblib", "submitit", "ray"])
def test_a_missing_engine_is_said_before_anything_starts(
    engine: str,
    started: Callable[[], list[list[object]]],
    repo_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, engine, None)
    assert main(sweep(repo_root, "passes", f"launcher={engine}")) == 3
    assert f"inference-harness[{engine}]" in capsys.readouterr().err
    assert started() == []


def test_on_request_cases_that_passed_before_are_skipped(
    started: Callable[[], list[list[object]]],
    repo_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = []

    def passed_before(store: object, cache: object, plans: set[str]) -> dict[str, str]:
        asked.append(plans)
        return dict.fromkeys(plans, f"sha256:{'ab' * 32}")

    monkeypatch.setattr("harness.cli.multirun.passed_before", passed_before)
    faulty = ("name=passes,fails", "fault=null,racing_thread")
    arguments = sweep(repo_root, "passes", *faulty, "--resume", "--json")
    arguments.remove("name=passes")
    assert main(arguments) == 1
    assert asked == [{"plan of tiny_llama.json"}]
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    # A planted fault makes another case of the same plan.
    assert [job["skipped"] is not None for job in jobs] == [True, False, True, False]
    assert len(started()) == 2


def test_on_request_the_plans_of_a_sweep_are_frozen_before_any_job_starts(
    started: Callable[[], list[list[object]]],
    repo_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[object] = []

    def freeze_plan(config: ExperimentConfig) -> Path:
        assert started() == []
        frozen.append(config.workload["repetitions"])
        return tmp_path / f"plan{len(frozen)}.json"

    monkeypatch.setattr("harness.cli.multirun.freeze_plan", freeze_plan)
    monkeypatch.setattr("harness.cli.multirun.run_request", _request)
    pinned = compose_experiment(
        ["experiment=tiny_llama"], config_dir=repo_root / "experiments"
    ).workload["repetitions"]
    swept = f"workload.repetitions={pinned},7"
    assert main(sweep(repo_root, "passes", swept)) == 2
    assert main(sweep(repo_root, "passes", swept, "--freeze")) == 0
    assert frozen == [7]
    first, second = ([str(word) for word in words] for _, _, words in started())
    assert not any(word.startswith("plan=") for word in first)
    assert f"plan={tmp_path / 'plan1.json'}" in second


def test_one_run_is_no_sweep(repo_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "experiment=tiny_llama", "--resume"]) == 2
    assert "--multirun" in capsys.readouterr().err


@pytest.mark.slow
def test_real_jobs_of_a_sweep(
    repo_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One job runs to its verdict; one finds its checkpoint gone; the sweep reports both."""
    config_dir = tmp_path / "experiments"
    shutil.copytree(repo_root / "experiments", config_dir)
    cache, gone = tmp_path / "cache", tmp_path / "gone"
    common = ["--config-dir", str(config_dir), "--json"]
    small = ["workload.decode_steps=2", "workload.repetitions=2", "workload.fresh_realizations=1"]

    def derive(*overrides: str) -> str:
        arguments = ["plan", "derive", "experiment=tiny_llama", f"cache={cache}", *overrides]
        assert main([*arguments, *common]) == 0
        return str(json.loads(capsys.readouterr().out)["path"])

    good = derive(*small)
    (folder,) = cache.glob("synthetic-*")
    shutil.copytree(folder, gone)
    source = f"model.source={{kind:directory,path:{gone}}}"
    missing = derive(*small, "name=missing", "~model.source", f"+{source}")
    shutil.rmtree(gone)
    overrides = [f"plan={missing},{good}", f"cache={cache}", f"store={tmp_path / 'store'}"]
    code = main(["run", "-m", *overrides, *common])
    first, second = json.loads(capsys.readouterr().out)["jobs"]
    assert first["exit_code"] == 2
    assert "checkpoint" in first["message"]
    assert second["result"]["status"] == "passed", second
    assert code == 2
