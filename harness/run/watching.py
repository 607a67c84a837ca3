"""Waits for the processes of a chain: all come to their end, or one of them ends the chain.

A stage that is killed, fails or hangs ends the others in bounded time. Judges nothing.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from harness.run.processes import Outcome

_POLL_S = 0.02
_END_S = 3.0
"""For a process that has noticed a lost stage to come to its end."""
STAGE_ENVIRONMENT = {
    # What the library logs would crowd out a stage's own message.
    "TORCH_CPP_LOG_LEVEL": "FATAL",
    # Between GPUs each stage bounds its own waits: no thread that ends the process instead.
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""Of every stage."""
LOOPBACK_ENVIRONMENT = {"NCCL_SOCKET_IFNAME": "=lo"}
"""Of stages of one machine: the library would listen at an address that others reach."""


class Watched(Protocol):
    """A process that ends: a child of this one, or of another machine's."""

    def poll(self) -> int | None:
        """Anything but ``None`` once it has ended, and 0 only where it ended well."""

    def wait(self, timeout_s: float) -> Outcome:
        """How it ended; what takes longer is ended."""

    def end(self) -> None:
        """End it, if it still runs."""


def watch_stages(
    children: Sequence[Watched], *, run_timeout_s: float, wait_s: float
) -> tuple[Outcome, ...]:
    """Wait until every stage ended, or for so long as the others may take to notice one's end.

    Args:
        children: One process of each stage, in order.
        run_timeout_s: Bound on it all.
        wait_s: Bound on each wait of one stage for another.
    """
    deadline = time.monotonic() + run_timeout_s
    has_failed = False
    while time.monotonic() < deadline:
        codes = [child.poll() for child in children]
        if None not in codes:
            break
        if not has_failed and any(code for code in codes):
            # Also a stage that waits for a load then waits for no more than a step's time.
            has_failed = True
            deadline = min(deadline, time.monotonic() + wait_s + _END_S)
        time.sleep(_POLL_S)
    return tuple(ended_by_now(child) for child in children)


def end_all(children: Sequence[Watched]) -> None:
    """End what still runs."""
    for child in children:
        child.end()


def ended_by_now(child: Watched) -> Outcome:
    """How a process ended, or that it was ended now."""
    outcome = child.wait(0 if child.poll() is None else 5)
    if outcome.outcome != "timed_out":
        return outcome
    return replace(outcome, message="had not ended, and was killed, when its time was over")
