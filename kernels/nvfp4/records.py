"""Weight rows in NVFP4 as they lie in memory. Computes nothing.

Shapes: O output rows, C columns (a multiple of 16). Value of an element: E2M1 code times the E4M3
scale of its block of 16 times the scale of its row, all multipliers. Codes: magnitude
0, 0.5, 1, 1.5, 2, 3, 4, 6 in the low three bits, sign in bit 3; the even element of a byte lies in
its low nibble.
"""

from dataclasses import dataclass

import torch

BLOCK_COLUMNS = 16
"""Consecutive elements of a row that share one block scale."""
CODE_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitude by the low three bits of a code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NvFp4Rows:
    """Packed weight rows; views of a bank are fine, as long as each part is contiguous."""

    codes: torch.Tensor
    """uint8 [O, C / 2]."""
    block_scales: torch.Tensor
    """float8_e4m3fn [O, C / 16]."""
    row_scales: torch.Tensor
    """float32, or float16 in the published representation, [O]."""

    @property
    def num_rows(self) -> int:
        """Output rows O."""
        return self.codes.shape[0]

    @property
    def num_columns(self) -> int:
        """Columns C, two per byte."""
        return 2 * self.codes.shape[1]

    @property
    def num_bytes(self) -> int:
        """Bytes that a product reads: codes, block scales and row scales."""
        return self.codes.nbytes + self.block_scales.nbytes + self.row_scales.nbytes
