"""Linear projection on the CPU. Shapes: R rows, C columns, O output rows of the weight."""

import functools

import torch
from torch.nn import functional

_FEW_ROWS = 4
"""Up to here a product is bound by reading the weight, and widening it would cost more."""
_PANEL_BYTES = 2 << 20
"""Bound of the widened weight panel: it stays in the cache, and large weights need no copy."""


@functools.cache
def _has_fast_bfloat16_products() -> bool:
    # The instruction set is part of every applicability key, so bits may depend on it. With AVX2
    # alone a bfloat16 product of many rows runs at a twentieth of the float32 rate.
    return "AVX512" in torch.backends.cpu.get_cpu_capability()


def _linear_widened(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Accumulate in float32 over panels of weight rows; round each output once."""
    num_outputs, columns = weight.shape
    panel_rows = max(64, _PANEL_BYTES // (4 * columns))
    wide = x.float()
    out = torch.empty((x.shape[0], num_outputs), dtype=x.dtype)
    panel = torch.empty((min(panel_rows, num_outputs), columns))
    for start in range(0, num_outputs, panel_rows):
        piece = weight[start : start + panel_rows]
        widened = panel[: piece.shape[0]].copy_(piece)
        offset = None if bias is None else bias[start : start + panel_rows].float()
        out[:, start : start + panel_rows] = functional.linear(wide, widened, offset)
    return out


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x weight^T + bias`` of [R, C] and [O, C]: float32 sums, rounded once to [R, O]."""
    if x.dtype == torch.bfloat16 and x.shape[0] > _FEW_ROWS and not _has_fast_bfloat16_products():
        return _linear_widened(x, weight, bias)
    return functional.linear(x, weight, bias)
