import os
import signal
import sys
from pathlib import Path

import pytest

from harness.errors import NotEvaluableError
from harness.sweep.job import Job, JobResult, lost
from harness.sweep.launch import launch
from harness.sweep.settings import LauncherSettings

MEET = """
import pathlib, sys, time
here, other = (pathlib.Path(name) for name in sys.argv[1:])
here.touch()
until = time.monotonic() + 60
while not other.exists() and time.monotonic() < until:
    time.sleep(0.05)
sys.exit(0 if other.exists() else 1)
"""


def job(tmp_path: Path, name: str, code: str, *arguments: object) -> Job:
    return Job(
        overrides=(name,),
        command=(sys.executable, "-c", code, *map(str, arguments)),
        folder=tmp_path,
        as_json=False,
    )


def engine(kind: str, tmp_path: Path) -> LauncherSettings:
    if kind != "basic":
        pytest.importorskip(kind, reason=f"needs {kind}, of the extra `{kind}`")
    return LauncherSettings(
        kind=kind, num_jobs=2, executor="local", folder=tmp_path / "jobs", timeout_min=5
    )


KINDS = [
    "basic",
    "joblib",
    pytest.param("submitit", marks=pytest.mark.slow),
    pytest.param("ray", marks=pytest.mark.slow),
]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_each_job_ends_as_it_ends_and_stops_no_other(kind: str, tmp_path: Path) -> None:
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    jobs = [
        job(tmp_path, "killed", kill),
        job(tmp_path, "fails", "import sys; print('error: odd', file=sys.stderr); sys.exit(2)"),
        job(tmp_path, "passes", "import os; print('in', os.getcwd())"),
    ]
    if kind in ("submitit", "ray"):
        # The engine's own process dies, and takes what the job would have said with it.
        jobs = [job(tmp_path, "lost", "import os, signal; os.kill(os.getppid(), 9)")]
    if kind != "basic":
        # These two only end when both run at once.
        one, two = tmp_path / "one", tmp_path / "two"
        jobs += [job(tmp_path, "meets", MEET, one, two), job(tmp_path, "meets", MEET, two, one)]
    found = dict(launch(jobs, engine(kind, tmp_path)))
    assert sorted(found) == list(range(len(jobs)))
    for index, result in found.items():
        assert result.overrides == jobs[index].overrides
        name = jobs[index].overrides[0]
        if name == "killed":
            assert (result.exit_code, result.signal) == (1, signal.SIGKILL.name)
        elif name == "lost":
            assert result.exit_code == 1
            assert "lost by its engine" in str(result.message)
        elif name == "fails":
            assert (result.exit_code, result.message) == (2, "error: odd")
        else:
            assert result.exit_code == 0, result
            assert name == "meets" or result.output == f"in {os.path.realpath(tmp_path)}\n"


def test_what_an_engine_raises_is_one_line(tmp_path: Path) -> None:
    result = lost(job(tmp_path, "x", ""), RuntimeError("a\n  b" + "c" * 1000))
    assert isinstance(result, JobResult)
    assert "\n" not in str(result.message)
    assert len(str(result.message)) < 600


@pytest.mark.parametrize("kind", ["submitit"])
def test_parameters_that_the_engine_does_not_know(kind: str, tmp_path: Path) -> None:
    asked = engine(kind, tmp_path)
    unknown = LauncherSettings(**{**vars(asked), "parameters": {"nonsense": 1}})
    with pytest.raises(NotEvaluableError, match="cannot be used as asked"):
        list(launch([], unknown))
