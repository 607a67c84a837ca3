"""How processes meet, and who is turned away."""

import contextlib
import socket
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.errors import InvalidInputError, NotEvaluableError
from harness.stages import messages
from harness.stages.errors import HandshakeError, PeerError
from harness.stages.frames import PLANE, Header, check_header, dtype_number, empty_header
from harness.stages.handshake import Greeting, disagreements, parse_greeting, shake_hands
from harness.stages.listener import listen
from harness.stages.rendezvous import Meeting, join
from harness.stages.transport import Transport

GREETING = Greeting(
    stage=0,
    num_stages=2,
    nonce="0" * 32,
    plan_digest="sha256:" + "1" * 64,
    versions={"torch": "1", "harness": "2"},
    dtype="float32",
    width=8,
    start_layer=0,
    end_layer=2,
)
LAST = replace(GREETING, stage=1, start_layer=2, end_layer=4)


def test_nobody_but_this_machine_can_connect() -> None:
    with listen() as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_port_in_use_is_refused_by_name() -> None:
    with listen() as listener:
        port = listener.getsockname()[1]
        with pytest.raises(NotEvaluableError, match="cannot listen") as refused:
            listen(port=port)
        assert f"127.0.0.1 port {port}" in str(refused.value)
        # A second first stage is refused in the same way, before it meets anyone.
        with pytest.raises(NotEvaluableError, match="cannot listen"):
            join(Meeting(stage=0, num_stages=2, port=port))


def test_a_stage_that_never_comes_is_named() -> None:
    with pytest.raises(PeerError, match="not all stages came") as absent:
        join(Meeting(stage=0, num_stages=3, port=0, start_timeout_s=0.3), listen())
    assert "without stage 1, stage 2" in str(absent.value)


def test_a_chain_without_a_first_stage_is_not_waited_for_for_ever() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(PeerError, match="stage 0 is not to be reached"):
            join(Meeting(stage=1, num_stages=2, port=port, start_timeout_s=0.5))


def test_a_number_is_taken_once(in_threads: Callable[..., list[Any]]) -> None:
    def act(transport: Transport) -> Any:
        if transport.stage == 1:
            return None
        host, port = transport._store.host, transport._store.port  # type: ignore[attr-defined]
        with pytest.raises(PeerError, match="another process is stage 1 already"):
            join(Meeting(stage=1, num_stages=2, port=port, lead_host=host, start_timeout_s=5))
        return "refused"

    assert in_threads(2, act)[0] == "refused"


