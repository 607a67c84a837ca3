import pytest
import torch

from kernels.rms_norm.api import rms_norm

SETS = ("torch-cpu/1", "torch-cpu-invariant/1")
# float32: sums of up to 577 squares in another order. bfloat16: one rounding, which near a tie
# falls to the neighbour, at most 2^-7 apart.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7}


def equals_reference(x, weight, offset: bool, kernel_set: str) -> None:
    expected = rms_norm(x, weight, 1e-5, offset, kernel_set="torch-reference/1")
    actual = rms_norm(x, weight, 1e-5, offset, kernel_set=kernel_set)
    assert actual.dtype == x.dtype
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[x.dtype], atol=1e-6)
    assert torch.equal(actual, rms_norm(x, weight, 1e-5, offset, kernel_set=kernel_set))


@pytest.mark.parametrize("hidden", [1, 3, 63, 65, 577])
def test_equals_reference(rows: int, hidden: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, hidden).to(dtype), torch.randn(hidden).to(dtype)
    for kernel_set in SETS:
        equals_reference(x, weight, False, kernel_set)


@pytest.mark.parametrize("shape", [(1, 1), (3, 65), (3, 4, 256), (65, 1, 512)])
@pytest.mark.parametrize("kernel_set", SETS)
def test_offset_heads_and_no_weight_equal_reference(
    shape: tuple[int, ...], dtype: torch.dtype, kernel_set: str
) -> None:
    x, weight = torch.randn(shape).to(dtype), (torch.randn(shape[-1]) * 0.1).to(dtype)
    equals_reference(x, weight, False, kernel_set)
    equals_reference(x, weight, True, kernel_set)
    equals_reference(x, None, False, kernel_set)
    sliced = torch.randn(shape[0], 6, 32).to(dtype)[:, :4]  # heads of a larger result, as in use
    equals_reference(sliced, None, False, kernel_set)


@pytest.mark.parametrize("kernel_set", [*SETS, "torch-reference/1"])
def test_offset_keeps_the_low_bits_of_a_small_weight(kernel_set: str) -> None:
    x = torch.tensor([[3.0, 3.0]], dtype=torch.bfloat16)
    weight = torch.tensor([0.0, 2**-9], dtype=torch.bfloat16)  # 1 + w rounds to 1 in bfloat16
    scaled = rms_norm(x, weight, 7.0, True, kernel_set=kernel_set)
    # 3 / sqrt(9 + 7) = 0.75; 0.75 (1 + 2^-9) lies between 0.75 and 0.75 + 2^-8, nearer to 0.75,
    # while 1.5 (1 + 3 2^-9) shows the added bits.
    assert scaled.tolist() == [[0.75, 0.75]]
    weight[1] = 3 * 2**-9
    scaled = rms_norm(x, weight, 7.0, True, kernel_set=kernel_set)
    assert scaled.tolist() == [[0.75, 0.75 + 2**-8]]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(5, 640), (3, 4, 256)])
def test_bits_of_gemma_norms_in_transformers(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm

    x, weight = torch.randn(shape).to(dtype), (torch.randn(shape[-1]) * 0.1).to(dtype)
    offset, plain = Gemma3RMSNorm(shape[-1]), Gemma4RMSNorm(shape[-1])
    for module in (offset, plain):
        module.weight.data = weight
    bare = Gemma4RMSNorm(shape[-1], with_scale=False)
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2**-7}[dtype]
    with torch.no_grad():
        for module, w, unit_offset in (
            (offset, weight, True),
            (plain, weight, False),
            (bare, None, False),
        ):
            actual = rms_norm(x, w, 1e-6, unit_offset)
            expected = module(x)
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=1e-7)
            # The same rounding points: all but values near a tie agree in every bit.
            if dtype == torch.bfloat16:
                assert (actual != expected).float().mean() < 1e-3


def test_a_row_does_not_depend_on_its_neighbours(dtype: torch.dtype) -> None:
    x, weight = torch.randn(65, 63).to(dtype), torch.randn(63).to(dtype)
    assert torch.equal(rms_norm(x, weight, 1e-5)[-1:], rms_norm(x[-1:], weight, 1e-5))


def test_reference_by_hand() -> None:
    x, weight = torch.tensor([[3.0, 4.0]]), torch.tensor([2.0, -1.0])
    expected = torch.tensor([[6 / 3.5, -4 / 3.5]])  # mean square 12.5, minus a quarter: 3.5^2
    torch.testing.assert_close(rms_norm(x, weight, -0.25, kernel_set="torch-reference/1"), expected)


def test_refuses_what_does_not_fit() -> None:
    x = torch.zeros(2, 8)
    with pytest.raises(ValueError, match=r"weight \[8\]"):
        rms_norm(x, torch.zeros(7), 1e-5)
    with pytest.raises(ValueError, match=r"float32, got torch.bfloat16"):
        rms_norm(x, torch.zeros(8, dtype=torch.bfloat16), 1e-5)
    with pytest.raises(ValueError, match=r"x \[rows, hidden\]"):
        rms_norm(x[0], torch.zeros(8), 1e-5)
    with pytest.raises(ValueError, match="a weight to offset"):
        rms_norm(x, None, 1e-5, True)
