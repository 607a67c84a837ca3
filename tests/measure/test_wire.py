import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import InvalidInputError
from harness.measure.wire import MAX_FRAME_BYTES, WireError, receive, send

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_messages_arrive_whole_and_in_order(pair: Pair) -> None:
    left, right = pair
    messages = [{"a": [1, None, "é"]}, {}, {"b": "x" * 200_000}]
    writer = threading.Thread(target=lambda: [send(left, message) for message in messages])
    writer.start()
    assert [receive(right, timeout_s=5) for _ in messages] == messages
    writer.join()


def test_frame_is_length_and_canonical_bytes(pair: Pair) -> None:
    left, right = pair
    send(left, {"b": 1, "a": "x"})
    assert right.recv(100) == b'\0\0\0\x0f{"a":"x","b":1}'


def test_frame_in_pieces(pair: Pair) -> None:
    left, right = pair
    data = b'\0\0\0\x07{"a":1}'

    def write() -> None:
        for index in range(len(data)):
            left.send(data[index : index + 1])

    writer = threading.Thread(target=write)
    writer.start()
    assert receive(right, timeout_s=5) == {"a": 1}
    writer.join()


@pytest.mark.parametrize("sent", [b"", b"\0\0", b'\0\0\0\x07{"a"'])
def test_closed_end_is_none(pair: Pair, sent: bytes) -> None:
    left, right = pair
    left.sendall(sent)
    left.close()
    assert receive(right, timeout_s=5) is None


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize(
    "sent",
    [
        (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
        frame(b""),
        frame(b"[]"),
        frame(b"nothing"),
        frame(b'{"a":1,"a":1}'),
        frame(b'{"a": 1}'),
        frame(b'{"b":1,"a":1}'),
        frame(b'{"a":NaN}'),
        frame(b'{"a":1e400}'),
        frame(b'{"a":"\xff"}'),
        frame(b'{"a":' * 100),
        frame(b'{"a":' + b"[" * 200 + b"]" * 200 + b"}"),
        frame(b'{"a":9007199254740993}'),
    ],
)
def test_malformed_frame_is_refused(pair: Pair, sent: bytes) -> None:
    left, right = pair
    left.sendall(sent)
    with pytest.raises(WireError):
        receive(right, timeout_s=5)


def test_overlong_frame_is_refused_before_it_is_read(pair: Pair) -> None:
    left, right = pair
    left.sendall((1 << 31).to_bytes(4, "big"))
    with pytest.raises(WireError, match="too long"):
        receive(right, timeout_s=5)


def test_longest_frame_passes_and_a_longer_one_is_not_sent(pair: Pair) -> None:
    left, right = pair
    fits = {"a": "x" * (MAX_FRAME_BYTES - len('{"a":""}'))}
    writer = threading.Thread(target=send, args=(left, fits))
    writer.start()
    assert receive(right, timeout_s=5) == fits
    writer.join()
    with pytest.raises(WireError, match="too long"):
        send(left, {"a": fits["a"] + "x"})
    left.close()
    assert receive(right, timeout_s=5) is None


def test_no_frame_or_half_a_frame_in_time(pair: Pair) -> None:
    left, right = pair
    with pytest.raises(TimeoutError, match="0 of 4"):
        receive(right, timeout_s=0.01)
    left.sendall(b"\0\0\0\x07{")
    with pytest.raises(TimeoutError, match="1 of 7"):
        receive(right, timeout_s=0.01)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_never_give_anything_but_the_declared_outcomes(data: bytes) -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(data)
        left.close()
        try:
            message = receive(right, timeout_s=5)
        except InvalidInputError:
            return
        assert message is None or isinstance(message, dict)
