import pytest
import torch
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeRMSNormGated

from kernels.gated_norm.api import gated_norm

SETS = ("torch-cpu/1", "torch-cpu-invariant/1")
# float32: a mean of up to 128 squares in another order. bfloat16: one rounding.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2**-7}


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize(("heads", "size"), [(1, 1), (1, 128), (3, 10), (3, 65)])
def test_equals_reference(
    rows: int, heads: int, size: int, kernel_set: str, dtype: torch.dtype
) -> None:
    x, gate = torch.randn(2, rows, heads, size).to(dtype)
    weight = torch.randn(size).to(dtype)
    expected = gated_norm(x, gate, weight, 1e-6, kernel_set="torch-reference/1")
    actual = gated_norm(x, gate, weight, 1e-6, kernel_set=kernel_set)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[dtype], atol=1e-6)


def test_equals_transformers() -> None:
    theirs = Qwen3_5MoeRMSNormGated(32, eps=1e-6)
    torch.nn.init.normal_(theirs.weight)
    x, gate = torch.randn(2, 14, 32)
    actual = gated_norm(x, gate, theirs.weight.detach(), 1e-6)
    torch.testing.assert_close(actual, theirs(x, gate).detach())


@pytest.mark.parametrize("size", [10, 128])
def test_invariant_set_computes_each_row_alone(size: int, dtype: torch.dtype) -> None:
    x, gate = torch.randn(2, 65, 3, size).to(dtype)
    weight = torch.randn(size).to(dtype)
    whole = gated_norm(x, gate, weight, 1e-6, kernel_set=SETS[1])
    for row in range(65):
        alone = gated_norm(x[row : row + 1].clone(), gate[row : row + 1].clone(), weight, 1e-6)
        assert torch.equal(whole[row : row + 1], alone)


def test_refuses_what_does_not_fit() -> None:
    x, weight = torch.zeros(2, 8), torch.zeros(8)
    with pytest.raises(ValueError, match=r"gate \[2, 8\]"):
        gated_norm(x, x[:1], weight, 1e-6)
    with pytest.raises(ValueError, match=r"weight \[8\]"):
        gated_norm(x, x, weight[:7], 1e-6)
    with pytest.raises(ValueError, match=r"all torch.float32"):
        gated_norm(x, x.bfloat16(), weight, 1e-6)
