"""A gated mixture of experts in C++; an expert's weights are read once, where they lie.

Shapes: R rows, k experts per row, E experts, H hidden size, I intermediate size.
"""

import torch

from kernels.grouped_moe.records import Bank, NvFp4Bank, Routing
from kernels.kernel_sets import require
from kernels.native.calls import NVFP4, TYPES, Flag, Kind, Operand, operation, ordered_columns
from kernels.native.library import run

_OP = "grouped_moe"


def routed(x: torch.Tensor, routing: Routing, bank: Bank) -> torch.Tensor:
    """The weighted sum of each row's experts, added by ascending expert id; float32 [R, H]."""
    return _mixture(x, routing.expert_ids, routing.weights, bank)


def expert(x: torch.Tensor, bank: Bank, index: int) -> torch.Tensor:
    """``down(silu(gate x) * up x)`` of rows [r, H]; float32 [r, H].

    A packed bank is computed in float32 throughout. A plain one rounds the outputs of both products
    and the activations to its dtype.
    """
    require(0 <= index < bank.num_experts, _OP, f"an expert below {bank.num_experts}", index)
    ids = torch.full((x.shape[0], 1), index, dtype=torch.int64)
    return _mixture(x, ids, torch.ones(x.shape[0], 1), bank)


def _mixture(
    x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor, bank: Bank
) -> torch.Tensor:
    x, expert_ids, weights = x.contiguous(), expert_ids.contiguous(), weights.contiguous()
    rows, top_k = expert_ids.shape
    hidden, inner = bank.hidden_size, bank.intermediate_size
    pairs = rows * top_k
    flags = Flag.NONE
    parts: tuple[Operand, ...]
    if isinstance(bank, NvFp4Bank):
        dtypes = bank.gate_up_row_scales.dtype, bank.down_row_scales.dtype
        require(dtypes[0] == dtypes[1], _OP, "row scales of one dtype", dtypes)
        weight = NVFP4
        if bank.down_row_scales.dtype == torch.float16:
            flags = Flag.HALF_SCALES
        parts = (
            bank.gate_up_codes,
            bank.gate_up_block_scales,
            bank.gate_up_row_scales,
            bank.down_codes,
            bank.down_block_scales,
            bank.down_row_scales,
        )
    else:
        dtypes = bank.gate_up.dtype, bank.down.dtype
        require(dtypes == (x.dtype, x.dtype), _OP, f"a bank of {x.dtype}", dtypes)
        whole = bank.gate_up.is_contiguous() and bank.down.is_contiguous()
        require(whole, _OP, "contiguous parts", "strided ones")
        weight = TYPES[x.dtype]
        parts = (bank.gate_up, None, None, bank.down, None, None)
    out = torch.empty((rows, hidden))
    floats = rows * ordered_columns(hidden) + pairs * (2 * inner + ordered_columns(inner))
    integers = 2 * bank.num_experts + 2 + pairs
    op = operation(
        Kind.EXPERTS,
        x.dtype,
        weight=weight,
        flags=flags,
        sizes=(top_k, bank.num_experts, hidden, inner),
        operands=(
            x,
            expert_ids,
            weights,
            *parts,
            out,
            torch.empty(floats // 2 + 1 + integers, dtype=torch.int64),
        ),
    )
    run(op, 1, rows)
    return out