def listening_addresses() -> list[str]:
    """Local addresses at which this process listens, as the kernel writes them."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(descriptor.readlink()))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]


def test_no_stage_listens_beyond_loopback(in_threads: Callable[..., list[Any]]) -> None:
    def act(transport: Transport) -> list[str]:
        listening = listening_addresses()
        # Nobody leaves before everybody has looked.
        transport.gather(torch.zeros(1, dtype=torch.uint8), "a sign")
        return listening

    # Not where the machine's name would lead, but where each stage says: 127.0.0.1, 127.0.0.2.
    results = in_threads(2, act, own_hosts=("127.0.0.1", "127.0.0.2"))
    hosts = {address.partition(":")[0] for address in results[0]}
    assert hosts == {"0100007F", "0200007F"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"nonce": "f" * 32}, "nonce"),
        ({"plan_digest": "sha256:" + "2" * 64}, "plan_digest"),
        ({"versions": {"torch": "1", "harness": "3"}}, "version of harness"),
        ({"versions": {"torch": "1"}}, "version of harness"),
        ({"versions": {**GREETING.versions, "more": "1"}}, "version of more"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"width": 9}, "width"),
        ({"num_stages": 3}, "num_stages"),
        ({"stage": 0}, "stage"),
        ({"start_layer": 1}, "start_layer"),
        ({"start_layer": 3}, "start_layer"),
        ({"end_layer": 5}, "end_layer"),
        ({"protocol": "harness.stages/2"}, "protocol"),
    ],
)
def test_every_disagreement_is_named(change: dict[str, Any], named: str) -> None:
    assert disagreements([GREETING, LAST], 4) == []
    (found,) = disagreements([GREETING, replace(LAST, **change)], 4)
    assert found.startswith(f"stage 1: {named}: expected ")


def test_a_stage_has_layers() -> None:
    first = replace(GREETING, end_layer=0)
    assert "stage 0: has no layers" in disagreements([first, LAST], 4)


def test_all_stages_come_to_the_same_answer(in_threads: Callable[..., list[Any]]) -> None:
    def act(transport: Transport) -> Any:
        own = (GREETING, replace(LAST, plan_digest="sha256:" + "2" * 64))[transport.stage]
        return shake_hands(transport, own, 4)

    errors = in_threads(2, act)
    assert all(isinstance(error, HandshakeError) for error in errors)
    assert errors[0].got == errors[1].got
    assert "stage 1: plan_digest" in errors[0].got

    def agree(transport: Transport) -> Any:
        return shake_hands(transport, (GREETING, LAST)[transport.stage], 4)

    assert in_threads(2, agree) == [(GREETING, LAST)] * 2


def test_a_hostile_greeting_is_refused(in_threads: Callable[..., list[Any]]) -> None:
    def act(transport: Transport) -> Any:
        if transport.stage == 1:
            message = messages.encode({"stage": 1})
            message[:4] = 255
            transport.gather(message, "its greeting")
            return None
        return shake_hands(transport, GREETING, 4)

    error = in_threads(2, act)[0]
    assert isinstance(error, HandshakeError)
    assert "stage 1: a message between stages states a wrong length" in str(error)


@pytest.mark.parametrize(
    "change",
    [
        {"stage": True},
        {"stage": "0"},
        {"width": 1.5},
        {"nonce": 3},
        {"versions": {"torch": 2}},
        {"versions": []},
        {"plan_digest": "1"},
        {"more": 1},
    ],
)
def test_a_malformed_greeting_is_refused(change: dict[str, Any]) -> None:
    document = asdict(GREETING)
    assert parse_greeting(document) == GREETING
    with pytest.raises(InvalidInputError, match="malformed") as refused:
        parse_greeting({**document, **change})
    assert next(iter(change)) in str(refused.value)
    with pytest.raises(InvalidInputError, match="malformed"):
        parse_greeting({key: value for key, value in document.items() if key != "dtype"})


HEADER = Header(
    kind=PLANE,
    nonce=1,
    session=2,
    sequence=3,
    start_position=4,
    num_rows=5,
    width=6,
    dtype=dtype_number(torch.float32),
)


@pytest.mark.parametrize("place", range(1 + len(vars(HEADER))))
def test_every_integer_of_a_header_is_compared(place: int) -> None:
    packed = HEADER.pack()
    assert packed.shape == empty_header().shape
    check_header(packed, HEADER, sender=0, stage=1)
    packed[place] += 1
    name = ("version", *vars(HEADER))[place].removeprefix("num_")
    with pytest.raises(PeerError, match=name):
        check_header(packed, HEADER, sender=0, stage=1)


def test_a_message_has_one_size_and_one_form() -> None:
    message = messages.encode({"b": 1, "a": [2]})
    assert message.shape == messages.empty_message().shape
    assert messages.decode(message, where="here") == {"a": [2], "b": 1}
    with pytest.raises(InvalidInputError, match="too long"):
        messages.encode({"text": "x" * messages.MESSAGE_BYTES})
    for place, byte in ((3, 5), (3, 255), (0, 255), (-1, 1), (4, ord("["))):
        changed = message.clone()
        changed[place] = byte
        with pytest.raises(InvalidInputError):
            messages.decode(changed, where="here")
    other = b'{"b":1,"a":[2]}'
    changed = message.clone()
    changed[4 : 4 + len(other)] = torch.frombuffer(bytearray(other), dtype=torch.uint8)
    with pytest.raises(InvalidInputError, match="malformed"):
        messages.decode(changed, where="here")
