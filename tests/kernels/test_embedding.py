import math

import pytest
import torch

from kernels.embedding.api import embedding


def test_equals_reference_bitwise(rows: int, dtype: torch.dtype) -> None:
    weight = torch.randn(31, 9).to(dtype)
    ids = torch.randint(0, 31, (rows,))
    actual = embedding(ids, weight)
    assert torch.equal(actual, embedding(ids, weight, kernel_set="torch-reference/1"))
    assert torch.equal(actual[0], weight[ids[0]])
    actual.zero_()
    assert weight.abs().sum() > 0  # a copy, not a view of the table


@pytest.mark.parametrize("kernel_set", ["torch-cpu/1", "torch-cpu-invariant/1"])
@pytest.mark.parametrize("size", [9, 640])
def test_scale_equals_reference_bitwise(
    rows: int, size: int, dtype: torch.dtype, kernel_set: str
) -> None:
    weight = torch.randn(31, size).to(dtype)
    ids, scale = torch.randint(0, 31, (rows,)), math.sqrt(size)
    actual = embedding(ids, weight, scale, kernel_set=kernel_set)
    assert torch.equal(actual, embedding(ids, weight, scale, kernel_set="torch-reference/1"))


@pytest.mark.parametrize("kernel_set", ["torch-cpu/1", "torch-reference/1"])
def test_scale_is_rounded_to_the_dtype_first(kernel_set: str) -> None:
    # sqrt(640) = 25.298 is 25.25 in bfloat16. Five times that is 126.25, a tie that goes to the
    # even 126; five times the unrounded root is 126.49, hence 126.5.
    weight = torch.tensor([[5.0]], dtype=torch.bfloat16)
    assert embedding(torch.tensor([0]), weight, 640**0.5, kernel_set=kernel_set).item() == 126.0


@pytest.mark.parametrize("bad", [-1, 31])
def test_refuses_ids_outside_the_vocabulary(bad: int) -> None:
    with pytest.raises(ValueError, match=r"token ids in \[0, 31\)"):
        embedding(torch.tensor([3, bad]), torch.zeros(31, 9))


def test_refuses_other_integer_types() -> None:
    with pytest.raises(ValueError, match="int64"):
        embedding(torch.tensor([3], dtype=torch.int32), torch.zeros(31, 9))
