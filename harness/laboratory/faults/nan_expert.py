"""One expert of one layer gives NaN; rows that are not routed to it stay as they are."""

from dataclasses import replace
from typing import Any

import torch

from harness.adapters.qwen3_5_moe.model import QwenExecutor
from harness.laboratory.faults.wrapping import after

LAYER, EXPERT = 1, 0


def plant() -> None:
    """Wrap the experts' sum of every executor that is made in this process."""

    def bind(_: None, self: QwenExecutor, **bound: Any) -> None:
        del bound
        routed, bank = self._moe.routed, self._layers[LAYER].experts

        def spoiled(normed: torch.Tensor, routing: Any, experts: Any) -> torch.Tensor:
            out = routed(normed, routing, experts)
            if experts is bank:
                out = out.clone()
                out[(routing.expert_ids == EXPERT).any(dim=1)] = float("nan")
            return out

        self._moe = replace(self._moe, routed=spoiled)

    after(QwenExecutor, "__init__", bind)
