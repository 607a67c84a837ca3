"""Resident tensors seen as what ops take: projections and banks, in whatever format they are.

The format of a part is read from the tensors that are there; nothing is copied.

Shape legend: R rows, O outputs, C columns, E experts, H hidden size, I expert size.
"""

import functools
from collections.abc import Callable, Mapping

import torch

import kernels.fp8_linear.api as fp8_linear
import kernels.linear.api as linear
import kernels.nvfp4.api as nvfp4
from kernels.grouped_moe.records import Bank, DenseBank, NvFp4Bank
from kernels.nvfp4.records import NvFp4Rows

Projection = Callable[[torch.Tensor], torch.Tensor]
"""Rows [R, C] to [R, O], in the dtype of the rows."""
Tensors = Mapping[str, torch.Tensor]


def bind_projection(tensors: Tensors, name: str, kernel_set: str) -> Projection:
    """The product with one projection, in the format that its tensors have."""
    if f"{name}_codes" in tensors:
        rows = NvFp4Rows(
            codes=tensors[f"{name}_codes"],
            block_scales=tensors[f"{name}_block_scales"],
            row_scales=tensors[f"{name}_row_scales"],
        )
        return functools.partial(_packed, rows=rows, product=nvfp4.select(kernel_set))
    if f"{name}_scale" in tensors:
        product = fp8_linear.select(kernel_set)
        return functools.partial(
            _scaled, weight=tensors[name], scale=tensors[f"{name}_scale"], product=product
        )
    return functools.partial(linear.select(kernel_set), weight=tensors[name])


def _packed(x: torch.Tensor, *, rows: NvFp4Rows, product: nvfp4.NvFp4Linear) -> torch.Tensor:
    return product(x, rows).to(x.dtype)


def _scaled(
    x: torch.Tensor, *, weight: torch.Tensor, scale: torch.Tensor, product: fp8_linear.Fp8Linear
) -> torch.Tensor:
    return product(x, weight, scale)


def bind_bank(tensors: Tensors, name: str, num_experts: int) -> Bank:
    """A bank of experts over ``name.gate_up*`` [E * 2I, ...] and ``name.down*`` [E * H, ...]."""

    def banked(part: str) -> torch.Tensor:
        tensor = tensors[f"{name}.{part}"]
        return tensor.view(num_experts, -1, *tensor.shape[1:])

    if f"{name}.gate_up_codes" not in tensors:
        return DenseBank(gate_up=banked("gate_up"), down=banked("down"))
    return NvFp4Bank(
        gate_up_codes=banked("gate_up_codes"),
        gate_up_block_scales=banked("gate_up_block_scales"),
        gate_up_row_scales=banked("gate_up_row_scales"),
        down_codes=banked("down_codes"),
        down_block_scales=banked("down_block_scales"),
        down_row_scales=banked("down_row_scales"),
    )
