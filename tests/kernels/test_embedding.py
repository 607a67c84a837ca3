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


@pytest.mark.parametrize("bad", [-1, 31])
def test_refuses_ids_outside_the_vocabulary(bad: int) -> None:
    with pytest.raises(ValueError, match=r"token ids in \[0, 31\)"):
        embedding(torch.tensor([3, bad]), torch.zeros(31, 9))


def test_refuses_other_integer_types() -> None:
    with pytest.raises(ValueError, match="int64"):
        embedding(torch.tensor([3], dtype=torch.int32), torch.zeros(31, 9))
