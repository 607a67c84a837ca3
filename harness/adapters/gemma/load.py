"""The Gemma family's adapter: its rotary tables, its hybrid pool and its executor."""

from collections.abc import Mapping
from typing import ClassVar

import torch

from harness.adapters.common.adapter import FamilyAdapter
from harness.adapters.common.layout import FamilyLayout
from harness.adapters.common.stepping import RangeExecutor
from harness.adapters.gemma.config import read_config
from harness.adapters.gemma.layout import ROPE, GemmaLayout, kv_geometry
from harness.adapters.gemma.model import GemmaExecutor
from harness.adapters.gemma.rope import rope_tables
from harness.state.hybrid import HybridPool
from harness.state.session import PagedSession, Session


class GemmaAdapter(FamilyAdapter):
    """The family's :class:`harness.realize.adapter.Adapter`; one per realization."""

    layout: ClassVar[FamilyLayout] = GemmaLayout()

    def derived_state(self, state_id: str) -> Mapping[str, torch.Tensor]:
        """The rotary tables of both kinds of layers."""
        request = self.request
        config = read_config(request.config)
        return rope_tables(config, request.spec, request.workload.max_positions)

    def make_session(
        self, state_id: str, epoch: int, tensors: Mapping[str, torch.Tensor]
    ) -> Session:
        """The owner of the hybrid pool."""
        geometry = kv_geometry(self.request, self.request.determinism.dtype)
        return PagedSession(
            logical_state_id=state_id, epoch=epoch, pool=HybridPool(geometry, tensors)
        )

    def make_executor(
        self,
        residents: Mapping[str, torch.Tensor],
        derived: Mapping[str, Mapping[str, torch.Tensor]],
        session: Session,
    ) -> RangeExecutor:
        """The forward pass."""
        assert isinstance(session, PagedSession)
        return GemmaExecutor(
            config=read_config(self.request.config),
            spec=self.request.spec,
            kernel_set=self.request.determinism.kernel_set,
            residents=residents,
            rope_tables=derived[ROPE],
            session=session,
        )
