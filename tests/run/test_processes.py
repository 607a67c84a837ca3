"""Children never outlive who started them, whenever that one ends."""

import os
import subprocess
import sys

import pytest

from harness.run.child import PARENT_PID
from harness.run.processes import Child, child_environment

CHILD = "from harness.run.child import run_child; run_child(lambda: 0)"


@pytest.mark.parametrize(
    ("parent", "code"),
    [(os.getpid(), 0), (1 << 22, -9), (None, 0)],
    # Processes that run tests side by side must call them alike.
    ids=["there", "gone", "not told"],
)
def test_a_child_whose_parent_ended_while_it_started_ends_as_well(
    parent: int | None, code: int
) -> None:
    """The number of a process that there cannot be stands for a parent that is gone."""
    environment = child_environment(1)
    if parent is not None:
        environment[PARENT_PID] = str(parent)
    done = subprocess.run([sys.executable, "-c", CHILD], env=environment, check=False)
    assert done.returncode == code


def test_who_is_interrupted_while_waiting_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(
        "sleeper",
        [sys.executable, "-c", "import time; time.sleep(600)"],
        environment=child_environment(1),
        on_line=lambda line: None,
    )
    wait = child.process.wait
    calls = iter([KeyboardInterrupt()])

    def interrupted(timeout: float | None = None) -> int:
        for error in calls:
            raise error
        return wait(timeout)

    monkeypatch.setattr(child.process, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        child.wait(600)
    assert child.process.returncode == -9
