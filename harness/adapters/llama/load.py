"""The Llama family's adapter: its rotary tables, its contiguous cache and its executor."""

from collections.abc import Mapping
from typing import ClassVar

import torch

from harness.adapters.common.adapter import FamilyAdapter
from harness.adapters.common.layout import FamilyLayout
from harness.adapters.common.stepping import RangeExecutor
from harness.adapters.llama.config import read_config
from harness.adapters.llama.layout import ROPE, LlamaLayout
from harness.adapters.llama.model import LlamaExecutor
from harness.adapters.llama.rope import rope_tables
from harness.state.session import Session


class LlamaAdapter(FamilyAdapter):
    """The family's :class:`harness.realize.adapter.Adapter`; one per realization."""

    layout: ClassVar[FamilyLayout] = LlamaLayout()

    def derived_state(self, state_id: str) -> Mapping[str, torch.Tensor]:
        """The rotary tables."""
        return rope_tables(read_config(self.request.config), self.request.workload.max_positions)

    def make_session(
        self, state_id: str, epoch: int, tensors: Mapping[str, torch.Tensor]
    ) -> Session:
        """The owner of the contiguous cache."""
        return Session(
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
        """The forward pass."""
        return LlamaExecutor(
            config=read_config(self.request.config),
            spec=self.request.spec,
            kernel_set=self.request.determinism.kernel_set,
            residents=residents,
            rope_tables=derived[ROPE],
            session=session,
        )
