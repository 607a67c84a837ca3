"""The family's adapter: its rotary tables, its advancing state and its executor."""

from collections.abc import Mapping
from typing import ClassVar

import torch

from harness.adapters.common.adapter import FamilyAdapter
from harness.adapters.common.layout import FamilyLayout
from harness.adapters.common.stepping import RangeExecutor
from harness.adapters.qwen3_5_moe.config import read_config
from harness.adapters.qwen3_5_moe.layout import ROPE, QwenLayout
from harness.adapters.qwen3_5_moe.model import QwenExecutor
from harness.adapters.qwen3_5_moe.nibbles import check_op, check_order, order_score
from harness.adapters.qwen3_5_moe.rope import rope_tables
from harness.state.advancing import AdvancingSession
from harness.state.session import Session
from kernels.nvfp4.records import NvFp4Rows

_PACKED_EXPERTS = ".experts.gate_up_codes"


class QwenAdapter(FamilyAdapter):
    """The family's :class:`harness.realize.adapter.Adapter`; one per realization."""

    layout: ClassVar[FamilyLayout] = QwenLayout()

    def derived_state(self, state_id: str) -> Mapping[str, torch.Tensor]:
        """The rotary tables."""
        return rope_tables(read_config(self.request.config), self.request.workload.max_positions)

    def make_session(
        self, state_id: str, epoch: int, tensors: Mapping[str, torch.Tensor]
    ) -> Session:
        """The owner of the cache, the convolution's inputs and the recurrent state."""
        return AdvancingSession(
            logical_state_id=state_id,
            epoch=epoch,
            tensors=tensors,
            capacity_positions=self.request.workload.max_positions,
        )

    def make_executor(
        self,
        residents: Mapping[str, torch.Tensor],
        derived: Mapping[str, Mapping[str, torch.Tensor]],
        session: Session,
    ) -> RangeExecutor:
        """The forward pass.

        Raises:
            CheckpointError: When packed weights show that their elements are swapped.
            NotEvaluableError: When the kernel set reads them in another order.
        """
        request = self.request
        chosen = self.layout.chosen_residents(request)
        executor = QwenExecutor(
            config=read_config(request.config),
            spec=request.spec,
            kernel_set=request.determinism.kernel_set,
            dtype=getattr(torch, request.determinism.dtype),
            planned=[tensor for tensors in chosen.values() for tensor in tensors],
            residents=residents,
            tables=derived.get(ROPE),
            session=session,
        )
        _check_nibbles(residents, request.determinism.kernel_set)
        return executor


def _check_nibbles(residents: Mapping[str, torch.Tensor], kernel_set: str) -> None:
    packed = [name for name in residents if name.endswith(_PACKED_EXPERTS)]
    if not packed:
        return
    check_op(kernel_set, residents[packed[0]].device)
    scores = []
    for name in packed:
        layer, codes = name.removesuffix(_PACKED_EXPERTS), residents[name]
        router = residents[f"{layer}.router"]
        rows = slice(0, len(codes) // len(router))
        first = NvFp4Rows(
            codes=codes[rows],
            block_scales=residents[f"{layer}.experts.gate_up_block_scales"][rows],
            row_scales=residents[f"{layer}.experts.gate_up_row_scales"][rows],
        )
        scores.append(order_score(first, router, kernel_set))
    check_order(scores)
