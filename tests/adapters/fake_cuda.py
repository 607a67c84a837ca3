"""Tensors that say they are a GPU's and hold nothing, and launches that are only counted.

All that a step asks of torch and Triton is seen by torch's own dispatcher, without a GPU: whatever
moves between host and device, and whatever waits for a number, shows. Computes nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import triton
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.adapters.qwen3_5_moe import load as qwen_load
from harness.state import table

CUDA = torch.device("cuda", 0)


class Crossings(TorchDispatchMode):
    """Notes every operation that has tensors of both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
        if len({tensor.device.type for tensor in tensors}) > 1:
            self.seen.append(str(func))
        return out


class FakeBlocks:
    """Blocks of a device's memory, of any size."""

    def rounded(self, size_bytes: int) -> int:
        return size_bytes

    def take(self, size_bytes: int) -> "FakeBacking":
        return FakeBacking(size_bytes)

    def throwaway(self) -> "FakeBlocks":
        return self


class FakeBacking:
    address = 0
    is_live = True

    def __init__(self, size_bytes: int) -> None:
        self._base = torch.zeros(max(size_bytes, 1), dtype=torch.uint8, device=CUDA)

    def piece(self, offset: int, num_bytes: int) -> torch.Tensor:
        return self._base.narrow(0, offset, num_bytes)

    def release(self) -> int:
        return 0


class _Places(TorchFunctionMode):
    """Indexing by operations: torch's own asks for a device before the dispatcher is asked. What
    holds nothing has no address; it is said to be aligned."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            return _item(*args)
        if func is torch.Tensor.__setitem__:
            return torch.ops.aten.index_put_.default(args[0], [args[1]], args[2])
        if func is torch.Tensor.contiguous:
            return args[0].clone(memory_format=torch.contiguous_format)
        if func is torch.Tensor.data_ptr:
            return 0
        if func is torch.Tensor.copy_:
            return torch.ops.aten.copy_.default(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _item(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        missing = tensor.ndim - sum(part is not None for part in parts) + 1
        parts[at : at + 1] = [slice(None)] * missing
    axis = 0
    for part in parts:
        if part is None:
            tensor = tensor.unsqueeze(axis)
        elif isinstance(part, int):
            tensor = torch.ops.aten.select.int(tensor, axis, part)
            continue
        else:
            tensor = torch.ops.aten.slice.Tensor(tensor, axis, part.start, part.stop)
        axis += 1
    return tensor


@contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Inside, ``device="cuda"`` works; gives the names of the kernels launched so far."""
    launched: list[str] = []

    def launch(kernel: Any, *args: object, **kwargs: object) -> None:
        launched.append(kernel.fn.__name__)

    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", launch)
    # No packed weights have an order here.
    monkeypatch.setattr(qwen_load, "_check_nibbles", lambda *tensors: None)
    monkeypatch.setattr(
        table.HostTable, "measured", lambda self: np.zeros(self.tensor.shape, dtype=np.int64)
    )
    torch._C._ensureCUDADeviceGuardSet()
    with FakeTensorMode(allow_non_fake_inputs=True), _Places():
        yield launched
