import gc
import os
import socket
import threading
import weakref
from collections.abc import Iterator

import pytest

from harness.errors import HarnessError, InvalidInputError, NotEvaluableError
from harness.measure.wire import receive, send
from harness.measure.witness_client import WitnessClient

Pair = tuple[WitnessClient, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    near, far = socket.socketpair()
    with WitnessClient(near, timeout_s=0.2) as client, far:
        yield client, far


def test_silent_witness_is_an_error_and_its_late_answer_is_never_read(pair: Pair) -> None:
    client, far = pair
    with pytest.raises(NotEvaluableError, match="did not answer"):
        client.checkpoint("baseline", [])
    assert receive(far, timeout_s=5)["point"] == "baseline"
    with pytest.raises(NotEvaluableError, match="is gone"):
        client.checkpoint("baseline", [])


def test_witness_that_ended_is_an_error(pair: Pair) -> None:
    client, far = pair
    far.close()
    with pytest.raises(NotEvaluableError, match="is gone"):
        client.finish()


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        ({"error": "no"}, HarnessError, "refused"),
        ({}, InvalidInputError, "bad answer"),
        ({"finished": True, "num_checkpoints": "x"}, InvalidInputError, "bad answer"),
        ({"finished": False, "num_checkpoints": 1}, InvalidInputError, "bad answer"),
    ],
)
def test_wrong_answer_is_an_error(
    pair: Pair, reply: dict, error: type[HarnessError], said: str
) -> None:
    client, far = pair
    send(far, reply)
    with pytest.raises(error, match=said):
        client.finish()


def test_malformed_answer_is_an_error(pair: Pair) -> None:
    client, far = pair
    far.sendall(b"\0\0\0\2{]")
    with pytest.raises(InvalidInputError, match="malformed"):
        client.finish()


def test_reading_with_other_fields_is_an_error(pair: Pair) -> None:
    client, far = pair
    send(far, {"unplanned_bytes": 1})
    with pytest.raises(InvalidInputError, match="bad reading"):
        client.checkpoint("baseline", [])


def test_own_peak_is_sent_when_none_is_given(pair: Pair) -> None:
    client, far = pair
    seen = []

    def answer() -> None:
        for _ in range(2):
            seen.append(receive(far, timeout_s=5)["max_rss_bytes"])
            send(far, {"error": "enough"})

    witness = threading.Thread(target=answer)
    witness.start()
    for given in (None, 5):
        with pytest.raises(HarnessError, match="refused"):
            client.checkpoint("baseline", [], max_rss_bytes=given)
    witness.join()
    with open("/proc/self/status") as file:
        peak = next(line.split()[1] for line in file if line.startswith("VmHWM"))
    assert seen[1] == 5
    assert seen[0] >= int(peak) * 1024 // 2


def test_taken_descriptor_is_not_inherited() -> None:
    near, far = socket.socketpair()
    with far:
        fd = near.detach()
        os.set_inheritable(fd, True)
        with WitnessClient.from_fd(fd):
            assert not os.get_inheritable(fd)
        assert far.recv(1) == b""


def test_descriptor_that_is_no_socket_is_an_error(tmp_path) -> None:
    with (tmp_path / "x").open("w") as file, pytest.raises(InvalidInputError, match="no witness"):
        WitnessClient.from_fd(file.fileno())
    with pytest.raises(InvalidInputError, match="no witness"):
        WitnessClient.from_fd(12345)


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_garbage_is_collected_before_the_request_is_sent(pair: Pair) -> None:
    client, far = pair
    send(far, {"error": "enough"})
    gc.collect()
    dead = weakref.ref(Cycle())
    with pytest.raises(HarnessError, match="refused"):
        client.checkpoint("baseline", [])
    assert dead() is None
