"""Decoding of NVFP4 panels to float32 with whole-tensor operations. Multiplies nothing.

Shapes: P rows of a panel, C columns. Bits are read as little-endian words of four elements, so
a panel comes out in the order of four lanes (see :mod:`kernels.panel_product`).

A code's sign and three other bits, moved to the top of the exponent's low bits, are a float16 of
its value times 2^-14, subnormals included; widening is then one conversion. The scales of a block
are looked up with the 2^14 inside, so the product of code and block scale is exact: 6 significant
bits.
"""

import functools

import torch

LANES = 4
"""Elements per 16-bit word."""
_CODE_BITS = 0x8E00 - 0x10000
"""Sign, two exponent bits and one mantissa bit of a float16, as a signed word."""


@functools.cache
def _block_scale_bytes() -> bytearray:
    """256 entries of 16 bytes: each E4M3 value times 2^14 as four equal float32.

    Kept as bytes: a tensor that outlives a call would count as memory that somebody holds.
    """
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    values = codes.view(torch.float8_e4m3fn).float() * 2.0**14
    return bytearray(values.repeat_interleave(LANES).view(torch.uint8).tolist())


def decode_panel(codes: torch.Tensor, block_scales: torch.Tensor, panel: torch.Tensor) -> None:
    """Fill a panel with code times block scale, exact, in lane order.

    Args:
        codes: uint8 [P, C / 2], contiguous.
        block_scales: float8_e4m3fn [P, C / 16]; a NaN code makes its block NaN.
        panel: float32 [P, C], overwritten.
    """
    num_rows, columns = panel.shape
    index = block_scales.view(torch.uint8).to(torch.int32).view(-1)
    table = torch.frombuffer(_block_scale_bytes(), dtype=torch.complex128)
    scales = torch.index_select(table, 0, index).view(torch.float32)
    words = codes.view(torch.int16).unsqueeze(1)
    # The nibble goes to the top four bits; the arithmetic shift then leaves the sign there.
    to_the_top = torch.tensor([[12], [8], [4], [0]], dtype=torch.int16)
    bits = torch.bitwise_left_shift(words, to_the_top)
    bits.bitwise_right_shift_(3).bitwise_and_(_CODE_BITS)
    lanes = panel.view(num_rows, LANES, columns // LANES)
    lanes.copy_(bits.view(torch.float16)).mul_(scales.view(num_rows, 1, columns // LANES))
