"""Products with packed NVFP4 rows, and their values, in Triton.

R rows, O output rows, C columns. A program of a product has a tile of rows and outputs; one of the
values has a block of one row.

Bitwise: products repeat, and a row's bits depend on that row and the weight alone, as in
:mod:`kernels.linear.kernel`. A code times its block's scale has 6 significant bits, which bfloat16
holds, so every product is exact; sums are float32, over ascending blocks of columns, of each block
the even columns first; the row scale multiplies the sum. A NaN scale gives NaN in its output alone;
an infinity in a float32 row gives NaN. Values equal the oracle.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.configurations import ELEMENTWISE, NVFP4_LINEAR
from kernels.device_code import (
    FLOATS,
    WIDE_BYTES,
    Variant,
    dot_exact,
    e4m3,
    narrow,
    one_binary,
    placed_by_size,
    require_device,
    require_reachable,
    type_name,
    variant,
    widen,
)
from kernels.nvfp4.records import NvFp4Rows

OP = "nvfp4"
SHIPPED = ((True, 2048, "fp32"), (True, 2048, "fp16"), (False, 48, "fp32"))
"""Whether a row of codes is a whole number of wide loads, columns, and type of the row scales."""


@triton.jit
def _value(code, scale):
    """E2M1 code (low four bits) times 2^-14 of ``scale``, in float32; exact."""
    # Sign, two exponent bits and one mantissa bit of a float16 of 2^-14 times the value.
    bits = code.to(tl.uint16)
    bits = ((bits & 8) << 12) | ((bits & 7) << 9)
    return bits.to(tl.float16, bitcast=True).to(tl.float32) * scale


@triton.jit
def packed_tile_sums(
    x_rows,
    code_rows,
    scale_rows,
    has_row,
    has_output,
    COLUMNS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Float32 sums of a tile over all columns, without the row scales.

    ``x_rows`` [B, 1], ``code_rows`` and ``scale_rows`` [1, O] point to the first column of each
    row, which the masks ``has_row`` [B] and ``has_output`` [O] may withhold.
    """
    rows: tl.constexpr = has_row.shape[0]
    outputs: tl.constexpr = has_output.shape[0]
    pairs: tl.constexpr = BLOCK_COLUMNS // 2
    groups: tl.constexpr = BLOCK_COLUMNS // 16
    sums = tl.zeros([rows, outputs], tl.float32)
    for start in range(0, COLUMNS, BLOCK_COLUMNS):
        column = start + tl.arange(0, BLOCK_COLUMNS)
        x = tl.load(
            x_rows + column[None, :],
            mask=has_row[:, None] & (column < COLUMNS)[None, :],
            other=0.0,
        )
        byte = start // 2 + tl.arange(0, pairs)
        codes = tl.load(
            code_rows + byte[:, None],
            mask=has_output[None, :] & (byte < COLUMNS // 2)[:, None],
            other=0,
        )
        group = start // 16 + tl.arange(0, groups)
        scales = tl.load(
            scale_rows + group[:, None],
            mask=has_output[None, :] & (group < COLUMNS // 16)[:, None],
            other=0,
        )
        scales = (e4m3(scales) * 16384.0)[:, None, :]  # 2^14
        scales = tl.broadcast_to(scales, [groups, 8, outputs]).reshape(pairs, outputs)
        even, odd = tl.split(x.reshape(rows, pairs, 2))
        sums += dot_exact(even, _value(codes & 15, scales))
        sums += dot_exact(odd, _value(codes >> 4, scales))
    return sums


@one_binary
def nvfp4_linear_kernel(
    x,
    codes,
    block_scales,
    row_scales,
    out,
    num_rows,
    num_outputs,
    x_row,
    row_scale_stride,
    COLUMNS: tl.constexpr,
    CODE_ALIGN: tl.constexpr,
    SCALE_ALIGN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """``out = row_scales * (x (codes * block_scales)^T)`` in float32."""
    output = tl.program_id(0).to(tl.int64) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    row = tl.program_id(1).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    has_row, has_output = row < num_rows, output < num_outputs
    x_rows = tl.multiple_of(x + row[:, None] * x_row, [16, 16])
    code_rows = codes + output[None, :] * (COLUMNS // 2)
    code_rows = tl.multiple_of(code_rows, [CODE_ALIGN, CODE_ALIGN])
    scale_rows = block_scales + output[None, :] * (COLUMNS // 16)
    scale_rows = tl.multiple_of(scale_rows, [SCALE_ALIGN, SCALE_ALIGN])
    sums = packed_tile_sums(
        x_rows, code_rows, scale_rows, has_row, has_output, COLUMNS, BLOCK_COLUMNS
    )
    factors = tl.load(row_scales + output * row_scale_stride, mask=has_output, other=0.0)
    target = out + row[:, None] * num_outputs + output[None, :]
    mask = has_row[:, None] & has_output[None, :]
    tl.store(target, sums * widen(factors)[None, :], mask=mask)


@one_binary
def dequantize_kernel(
    codes,
    block_scales,
    row_scales,
    out,
    row_scale_stride,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``out = codes * block_scales * row_scales``, rounded to float32, then to its dtype."""
    row = tl.program_id(0).to(tl.int64)
    byte = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = byte < COLUMNS // 2
    pair = tl.load(codes + row * (COLUMNS // 2) + byte, mask=inside, other=0)
    scale = tl.load(block_scales + row * (COLUMNS // 16) + byte // 8, mask=inside, other=0)
    scale = e4m3(scale) * 16384.0  # 2^14
    factor = widen(tl.load(row_scales + row * row_scale_stride))
    values = tl.interleave(_value(pair & 15, scale), _value(pair >> 4, scale)) * factor
    column = tl.program_id(1) * 2 * BLOCK + tl.arange(0, 2 * BLOCK)
    target = out + row * COLUMNS + column
    tl.store(target, narrow(values, out.dtype.element_ty), mask=column < COLUMNS)


def placed_parts(
    codes: torch.Tensor, block_scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, int]]:
    """Codes and bytes of block scales, and the alignment that their size alone gives them."""
    codes, code_align = placed_by_size(codes)
    scales, scale_align = placed_by_size(block_scales.view(torch.uint8))
    return codes, scales, {"CODE_ALIGN": code_align, "SCALE_ALIGN": scale_align}


def nvfp4_linear(x: torch.Tensor, rows: NvFp4Rows) -> torch.Tensor:
    """``row_scale * sum(x * (code * block_scale))`` of x [R, C] and packed [O, C]; float32."""
    require_device(OP, x)
    require_reachable(OP, rows.codes, rows.block_scales, rows.row_scales)
    num_rows, outputs = x.shape[0], rows.num_rows
    out = torch.empty((num_rows, outputs), device=x.device)
    if out.numel() == 0:
        return out
    x, _ = placed_by_size(x)
    codes, scales, aligns = placed_parts(rows.codes, rows.block_scales)
    configuration = NVFP4_LINEAR[x.dtype, aligns["CODE_ALIGN"] == WIDE_BYTES]
    blocks = configuration.blocks
    grid = (-(-outputs // blocks["BLOCK_OUTPUTS"]), -(-num_rows // blocks["BLOCK_ROWS"]))
    nvfp4_linear_kernel[grid](
        x,
        codes,
        scales,
        rows.row_scales,
        out,
        num_rows,
        outputs,
        x.stride(0),
        rows.row_scales.stride(0),
        COLUMNS=x.shape[1],
        **aligns,
        **blocks,
        num_warps=configuration.num_warps,
        num_stages=configuration.num_stages,
    )
    return out


def dequantize(rows: NvFp4Rows, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Weight [O, C]: the exact value rounded to float32; bfloat16 is rounded from that."""
    require_reachable(OP, rows.codes, rows.block_scales, rows.row_scales)
    out = torch.empty((rows.num_rows, rows.num_columns), dtype=dtype, device=rows.codes.device)
    if out.numel() == 0:
        return out
    dequantize_kernel[(rows.num_rows, -(-rows.codes.shape[1] // ELEMENTWISE.blocks["BLOCK"]))](
        rows.codes,
        rows.block_scales.view(torch.uint8),
        rows.row_scales,
        out,
        rows.row_scales.stride(0),
        COLUMNS=rows.num_columns,
        **ELEMENTWISE.blocks,
        num_warps=ELEMENTWISE.num_warps,
        num_stages=ELEMENTWISE.num_stages,
    )
    return out


def variants() -> Iterator[Variant]:
    """Both kernels; sizes differ in the length of a loop alone."""
    for dtype in FLOATS:
        name = type_name(dtype)
        for is_wide, columns, scale in SHIPPED:
            parts = f"codes:u8 block_scales:u8 row_scales:{scale}"
            yield variant(
                f"{name} {columns} {scale}",
                nvfp4_linear_kernel,
                NVFP4_LINEAR[dtype, is_wide],
                f"x:{name} {parts} out:fp32",
                COLUMNS=columns,
                CODE_ALIGN=WIDE_BYTES if is_wide else 1,
                SCALE_ALIGN=WIDE_BYTES if is_wide else 1,
            )
            if is_wide:
                yield variant(
                    f"{name} {columns} {scale} values",
                    dequantize_kernel,
                    ELEMENTWISE,
                    f"{parts} out:{name}",
                    COLUMNS=columns,
                )
