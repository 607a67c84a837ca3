"""Linear projection by E4M3 weights on the CPU.

Shapes: R rows, C columns (even), O output rows, P rows of a panel. Bits are read as little-endian
words of two elements, so panels come in the order of two lanes (:mod:`kernels.panel_product`).

The bits of an E4M3 value, the sign at the top and the rest shifted below it, are a float16 of 2^-8
times the value, subnormals included; widening is then one conversion, ten times as fast as torch's
own on a CPU. The 2^8 joins the scale, which multiplies the sums. A NaN code is read as 480:
:func:`kernels.float8.has_nan` is for the check at load.
"""

import functools

import torch

from kernels.panel_product import panel_product

LANES = 2
"""Elements per 16-bit word."""
_VALUE_BITS = 0xBF80 - 0x10000
"""Sign, low four exponent bits and three mantissa bits of a float16, as a signed word."""
_BIAS = 2.0**8


def decode_panel(weight: torch.Tensor, panel: torch.Tensor) -> None:
    """Fill float32 [P, C] with 2^-8 times E4M3 [P, C] (contiguous), exact, in lane order."""
    num_rows, columns = panel.shape
    # Each byte goes to the top; the arithmetic shift keeps its sign there, the mask clears a copy.
    to_the_top = torch.tensor([[8], [0]], dtype=torch.int16)
    bits = torch.bitwise_left_shift(weight.view(torch.int16).unsqueeze(1), to_the_top)
    bits.bitwise_right_shift_(1).bitwise_and_(_VALUE_BITS)
    panel.view(num_rows, LANES, columns // LANES).copy_(bits.view(torch.float16))


def _fp8_linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, *, invariant: bool
) -> torch.Tensor:
    """``scale * sum(x * weight)``: float32 sums, the scale last, one rounding to [R, O]."""

    def decode(start: int, stop: int, panel: torch.Tensor) -> None:
        decode_panel(weight[start:stop], panel)

    sums = panel_product(x, weight.shape[0], LANES, decode, invariant=invariant)
    return sums.mul_(scale * _BIAS).to(x.dtype)


fp8_linear = functools.partial(_fp8_linear, invariant=False)
fp8_linear_invariant = functools.partial(_fp8_linear, invariant=True)
