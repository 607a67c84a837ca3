"""One run, as the command line or a notebook asks for it."""

import sys
from dataclasses import dataclass
from pathlib import Path

from harness.measure.environment import DeviceRequest
from harness.realize.arming import Arming


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where the first machine of a run listens for the others."""

    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What to run and where; nothing here is governed by the plan."""

    experiment: str
    plan_path: Path
    plan_digest: str | None
    """The pinned digest; ``None`` when the plan was named by path alone."""
    store: Path
    cache: Path
    device: DeviceRequest
    accept_terms: bool = False
    """The user's consent to the terms that the checkpoint comes under, if any."""
    allow_large: bool = False
    """The user's consent to make a large synthetic checkpoint."""
    as_json: bool = False
    command: tuple[str, ...] = ()
    """The command line as given; redacted before it is recorded."""
    producer_argv: tuple[str, ...] = (sys.executable, "-m", "harness.run.producing")
    fixture_argv: tuple[str, ...] = (sys.executable, "-m", "harness.run.fixture")
    stage_port: int = 0
    """At which the first stage of a chain listens; 0 for a free one."""
    lead: Address | None = None
    """Of a plan whose stages are on machines of their own: the first one's."""
    courier_argv: tuple[str, ...] = (sys.executable, "-m", "harness.run.courier")
    arming: Arming | None = None
    """Which boundaries every producer observes after its run, if any."""
    planted_fault: str | None = None
    """Name of the fault that one of the commands plants; the record says so, and cannot pass."""
