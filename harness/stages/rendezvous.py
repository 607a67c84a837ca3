"""How the stages of one chain meet: a store that the first stage listens for, then a group.

Everything binds the address it is given and no other; by default that is the loopback interface.
Nothing here authenticates anyone: for trusted networks only. Knows numbers of stages only.
"""

import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch import distributed
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from harness.stages.errors import PeerError
from harness.stages.listener import LOOPBACK, listen
from harness.stages.transport import Group, Transport


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where and as what a process joins a chain."""

    stage: int
    num_stages: int
    port: int
    lead_host: str = LOOPBACK
    """Address at which the first stage listens."""
    own_host: str = LOOPBACK
    """Address of this machine that the other stages reach; nothing else is bound."""
    timeout_s: float = 60.0
    """Bound on each later send and receive."""
    start_timeout_s: float = 600.0
    """Bound on the meeting itself."""


def join(meeting: Meeting, listener: socket.socket | None = None) -> Transport:
    """Meet all other stages.

    Args:
        meeting: Where and as what.
        listener: The first stage's, where it listens already; taken over.

    Raises:
        NotEvaluableError: When the port is in use.
        PeerError: When a stage does not come in time, or its number is taken.
    """
    bound = timedelta(seconds=meeting.start_timeout_s)
    store = _store(meeting, listener, bound)
    _claim(store, meeting, bound)
    try:
        group = _group(store, meeting, bound)
    except RuntimeError as error:
        raise PeerError(
            "the stages met and could not be connected",
            expected=f"{meeting.num_stages} stages, each reachable at its own address",
            where=f"stage {meeting.stage}",
            hint="see how the other stages ended; across machines, check addresses and firewalls",
        ) from error
    return Transport(
        group=group,
        store=store,
        stage=meeting.stage,
        num_stages=meeting.num_stages,
        timeout_s=meeting.timeout_s,
    )


def _group(store: Store, meeting: Meeting, bound: timedelta) -> Group:
    # The library's stubs lack these options; without them it binds whatever the host's name means.
    gloo: Any = distributed.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = bound
    options._devices = [gloo.create_device(hostname=meeting.own_host)]
    group: Group = gloo(PrefixStore("group", store), meeting.stage, meeting.num_stages, options)
    return group


def _store(meeting: Meeting, listener: socket.socket | None, bound: timedelta) -> TCPStore:
    if meeting.stage == 0:
        opened = listen(meeting.lead_host, meeting.port) if listener is None else listener
        # The store would listen at every address of the machine if it opened its own socket.
        return TCPStore(
            meeting.lead_host,
            opened.getsockname()[1],
            is_master=True,
            timeout=bound,
            wait_for_workers=False,
            master_listen_fd=opened.detach(),
        )
    try:
        return TCPStore(
            meeting.lead_host,
            meeting.port,
            is_master=False,
            timeout=bound,
            wait_for_workers=False,
        )
    except RuntimeError as error:
        raise PeerError(
            "stage 0 is not to be reached",
            expected=f"a listener within {meeting.start_timeout_s:g} s",
            got=f"none at {meeting.lead_host} port {meeting.port}",
            where=f"stage {meeting.stage}",
        ) from error


def _claim(store: Store, meeting: Meeting, bound: timedelta) -> None:
    """Take this stage's number, once, and wait until every other is taken."""
    names = [f"stage/{number}" for number in range(meeting.num_stages)]
    where = f"stage {meeting.stage}"
    try:
        if store.add(names[meeting.stage], 1) != 1:
            raise PeerError(
                f"another process is stage {meeting.stage} already",
                expected="one process for each stage",
                where=where,
                hint="end the other one, or give each stage a number of its own",
            )
        store.wait(names, bound)
    except RuntimeError as error:
        raise PeerError(
            "not all stages came",
            expected=f"{meeting.num_stages} stages within {meeting.start_timeout_s:g} s",
            got=_absent(store, names),
            where=where,
        ) from error


def _absent(store: Store, names: list[str]) -> str:
    try:
        return "without " + ", ".join(
            name.replace("/", " ") for name in names if not store.check([name])
        )
    except RuntimeError:
        return "stage 0 is gone"
