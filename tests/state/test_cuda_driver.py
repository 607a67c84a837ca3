"""What of CUDA's driver can be decided without one: which errors mean what, and in which order."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from harness.errors import ExitCode, ResourceError
from harness.run.devices import exhaustion_told
from harness.state import driver as module
from harness.state.driver import CudaDriver, says_exhausted

NOT_SUPPORTED = 801


@pytest.fixture
def driver() -> CudaDriver:
    """One whose device is the host: nothing of its start was done."""
    made = object.__new__(CudaDriver)
    made.device = torch.device("cpu")
    made._kept = None
    made._graph_pool = (0, 1)
    return made


class Runtime:
    """``torch.cuda`` with a runtime that locks no pages."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def cudart(self) -> "Runtime":
        return self

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:  # noqa: N802
        self._calls.append("register")
        return NOT_SUPPORTED


def test_an_error_that_was_told_is_not_raised_by_a_later_launch(
    driver: CudaDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def launch(*args: object, **kwargs: object) -> None:
        calls.append("launch")
        raise torch.AcceleratorError("CUDA error: operation not supported")

    monkeypatch.setattr(module, "_cuda", Runtime(calls))
    monkeypatch.setattr(torch, "ones", launch)
    with pytest.raises(ResourceError, match="cannot pin host pages") as error:
        driver.pin(4096, 4096)
    assert str(NOT_SUPPORTED) in str(error.value)
    assert calls == ["register", "launch"]


def raised_while_recording() -> RuntimeError:
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0")
        finally:
            raise torch.AcceleratorError("CUDA error: operation failed due to a previous error")
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        raised_while_recording(),
    ],
    ids=["torch", "runtime", "triton", "cublas", "recording"],
)
def test_a_full_device_is_one_error_however_it_shows(error: RuntimeError) -> None:
    assert says_exhausted(error)
    with pytest.raises(ResourceError, match="memory is exhausted") as told, exhaustion_told():
        raise error
    assert told.value.exit_code == ExitCode.NOT_EVALUABLE


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: invalid argument"),
    ],
)
def test_another_error_stays_itself(error: RuntimeError, driver: CudaDriver) -> None:
    with pytest.raises(type(error)) as kept, exhaustion_told():
        raise error
    assert kept.value is error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), OSError),
        (torch.AcceleratorError("CUDA error: out of memory"), OSError),
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), RuntimeError),
    ],
)
def test_a_block_that_does_not_fit_is_no_room(
    driver: CudaDriver,
    monkeypatch: pytest.MonkeyPatch,
    error: RuntimeError,
    expected: type[Exception],
) -> None:
    @contextmanager
    def full(*args: object) -> Iterator[None]:
        raise error
        yield

    monkeypatch.setattr(torch.cuda, "use_mem_pool", full)
    with pytest.raises(expected):
        driver.zeros(None, 100)


def test_no_garbage_is_collected_while_a_graph_is_recorded(
    driver: CudaDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[Any] = []

    @contextmanager
    def capture(graph: object, pool: object) -> Iterator[None]:
        captured.append((graph, pool, gc.isenabled()))
        yield

    def fail() -> None:
        raise RuntimeError("a launch that is refused")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    found: list[bool] = []
    work: Callable[[], None] = lambda: found.append(gc.isenabled())  # noqa: E731
    graph = driver.record(work)
    assert found == [False]
    assert gc.isenabled()
    # The first one is empty, and keeps alive what graphs share.
    assert [each[0] is graph for each in captured] == [False, True]
    assert captured[0][1] == captured[1][1] == (0, 1)
    with pytest.raises(RuntimeError):
        driver.record(fail)
    assert gc.isenabled()
