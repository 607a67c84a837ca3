"""Making NVFP4 rows from a plain weight: for synthetic checkpoints and tests. Deterministic.

Round to nearest, ties to the even code; no calibration and no search over scales. Shapes: O output
rows, C columns.
"""

import torch

from kernels.float8 import MAX_VALUE
from kernels.nvfp4.records import BLOCK_COLUMNS, CODE_MAGNITUDES, NvFp4Rows


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Pack codes in [0, 16), uint8 [O, C], to bytes [O, C / 2]: the even element lies low."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Codes [O, C] of packed bytes [O, C / 2]; the inverse of :func:`pack`."""
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)


def quantize(weight: torch.Tensor, row_scales: torch.Tensor | None = None) -> NvFp4Rows:
    """Round a weight to NVFP4.

    The block scale is the largest magnitude of the block over 6 and the row scale, rounded to
    E4M3; a block too small for the smallest scale becomes zero.

    Args:
        weight: Finite, [O, C] with C a multiple of 16.
        row_scales: float32 [O], positive. By default one scale for the whole weight, its largest
            magnitude over 6 * 448 (1 for a zero weight), repeated per row.

    Raises:
        ValueError: When the columns are no multiple of 16, or something is not finite.
    """
    if weight.ndim != 2 or weight.shape[1] % BLOCK_COLUMNS:
        raise ValueError(
            f"quantize: expected weight [outputs, multiple of 16], got {tuple(weight.shape)}"
        )
    wide = weight.float()
    if not bool(wide.isfinite().all()):
        raise ValueError("quantize: expected a finite weight, got NaN or Inf")
    largest = CODE_MAGNITUDES[-1]
    if row_scales is None:
        scale = wide.abs().amax() / (largest * MAX_VALUE)
        row_scales = torch.where(scale > 0, scale, 1.0).repeat(weight.shape[0])
    blocks = wide.view(weight.shape[0], -1, BLOCK_COLUMNS) / row_scales[:, None, None]
    wanted = (blocks.abs().amax(dim=-1) / largest).clamp_(max=MAX_VALUE)
    block_scales = wanted.to(torch.float8_e4m3fn)
    divisors = block_scales.float().unsqueeze(-1)
    ratios = torch.where(divisors > 0, blocks / divisors, 0.0).flatten(1)
    return NvFp4Rows(
        codes=pack(_nearest_codes(ratios)), block_scales=block_scales, row_scales=row_scales
    )


def _nearest_codes(ratios: torch.Tensor) -> torch.Tensor:
    magnitudes = torch.tensor(CODE_MAGNITUDES)
    midpoints = (magnitudes[1:] + magnitudes[:-1]) / 2
    down = torch.bucketize(ratios.abs(), midpoints, right=False)
    up = torch.bucketize(ratios.abs(), midpoints, right=True)
    codes = torch.where(down % 2 == 0, down, up)
    return (codes + 8 * ratios.signbit().long()).to(torch.uint8)
