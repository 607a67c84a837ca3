"""A gated mixture of experts, by kernel set.

The product with one expert stands behind one function, ``expert``; all else is built on it.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

import kernels.gated_activation.api as gated_activation
import kernels.linear.api as linear
import kernels.nvfp4.api as nvfp4
from kernels.grouped_moe import cpu, native, reference
from kernels.grouped_moe.records import Bank, DenseBank, Expert, NvFp4Bank, Routing
from kernels.kernel_sets import (
    NATIVE_CPU,
    TORCH_CPU,
    TORCH_CPU_INVARIANT,
    TORCH_REFERENCE,
    TRITON,
    choose,
    require,
)

_OP = "grouped_moe"


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupedMoe:
    """The unchecked functions of one kernel set."""

    route: Callable[[torch.Tensor, int], Routing]
    """Router logits [R, E] and k to the experts of each row."""
    expert: Expert
    """Rows [R, H], a bank and an index to float32 [R, H]."""
    routed: Callable[[torch.Tensor, Routing, Bank], torch.Tensor]
    """Rows [R, H] to the weighted sums of their experts, float32 [R, H]."""
    shared: Callable[[torch.Tensor, Bank, torch.Tensor], torch.Tensor]
    """Rows, a bank of one expert and its gate's weight [1, H] to the gated product, float32."""


def select(kernel_set: str) -> GroupedMoe:
    """The unchecked functions in a kernel set, for callers that check once."""
    builders: dict[str, Callable[[], GroupedMoe]] = {
        TORCH_CPU: _cpu,
        TORCH_CPU_INVARIANT: _cpu_invariant,
        NATIVE_CPU: _native,
        TORCH_REFERENCE: _reference,
    }
    return choose(_OP, kernel_set, builders, _triton)()


def _cpu() -> GroupedMoe:
    expert = _composed_expert(TORCH_CPU)
    return GroupedMoe(
        route=cpu.route,
        expert=expert,
        routed=functools.partial(cpu.routed, expert=expert),
        shared=functools.partial(cpu.shared, expert=expert),
    )


def _cpu_invariant() -> GroupedMoe:
    expert = _composed_expert(TORCH_CPU_INVARIANT)
    return GroupedMoe(
        route=cpu.route_invariant,
        expert=expert,
        routed=functools.partial(cpu.routed, expert=expert),
        shared=functools.partial(cpu.shared_invariant, expert=expert),
    )


def _native() -> GroupedMoe:
    return GroupedMoe(
        route=cpu.route_invariant,
        expert=native.expert,
        routed=native.routed,
        shared=functools.partial(cpu.shared_invariant, expert=native.expert),
    )


def _composed_expert(kernel_set: str) -> Expert:
    return functools.partial(
        cpu.expert,
        linear=linear.select(kernel_set),
        nvfp4_linear=nvfp4.select(kernel_set),
        silu_gated=gated_activation.select_silu(kernel_set),
    )


def _triton() -> Callable[[], GroupedMoe]:
    from kernels.grouped_moe import kernel

    def build() -> GroupedMoe:
        expert = _composed_expert(TRITON)
        return GroupedMoe(
            route=kernel.route,
            expert=expert,
            routed=kernel.routed,
            shared=functools.partial(kernel.shared, expert=expert),
        )

    return build


def _reference() -> GroupedMoe:
    return GroupedMoe(
        route=reference.route,
        expert=reference.expert,
        routed=reference.routed,
        shared=reference.shared,
    )


def check_bank(bank: Bank) -> None:
    """Raise a ValueError unless the parts of a bank fit each other."""
    if isinstance(bank, NvFp4Bank):
        _check_nvfp4(bank)
    else:
        _check_dense(bank)


def _check_dense(bank: DenseBank) -> None:
    require(
        bank.gate_up.ndim == 3 and bank.gate_up.shape[0] > 0 and bank.gate_up.shape[1] % 2 == 0,
        _OP,
        "gate_up [experts, 2 * intermediate, hidden]",
        tuple(bank.gate_up.shape),
    )
    shape = (bank.num_experts, bank.hidden_size, bank.intermediate_size)
    require(bank.down.shape == shape, _OP, f"down {list(shape)}", tuple(bank.down.shape))
    require(
        bank.down.dtype == bank.gate_up.dtype and bank.down.device == bank.gate_up.device,
        _OP,
        f"down of {bank.gate_up.dtype} on {bank.gate_up.device}",
        (bank.down.dtype, bank.down.device),
    )


def _check_nvfp4(bank: NvFp4Bank) -> None:
    parts = (
        bank.gate_up_codes,
        bank.gate_up_block_scales,
        bank.gate_up_row_scales,
        bank.down_codes,
        bank.down_block_scales,
        bank.down_row_scales,
    )
    experts = {part.shape[0] for part in parts if part.ndim}
    require(len(experts) == 1 and min(experts) > 0, _OP, "one number of experts", experts)
    nvfp4.check_rows(bank.gate_up(0))
    nvfp4.check_rows(bank.down(0))
    require(all(part.is_contiguous() for part in parts), _OP, "contiguous parts", "strided ones")
    gate_up, down = bank.gate_up(0), bank.down(0)
    require(
        gate_up.num_rows == 2 * down.num_columns and gate_up.num_columns == down.num_rows,
        _OP,
        f"down [{gate_up.num_columns}, {gate_up.num_rows // 2}]",
        (down.num_rows, down.num_columns),
    )


def grouped_moe(
    x: torch.Tensor, logits: torch.Tensor, top_k: int, bank: Bank, *, kernel_set: str = TORCH_CPU
) -> tuple[torch.Tensor, Routing]:
    """Route rows x [R, H] by router logits [R, E] and sum their experts; float32 [R, H].

    ``x`` is bfloat16 or float32, and has the dtype of a plain bank.
    """
    functions = select(kernel_set)
    check_bank(bank)
    require(
        x.ndim == 2 and x.shape[1] == bank.hidden_size,
        _OP,
        f"x [rows, {bank.hidden_size}]",
        tuple(x.shape),
    )
    shape = (x.shape[0], bank.num_experts)
    require(logits.shape == shape, _OP, f"logits {list(shape)}", tuple(logits.shape))
    require(1 <= top_k <= bank.num_experts, _OP, f"top_k in [1, {bank.num_experts}]", top_k)
    dtypes = (
        (bank.gate_up.dtype,) if isinstance(bank, DenseBank) else (torch.float32, torch.bfloat16)
    )
    require(x.dtype in dtypes, _OP, f"x of {' or '.join(map(str, dtypes))}", x.dtype)
    device = bank.down.device if isinstance(bank, DenseBank) else bank.down_codes.device
    require(x.device == device and logits.device == device, _OP, f"all on {device}", x.device)
    routing = functions.route(logits, top_k)
    return functions.routed(x, routing, bank), routing
