"""Products of grouped rows with the weights of their experts, in Triton.

P pairs of a row and a rank, E experts, O outputs, C columns, T tiles.

One program per tile of pairs and block of outputs. It reads its expert's weights where they lie:
experts that no row goes to are not touched, and a packed weight never exists whole. How many tiles
there are is known on the device alone: programs beyond the last end at once.

Bitwise: repeats; what a pair gets depends on its row and its expert's weights alone: tiles have one
shape, in which it does not depend on the pair's place (:mod:`kernels.linear.kernel`,
:mod:`kernels.nvfp4.kernel`).
"""

from collections.abc import Iterator

import torch
import triton.language as tl

from kernels.configurations import MOE_DENSE, MOE_NVFP4, Configuration
from kernels.device_code import (
    FLOATS,
    WIDE_BYTES,
    Variant,
    narrow,
    one_binary,
    placed_by_size,
    require_device,
    require_reachable,
    type_name,
    variant,
    widen,
)
from kernels.grouped_moe.routing_kernel import OP, Groups
from kernels.linear.kernel import tile_sums
from kernels.nvfp4.kernel import SHIPPED, packed_tile_sums, placed_parts
from kernels.nvfp4.records import NvFp4Rows


@one_binary
def dense_product_kernel(
    x,
    weight,
    num_tiles,
    experts,
    pairs,
    out,
    pairs_per_row,
    num_outputs,
    x_row,
    weight_expert,
    weight_row,
    COLUMNS: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """``out[pair] = x[pair // pairs_per_row] weight[expert]^T``, rounded once."""
    tile = tl.program_id(1)
    if tile >= tl.load(num_tiles):
        return
    expert = tl.load(experts + tile).to(tl.int64)
    pair = tl.load(pairs + tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    output = tl.program_id(0).to(tl.int64) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    has_row, has_output = pair >= 0, output < num_outputs
    x_rows = tl.multiple_of(x + (pair // pairs_per_row)[:, None] * x_row, [ALIGN, ALIGN])
    weight_rows = weight + expert * weight_expert + output[None, :] * weight_row
    weight_rows = tl.multiple_of(weight_rows, [ALIGN, ALIGN])
    sums = tile_sums(x_rows, weight_rows, has_row, has_output, COLUMNS, BLOCK_COLUMNS)
    target = out + pair[:, None] * num_outputs + output[None, :]
    mask = has_row[:, None] & has_output[None, :]
    tl.store(target, narrow(sums, out.dtype.element_ty), mask=mask)


@one_binary
def packed_product_kernel(
    x,
    codes,
    block_scales,
    row_scales,
    num_tiles,
    experts,
    pairs,
    out,
    pairs_per_row,
    num_outputs,
    x_row,
    COLUMNS: tl.constexpr,
    CODE_ALIGN: tl.constexpr,
    SCALE_ALIGN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """``out[pair] = x[pair // pairs_per_row] weight[expert]^T`` in float32."""
    tile = tl.program_id(1)
    if tile >= tl.load(num_tiles):
        return
    expert = tl.load(experts + tile).to(tl.int64)
    pair = tl.load(pairs + tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    output = tl.program_id(0).to(tl.int64) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    has_row, has_output = pair >= 0, output < num_outputs
    x_rows = tl.multiple_of(x + (pair // pairs_per_row)[:, None] * x_row, [16, 16])
    weight_row = expert * num_outputs + output
    code_rows = codes + weight_row[None, :] * (COLUMNS // 2)
    code_rows = tl.multiple_of(code_rows, [CODE_ALIGN, CODE_ALIGN])
    scale_rows = block_scales + weight_row[None, :] * (COLUMNS // 16)
    scale_rows = tl.multiple_of(scale_rows, [SCALE_ALIGN, SCALE_ALIGN])
    sums = packed_tile_sums(
        x_rows, code_rows, scale_rows, has_row, has_output, COLUMNS, BLOCK_COLUMNS
    )
    factors = widen(tl.load(row_scales + weight_row, mask=has_output, other=0.0))
    target = out + pair[:, None] * num_outputs + output[None, :]
    tl.store(target, sums * factors[None, :], mask=has_row[:, None] & has_output[None, :])


def packed_product(
    x: torch.Tensor, pairs_per_row: int, rows: NvFp4Rows, outputs: int, groups: Groups
) -> torch.Tensor:
    """Each pair's row of x times its expert's weight, float32 [P, O].

    Args:
        x: [P / ``pairs_per_row``, C], bfloat16 or float32.
        pairs_per_row: How many pairs of one another share a row of x.
        rows: The weights [E * O, C], one expert's after the other's.
        outputs: O.
        groups: The pairs by expert.
    """
    require_reachable(OP, rows.codes, rows.block_scales, rows.row_scales)
    x, _ = placed_by_size(x)
    codes, scales, aligns = placed_parts(rows.codes, rows.block_scales)
    configuration = MOE_NVFP4[x.dtype, aligns["CODE_ALIGN"] == WIDE_BYTES]
    out = torch.empty((groups.num_pairs, outputs), device=x.device)
    packed_product_kernel[_grid(outputs, groups, configuration)](
        x,
        codes,
        scales,
        rows.row_scales,
        groups.num_tiles,
        groups.experts,
        groups.pairs,
        out,
        pairs_per_row,
        outputs,
        x.stride(0),
        COLUMNS=x.shape[1],
        **aligns,
        **configuration.blocks,
        num_warps=configuration.num_warps,
        num_stages=configuration.num_stages,
    )
    return out


def dense_product(
    x: torch.Tensor, pairs_per_row: int, weight: torch.Tensor, groups: Groups
) -> torch.Tensor:
    """As :func:`packed_product`, by a plain weight [E, O, C] of the dtype of x; in that dtype."""
    require_device(OP, weight)
    (x, align), (weight, _) = placed_by_size(x), placed_by_size(weight)
    configuration = MOE_DENSE[x.dtype, align == WIDE_BYTES]
    outputs = weight.shape[1]
    out = torch.empty((groups.num_pairs, outputs), dtype=x.dtype, device=x.device)
    dense_product_kernel[_grid(outputs, groups, configuration)](
        x,
        weight,
        groups.num_tiles,
        groups.experts,
        groups.pairs,
        out,
        pairs_per_row,
        outputs,
        x.stride(0),
        *weight.stride()[:2],
        COLUMNS=x.shape[1],
        ALIGN=align,
        **configuration.blocks,
        num_warps=configuration.num_warps,
        num_stages=configuration.num_stages,
    )
    return out


def _grid(outputs: int, groups: Groups, configuration: Configuration) -> tuple[int, int]:
    return -(-outputs // configuration.blocks["BLOCK_OUTPUTS"]), groups.max_tiles


def product_variants() -> Iterator[Variant]:
    """Aligned columns and others; sizes differ in the length of a loop alone."""
    groups = "num_tiles:i32 experts:i32 pairs:i32"
    for dtype in FLOATS:
        name = type_name(dtype)
        for is_wide, columns in ((True, 2048), (False, 577)):
            yield variant(
                f"{name} {columns}",
                dense_product_kernel,
                MOE_DENSE[dtype, is_wide],
                f"x:{name} weight:{name} out:{name} {groups}",
                COLUMNS=columns,
                ALIGN=WIDE_BYTES if is_wide else dtype.itemsize,
            )
        for is_wide, columns, scale in SHIPPED:
            align = WIDE_BYTES if is_wide else 1
            yield variant(
                f"{name} {columns} {scale} nvfp4",
                packed_product_kernel,
                MOE_NVFP4[dtype, is_wide],
                f"x:{name} codes:u8 block_scales:u8 row_scales:{scale} out:fp32 {groups}",
                COLUMNS=columns,
                CODE_ALIGN=align,
                SCALE_ALIGN=align,
            )
