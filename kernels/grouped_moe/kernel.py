"""A gated mixture of experts in Triton.

R rows, k experts per row, P = R k pairs of a row and a rank, E experts, H hidden size, I
intermediate size.

    logits [R, E] -> ids, weights [R, k] -> pairs grouped by expert
    x [R, H] -> gate, up [P, 2 I] -> activation [P, I] -> down [P, H] -> weighted sums [R, H]

Nothing waits for the device. Between the kernels a packed bank has float32 and a plain one its
dtype, as on a CPU.

Bitwise: repeats; a row's bits depend on that row, its routing and the weights alone. A row's
experts are summed by ascending rank, whatever tile each pair stood in.
"""

from collections.abc import Iterator

import torch
import triton.language as tl

from kernels import configurations
from kernels.configurations import ELEMENTWISE, MOE_SHARED_GATE
from kernels.device_code import (
    FLOATS,
    Variant,
    one_binary,
    require_device,
    sigmoid,
    type_name,
    variant,
    widen,
    with_dense_rows,
)
from kernels.gated_activation.kernel import silu_gated
from kernels.grouped_moe.product_kernel import (
    dense_product,
    dense_product_kernel,
    packed_product,
    packed_product_kernel,
    product_variants,
)
from kernels.grouped_moe.records import Bank, Expert, NvFp4Bank, Routing
from kernels.grouped_moe.routing_kernel import (
    OP,
    count_kernel,
    group_pairs,
    place_kernel,
    route,
    route_kernel,
    routing_variants,
)
from kernels.nvfp4.records import NvFp4Rows

__all__ = [
    "count_kernel",
    "dense_product_kernel",
    "packed_product_kernel",
    "place_kernel",
    "route",
    "route_kernel",
    "routed",
    "shared",
    "variants",
]


@one_binary
def weighted_sum_kernel(
    products, weights, out, top_k, weight_row, weight_rank, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """``out[row]`` = the sum of weight times product over the ranks of a row, ascending."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    total = tl.zeros([BLOCK], tl.float32)
    for rank in range(0, top_k):
        weight = tl.load(weights + row * weight_row + rank * weight_rank)
        source = products + (row * top_k + rank) * SIZE + column
        total += weight * widen(tl.load(source, mask=inside, other=0.0))
    tl.store(out + row * SIZE + column, total, mask=inside)


@one_binary
def shared_gate_kernel(
    x, gate_weight, product, x_row, gate_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """``product *= sigmoid(x gate_weight)`` of one row."""
    row = tl.program_id(0).to(tl.int64)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, SIZE, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < SIZE
        left = tl.load(x + row * x_row + column, mask=inside, other=0.0)
        right = tl.load(gate_weight + column * gate_stride, mask=inside, other=0.0)
        sums += widen(left) * widen(right)
    gate = sigmoid(tl.sum(sums, axis=0))
    for start in range(0, SIZE, BLOCK):
        column = start + tl.arange(0, BLOCK)
        target = product + row * SIZE + column
        values = tl.load(target, mask=column < SIZE, other=0.0)
        tl.store(target, gate * values, mask=column < SIZE)


def routed(x: torch.Tensor, routing: Routing, bank: Bank) -> torch.Tensor:
    """The weighted sum of each row's experts, added by ascending rank; float32 [R, H].

    Ids lie in [0, E), as those of :func:`route` do: what another would give is never computed.
    """
    require_device(OP, x, routing.weights)
    rows, top_k = routing.expert_ids.shape
    out = torch.empty(x.shape, device=x.device)
    row_bytes = 4 * top_k * (3 * bank.intermediate_size + bank.hidden_size)
    step = max(1, configurations.MOE_WORKSPACE_BYTES // row_bytes)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        products = _products(x[part], routing.expert_ids[part], bank)
        _weighted_sum(products, routing.weights[part], out[part])
    return out


def _products(x: torch.Tensor, expert_ids: torch.Tensor, bank: Bank) -> torch.Tensor:
    """What each pair's expert makes of its row, [P, H]."""
    top_k = expert_ids.shape[1]
    groups = group_pairs(expert_ids.contiguous(), bank.num_experts)
    if isinstance(bank, NvFp4Bank):
        first = _all_rows(bank.gate_up_codes, bank.gate_up_block_scales, bank.gate_up_row_scales)
        second = _all_rows(bank.down_codes, bank.down_block_scales, bank.down_row_scales)
        gate_up = packed_product(x, top_k, first, 2 * bank.intermediate_size, groups)
        return packed_product(silu_gated(gate_up), 1, second, bank.hidden_size, groups)
    gate_up = dense_product(x, top_k, bank.gate_up, groups)
    return dense_product(silu_gated(gate_up), 1, bank.down, groups)


def _all_rows(
    codes: torch.Tensor, block_scales: torch.Tensor, row_scales: torch.Tensor
) -> NvFp4Rows:
    """Views of a bank's rows, one expert's after the other's."""
    return NvFp4Rows(
        codes=codes.flatten(0, 1),
        block_scales=block_scales.flatten(0, 1),
        row_scales=row_scales.flatten(),
    )


def _weighted_sum(products: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
    rows, size = out.shape
    weighted_sum_kernel[(rows, -(-size // ELEMENTWISE.blocks["BLOCK"]))](
        products,
        weights,
        out,
        weights.shape[1],
        *weights.stride(),
        SIZE=size,
        **ELEMENTWISE.blocks,
        num_warps=ELEMENTWISE.num_warps,
        num_stages=ELEMENTWISE.num_stages,
    )


def shared(
    x: torch.Tensor, bank: Bank, gate_weight: torch.Tensor, *, expert: Expert
) -> torch.Tensor:
    """``sigmoid(x gate_weight^T)`` times expert 0 of a bank; float32 [R, H]."""
    require_device(OP, x, gate_weight)
    rows, size = x.shape
    product = expert(x, bank, 0)
    if rows:
        x = with_dense_rows(x)
        shared_gate_kernel[(rows,)](
            x,
            gate_weight,
            product,
            x.stride(0),
            gate_weight.stride(1),
            SIZE=size,
            **MOE_SHARED_GATE.blocks,
            num_warps=MOE_SHARED_GATE.num_warps,
            num_stages=MOE_SHARED_GATE.num_stages,
        )
    return product


def variants() -> Iterator[Variant]:
    """Of all its kernels; sizes of rows are lengths of loops and masks alone."""
    yield from routing_variants()
    yield from product_variants()
    for dtype in FLOATS:
        name = type_name(dtype)
        pointers = f"products:{name} weights:fp32 out:fp32"
        yield variant(f"{name} sum", weighted_sum_kernel, ELEMENTWISE, pointers, SIZE=2048)
        pointers = f"x:{name} gate_weight:{name} product:fp32"
        yield variant(f"{name} gate", shared_gate_kernel, MOE_SHARED_GATE, pointers, SIZE=2048)
