import pytest
import torch

from kernels.rope.api import angles, rope

SETS = ("torch-cpu/1", "torch-cpu-invariant/1", "torch-reference/1")
# One product-sum per element: a few units in the last place of values up to about 6.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-5}


@pytest.mark.parametrize("half", [1, 3, 16, 33, 256])
@pytest.mark.parametrize("heads", [1, 3, 12])
def test_equals_reference(rows: int, heads: int, half: int, dtype: torch.dtype) -> None:
    x = torch.randn(rows, heads + 2, 2 * half).to(dtype)[:, :heads]  # a slice, as in use
    turn = torch.randn(rows, half)
    cos, sin = angles(turn.cos(), turn.sin())
    expected = rope(x, cos, sin, kernel_set="torch-reference/1")
    for kernel_set in SETS[:2]:
        actual = rope(x, cos, sin, kernel_set=kernel_set)
        assert actual.shape == x.shape
        assert actual.dtype == dtype
        torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE[dtype])
        assert torch.equal(actual, rope(x, cos, sin, kernel_set=kernel_set))


@pytest.mark.parametrize("kernel_set", SETS)
def test_pairs_of_frequency_zero_keep_their_bits(
    rows: int, dtype: torch.dtype, kernel_set: str
) -> None:
    # Proportional tables of a head of 512: the first 64 pairs turn, the others have cos 1, sin 0.
    x, turn = torch.randn(rows, 2, 512).to(dtype), torch.zeros(rows, 256)
    turn[:, :64] = torch.randn(rows, 64)
    actual = rope(x, *angles(turn.cos(), turn.sin()), kernel_set=kernel_set)
    first = rope(
        torch.cat((x[..., :64], x[..., 256:320]), dim=-1),
        *angles(turn[:, :64].cos(), turn[:, :64].sin()),
        kernel_set="torch-reference/1",
    )
    assert torch.equal(actual[..., 64:256], x[..., 64:256])
    assert torch.equal(actual[..., 320:], x[..., 320:])
    turned = torch.cat((actual[..., :64], actual[..., 256:320]), dim=-1)
    torch.testing.assert_close(turned, first, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("kernel_set", SETS)
def test_rotates_pairs_as_complex_numbers(kernel_set: str) -> None:
    x, turn = torch.randn(5, 2, 12), torch.randn(5, 6)
    pairs = torch.complex(x[..., :6], x[..., 6:]) * torch.polar(torch.ones(5, 6), turn)[:, None]
    expected = torch.cat((pairs.real, pairs.imag), dim=-1)
    actual = rope(x, *angles(turn.cos(), turn.sin()), kernel_set=kernel_set)
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6)


def test_refuses_what_does_not_fit() -> None:
    cos, sin = angles(torch.zeros(2, 4), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="even head_dim"):
        rope(torch.zeros(2, 1, 7), cos, sin)
    with pytest.raises(ValueError, match=r"cos \[3, 1, 1, 4\]"):
        rope(torch.zeros(3, 1, 8), cos, sin)
    with pytest.raises(ValueError, match="float32 angles"):
        rope(torch.zeros(2, 1, 8), cos.double(), sin)
