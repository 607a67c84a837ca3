import hashlib

import numpy as np
import pytest
import torch

from harness.errors import InvalidInputError
from harness.plan.layout import TensorSpec
from harness.state.accounting import TensorAccounting
from harness.state.arena import Memory
from harness.state.digests import count_non_finite, equal_bits, tensor_bytes, tensor_digest
from harness.state.snapshot import copy_declared


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_digest_is_sha256_of_the_row_major_bytes(dtype: torch.dtype) -> None:
    tensor = torch.arange(24).to(dtype).view(4, 6)
    raw = bytes(tensor.view(torch.uint8).numpy().tobytes())
    assert tensor_digest(tensor) == "sha256:" + hashlib.sha256(raw).hexdigest()


def test_digest_of_a_strided_view_is_that_of_its_copy() -> None:
    tensor = torch.arange(24.0).view(4, 6).t()
    assert tensor_digest(tensor) == tensor_digest(tensor.contiguous())


def test_digest_sees_one_flipped_bit() -> None:
    tensor = torch.zeros(1000)
    before = tensor_digest(tensor)
    tensor_bytes(tensor)[2000] ^= 1
    assert tensor_digest(tensor) != before


def test_tensor_bytes_writes_through_and_refuses_strided() -> None:
    tensor = torch.zeros(4, dtype=torch.bfloat16)
    tensor_bytes(tensor)[1] = 0x3F
    assert tensor.any()
    with pytest.raises(ValueError, match="contiguous"):
        tensor_bytes(torch.zeros(4, 6).t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_non_finite_are_counted_apart(dtype: torch.dtype) -> None:
    tensor = torch.zeros(10, dtype=dtype)
    assert count_non_finite(tensor) == (0, 0)
    tensor[1] = float("nan")
    tensor[2] = float("inf")
    tensor[3] = float("-inf")
    assert count_non_finite(tensor) == (1, 2)


def test_copy_declared_copies_bits() -> None:
    source = {"k": torch.randn(3, 4), "v": torch.full((2,), float("nan"))}
    target = {"k": torch.zeros(3, 4), "v": torch.zeros(2)}
    copy_declared(source, target)
    for name in source:
        assert tensor_digest(source[name]) == tensor_digest(target[name])


@pytest.mark.parametrize(
    "target",
    [
        {"k": torch.zeros(3, 4)},
        {"k": torch.zeros(3, 4), "v": torch.zeros(3)},
        {"k": torch.zeros(3, 4), "v": torch.zeros(2, dtype=torch.bfloat16)},
        {"k": torch.zeros(3, 4), "w": torch.zeros(2)},
    ],
)
def test_copy_declared_refuses_another_geometry_and_copies_nothing(
    target: dict[str, torch.Tensor],
) -> None:
    source = {"k": torch.ones(3, 4), "v": torch.ones(2)}
    with pytest.raises(InvalidInputError, match="geometry"):
        copy_declared(source, target)
    assert not any(tensor.any() for tensor in target.values())


def test_accounting_sees_tensors_outside_arenas_only() -> None:
    home = Memory(resource_id="ram", kind="system-ram", capacity_bytes=1 << 20)
    existing = torch.zeros(100)
    accounting = TensorAccounting()
    arena = home.allocate("x", [TensorSpec(name="a", dtype="float32", shape=(1000,))])
    assert accounting.unplanned_bytes(home.arenas) == 0
    view = arena.tensors["a"][10:20]
    assert accounting.unplanned_bytes(home.arenas) == 0
    leaked = torch.ones(500)
    alias = leaked[3:]
    assert accounting.unplanned_bytes(home.arenas) == 2000
    assert accounting.unplanned_bytes([]) == 2000 + 4000
    del leaked
    assert accounting.unplanned_bytes(home.arenas) == 2000
    del alias
    assert accounting.unplanned_bytes(home.arenas) == 0
    assert existing.shape == (100,)
    assert view.shape == (10,)


def test_accounting_does_not_see_numpy() -> None:
    # Stated in the module: another library's storage is the witness's to see.
    accounting = TensorAccounting()
    mirror = np.ones(1 << 20, dtype=np.uint8)
    assert accounting.unplanned_bytes([]) == 0
    assert mirror.nbytes == 1 << 20


@pytest.mark.parametrize("place", [0, 16_383, 16_384, 40_000])
@pytest.mark.parametrize(("value", "counts"), [(float("nan"), (1, 0)), (float("-inf"), (0, 1))])
def test_one_that_is_not_finite_is_counted_anywhere(
    place: int, value: float, counts: tuple[int, int]
) -> None:
    tensor = torch.zeros(40_001, dtype=torch.bfloat16)
    tensor[place] = value
    assert count_non_finite(tensor) == counts
    assert count_non_finite(torch.empty(0)) == (0, 0)


def test_equal_bits_are_of_equal_sizes_on_the_host() -> None:
    one = torch.arange(6.0)
    assert equal_bits(one, one.view(2, 3).t().t().clone())
    assert not equal_bits(one, one[:4])
    assert not equal_bits(one[:4], one)
    assert not equal_bits(one, -one)
    with pytest.raises(ValueError, match="on the host, got cpu and meta"):
        equal_bits(one, one.to("meta"))
