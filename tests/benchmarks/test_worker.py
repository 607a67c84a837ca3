"""A contender that crashes, hangs or answers nonsense is a reason, and its process is ended."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks.worker import Worker, WorkerError

FAKE = Path(__file__).with_name("fake_worker.py")


def start(how: str) -> Worker:
    return Worker([sys.executable, str(FAKE), how], dict(os.environ))


def test_a_request_is_answered_and_the_next_one_too() -> None:
    worker = start("answers")
    for value in (1, 2):
        assert worker.ask("load", 20, value=value) == {"do": "load", "value": value}
    worker.close()


def test_a_refusal_leaves_the_worker_running() -> None:
    worker = start("refuses")
    for _ in range(2):
        with pytest.raises(WorkerError, match="no such dtype"):
            worker.ask("load", 20)
    worker.close()


@pytest.mark.parametrize(
    ("how", "timeout_s", "reason"),
    [
        ("exits", 20, r"ended at 'load': exit code 1; a library is missing"),
        ("is killed", 20, r"ended at 'load': signal 9"),
        ("hangs", 0.1, r"no answer to 'load' within 0.1 s"),
        ("hangs half-way", 0.5, r"no answer to 'load' within 0.5 s"),
        ("talks", 20, r"answered nonsense to 'load': b'Loading weights"),
        ("answers a list", 20, r"answered nonsense to 'load': b'\[1\]'"),
        ("answers without end", 20, r"answered nonsense to 'load': b'999"),
    ],
)
def test_what_gives_no_answer_is_a_reason(how: str, timeout_s: float, reason: str) -> None:
    worker = start(how)
    with pytest.raises(WorkerError, match=reason):
        worker.ask("load", timeout_s)
    assert worker.has_ended
