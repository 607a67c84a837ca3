"""Planes by a group of their own: what is decided above it, with a stand-in for NCCL."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from fake_nccl import FakeGroup, silent_send

from harness.errors import NotEvaluableError
from harness.stages import carriers
from harness.stages.carriers import DeviceCarrier
from harness.stages.errors import PeerError
from harness.stages.transport import Transport

HOST = torch.device("cpu")


def carried(transport: Transport, told: int | None = None) -> FakeGroup:
    """Let planes travel by a stand-in, where another number than the stage's own may be told."""
    bound = timedelta(seconds=20)
    groups = []

    def make(store: Any) -> DeviceCarrier:
        group = FakeGroup(store, transport.stage, transport.num_stages, bound)
        groups.append(group)
        if told is not None:
            send, other = group.send, torch.tensor([told]).view(torch.uint8)
            group.send = lambda _, to, tag: send([other], to, tag)  # type: ignore[method-assign]
        return DeviceCarrier(group)

    transport.carry(make, HOST, timeout_s=10)
    return groups[0]


@pytest.mark.parametrize("num_stages", [2, 3])
def test_a_plane_goes_by_the_group_of_planes_and_its_header_by_the_other(
    in_threads: Callable[..., list[Any]], num_stages: int
) -> None:
    header = torch.arange(4)

    def act(transport: Transport) -> Any:
        group, heard = carried(transport), []
        sent, send = [], group.send
        group.send = lambda tensors, to, tag: (  # type: ignore[method-assign]
            sent.append(tensors[0].numel()) or send(tensors, to, tag)
        )
        stage, last = transport.stage, transport.num_stages - 1
        plane = torch.full((2, 3), float(stage))
        for _ in range(3):
            if stage > 0:
                got, rows = torch.zeros_like(header), torch.zeros(2, 3)
                transport.receive(got, stage - 1, "it")
                transport.receive_plane(rows, stage - 1, "it")
                heard.append((got.tolist(), rows.tolist()))
            if stage < last:
                transport.post((header, plane), stage + 1, "it")
        transport.finish()
        transport.close()
        return transport.planes, heard, sent, group.num_aborts

    for stage, (name, heard, sent, num_aborts) in enumerate(in_threads(num_stages, act)):
        expected = (header.tolist(), [[float(stage - 1)] * 3] * 2)
        assert heard == ([expected] * 3 if stage > 0 else [])
        assert sent == ([24] * 3 if stage < num_stages - 1 else [])
        assert (name, num_aborts) == ("gloo", 1)


def test_a_plane_that_nobody_takes_is_given_up_and_aborted(
    in_threads: Callable[..., list[Any]],
) -> None:
    def act(transport: Transport) -> Any:
        group = carried(transport)
        if transport.stage == 0:
            silent_send(group)
            transport.post((torch.zeros(4), torch.zeros(2, 3)), 1, "its plane")
        else:
            transport.receive(torch.zeros(4), 0, "its plane")
        try:
            if transport.stage == 0:
                transport.settle()
            else:
                transport.receive_plane(torch.zeros(2, 3), 0, "its plane")
        except PeerError as error:
            return str(error), group.num_aborts
        return None

    first, second = in_threads(2, act, timeout_s=1.0)
    assert first is not None
    assert second is not None
    assert "stage 1 did not take its plane" in first[0]
    assert "stage 0 did not send its plane" in second[0]
    for text, num_aborts in (first, second):
        assert "nothing in that time" in text
        assert num_aborts == 1


def test_work_that_failed_is_a_lost_connection_and_not_a_plane(
    in_threads: Callable[..., list[Any]],
) -> None:
    class Failed:
        def is_completed(self) -> bool:
            return True

        def wait(self) -> bool:
            raise RuntimeError("the communicator was aborted, at an address")

    def act(transport: Transport) -> Any:
        group = carried(transport)
        if transport.stage == 1:
            group.recv = lambda *_: Failed()  # type: ignore[method-assign]
            transport.receive_plane(torch.zeros(1), 0, "its plane")
        return None

    _, second = in_threads(2, act, timeout_s=5.0)
    assert isinstance(second, PeerError)
    assert "its connection is lost" in str(second)
    assert "address" not in str(second)


def test_a_neighbour_in_another_s_place_is_refused(in_threads: Callable[..., list[Any]]) -> None:
    _, second = in_threads(2, lambda transport: carried(transport, told=5))
    assert isinstance(second, PeerError)
    assert "another stage carries" in str(second)


def test_without_nccl_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    store: Any = None
    with pytest.raises(NotEvaluableError, match="cannot travel between GPUs"):
        carriers.nccl_group(store, 0, 2, timedelta(seconds=1))
