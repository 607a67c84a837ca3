"""Banks of experts and the routing of rows to them. Computes nothing but sizes.

Shapes: R rows, k experts per row, E experts, H hidden size, I intermediate size. The gate rows of
an expert's first weight come before its up rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from kernels.nvfp4.records import NvFp4Rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    """Which experts each row goes to."""

    expert_ids: torch.Tensor
    """int64 [R, k], by descending probability; among equal ones the lowest id first."""
    weights: torch.Tensor
    """float32 [R, k]: the chosen probabilities over their sum."""
    margins: torch.Tensor
    """float32 [R]: the last chosen probability less the first rejected one (0 if none is)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseBank:
    """Experts as plain weights, in the dtype of the rows they take."""

    gate_up: torch.Tensor
    """[E, 2 I, H]."""
    down: torch.Tensor
    """[E, H, I]."""

    @property
    def num_experts(self) -> int:
        """Experts E."""
        return self.gate_up.shape[0]

    @property
    def hidden_size(self) -> int:
        """Hidden size H."""
        return self.gate_up.shape[2]

    @property
    def intermediate_size(self) -> int:
        """Intermediate size I."""
        return self.gate_up.shape[1] // 2

    @property
    def bytes_per_expert(self) -> int:
        """Bytes of weights that the product with one expert reads."""
        return (self.gate_up.nbytes + self.down.nbytes) // self.num_experts


@dataclass(frozen=True, kw_only=True, slots=True)
class NvFp4Bank:
    """Experts in NVFP4; every row has its own global scale."""

    gate_up_codes: torch.Tensor
    """uint8 [E, 2 I, H / 2]."""
    gate_up_block_scales: torch.Tensor
    """float8_e4m3fn [E, 2 I, H / 16]."""
    gate_up_row_scales: torch.Tensor
    """float32 or float16 [E, 2 I]."""
    down_codes: torch.Tensor
    """uint8 [E, H, I / 2]."""
    down_block_scales: torch.Tensor
    """float8_e4m3fn [E, H, I / 16]."""
    down_row_scales: torch.Tensor
    """float32 or float16 [E, H]."""

    @property
    def num_experts(self) -> int:
        """Experts E."""
        return self.gate_up_codes.shape[0]

    @property
    def hidden_size(self) -> int:
        """Hidden size H."""
        return self.down_codes.shape[1]

    @property
    def intermediate_size(self) -> int:
        """Intermediate size I."""
        return self.gate_up_codes.shape[1] // 2

    @property
    def bytes_per_expert(self) -> int:
        """Bytes of weights that the product with one expert reads."""
        return self.gate_up(0).num_bytes + self.down(0).num_bytes

    def gate_up(self, index: int) -> NvFp4Rows:
        """Views of one expert's gate rows and up rows, [2 I, H]."""
        return NvFp4Rows(
            codes=self.gate_up_codes[index],
            block_scales=self.gate_up_block_scales[index],
            row_scales=self.gate_up_row_scales[index],
        )

    def down(self, index: int) -> NvFp4Rows:
        """Views of one expert's down rows, [H, I]."""
        return NvFp4Rows(
            codes=self.down_codes[index],
            block_scales=self.down_block_scales[index],
            row_scales=self.down_row_scales[index],
        )


Bank: TypeAlias = DenseBank | NvFp4Bank
Expert: TypeAlias = Callable[[torch.Tensor, Bank, int], torch.Tensor]
"""The product of rows [R, H] with one expert of a bank, float32 [R, H]."""


def touched_experts(routing: Routing) -> tuple[int, ...]:
    """Ids of the experts that at least one row goes to, ascending.

    Their number times the bank's ``bytes_per_expert`` is the bytes of weights a step touches.
    """
    return tuple(sorted(set(routing.expert_ids.flatten().tolist())))
