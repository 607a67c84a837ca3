import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main
from harness.cli.multirun import worst
from harness.errors import InvalidInputError
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
    monkeypatch.setattr(supervisor, "check", lambda request: None)

    def jobs() -> list[list[object]]:
        if not log.exists():
            return []
        return [json.loads(line) for line in log.read_text().splitlines()]

    return jobs


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
    def check(request: RunRequest) -> None:
        if request.plan_path.name == "b.json":
            raise InvalidInputError("a broken plan", where=str(request.plan_path))

    monkeypatch.setattr(supervisor, "check", check)
    monkeypatch.setattr("harness.cli.multirun.run_request", _request)
    config_dir = str(repo_root / "experiments")
    assert main(["run", "-m", "plan=a.json,b.json,c.json", "--config-dir", config_dir]) == 2
    assert started() == []
    err = capsys.readouterr().err
    assert "1 of 3 jobs cannot be run" in err
    assert "plan=b.json: a broken plan" in err


def _request(config: object, options: object) -> object:
    class Request:
        plan_path = config.plan_path  # type: ignore[attr-defined]
        plan_digest = None

    return Request


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
