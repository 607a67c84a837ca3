"""NVFP4 weights, the oracle. Shapes: R rows, O output rows, C columns."""

import torch

from kernels.nvfp4.records import BLOCK_COLUMNS, CODE_MAGNITUDES, NvFp4Rows


def exact_values(rows: NvFp4Rows) -> torch.Tensor:
    """Every element [O, C] in float64, where ``code * block scale * row scale`` is exact."""
    table = torch.tensor(CODE_MAGNITUDES, dtype=torch.float64, device=rows.codes.device)
    table = torch.cat([table, -table])
    nibbles = torch.stack([rows.codes & 15, rows.codes >> 4], dim=-1).flatten(1)
    blocks = rows.block_scales.double().repeat_interleave(BLOCK_COLUMNS, dim=1)
    return table[nibbles.long()] * blocks * rows.row_scales.double()[:, None]


def nvfp4_linear(x: torch.Tensor, rows: NvFp4Rows) -> torch.Tensor:
    """``x weight^T`` in float64 of [R, C] and packed [O, C], rounded once to float32 [R, O]."""
    return (x.double() @ exact_values(rows).T).float()


def dequantize(rows: NvFp4Rows, dtype: torch.dtype) -> torch.Tensor:
    """Weight [O, C]: the exact value rounded to float32; bfloat16 is rounded from that."""
    return exact_values(rows).float().to(dtype)
