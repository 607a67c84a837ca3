"""Products with packed NVFP4 rows, and their values, by kernel set."""

from collections.abc import Callable

import torch

from kernels.kernel_sets import (
    NATIVE_CPU,
    TORCH_CPU,
    TORCH_CPU_INVARIANT,
    TORCH_REFERENCE,
    choose,
    require,
)
from kernels.nvfp4 import cpu, dequantize, native, reference
from kernels.nvfp4.records import BLOCK_COLUMNS, NvFp4Rows

NvFp4Linear = Callable[[torch.Tensor, NvFp4Rows], torch.Tensor]
Dequantize = Callable[[NvFp4Rows, torch.dtype], torch.Tensor]


def select(kernel_set: str) -> NvFp4Linear:
    """The unchecked implementation in a kernel set, for callers that check once."""
    implementations: dict[str, NvFp4Linear] = {
        TORCH_CPU: cpu.nvfp4_linear,
        TORCH_CPU_INVARIANT: cpu.nvfp4_linear_invariant,
        NATIVE_CPU: native.nvfp4_linear,
        TORCH_REFERENCE: reference.nvfp4_linear,
    }
    return choose("nvfp4", kernel_set, implementations, _triton)


def _triton() -> NvFp4Linear:
    from kernels.nvfp4 import kernel

    return kernel.nvfp4_linear


def select_dequantize(kernel_set: str) -> Dequantize:
    """Packed rows to a whole plain weight, as :func:`select`; equal bits in every set."""
    implementations: dict[str, Dequantize] = {
        TORCH_CPU: dequantize.dequantize,
        TORCH_CPU_INVARIANT: dequantize.dequantize,
        NATIVE_CPU: dequantize.dequantize,
        TORCH_REFERENCE: reference.dequantize,
    }
    return choose("nvfp4", kernel_set, implementations, _triton_dequantize)


def _triton_dequantize() -> Dequantize:
    from kernels.nvfp4 import kernel

    return kernel.dequantize


def check_rows(rows: NvFp4Rows) -> None:
    """Raise a ValueError unless the parts of packed rows fit each other."""
    require(
        rows.codes.ndim == 2 and rows.codes.dtype == torch.uint8,
        "nvfp4",
        "codes uint8 [outputs, columns / 2]",
        (rows.codes.dtype, tuple(rows.codes.shape)),
    )
    num_rows, columns = rows.num_rows, rows.num_columns
    require(
        columns > 0 and columns % BLOCK_COLUMNS == 0, "nvfp4", "columns a multiple of 16", columns
    )
    require(
        rows.block_scales.dtype == torch.float8_e4m3fn
        and rows.block_scales.shape == (num_rows, columns // BLOCK_COLUMNS),
        "nvfp4",
        f"block_scales float8_e4m3fn [{num_rows}, {columns // BLOCK_COLUMNS}]",
        (rows.block_scales.dtype, tuple(rows.block_scales.shape)),
    )
    require(
        rows.row_scales.dtype in (torch.float32, torch.float16)
        and rows.row_scales.shape == (num_rows,),
        "nvfp4",
        f"row_scales float32 or float16 [{num_rows}]",
        (rows.row_scales.dtype, tuple(rows.row_scales.shape)),
    )
    require(
        rows.codes.is_contiguous() and rows.block_scales.is_contiguous(),
        "nvfp4",
        "contiguous codes and block_scales",
        (rows.codes.stride(), rows.block_scales.stride()),
    )
    devices = {rows.codes.device, rows.block_scales.device, rows.row_scales.device}
    require(len(devices) == 1, "nvfp4", "one device", devices)


def nvfp4_linear(x: torch.Tensor, rows: NvFp4Rows, *, kernel_set: str = TORCH_CPU) -> torch.Tensor:
    """``x weight^T`` of x [R, C] (bfloat16 or float32) and packed rows; float32 [R, O]."""
    implementation = select(kernel_set)
    check_rows(rows)
    require(
        x.ndim == 2 and x.shape[1] == rows.num_columns,
        "nvfp4",
        f"x [rows, {rows.num_columns}]",
        tuple(x.shape),
    )
    require(
        x.dtype in (torch.float32, torch.bfloat16), "nvfp4", "x of float32 or bfloat16", x.dtype
    )
    require(x.device == rows.codes.device, "nvfp4", f"x on {rows.codes.device}", x.device)
    return implementation(x, rows)
