"""Executors of made-up models, realized straight on the device: no file is written or read.

Weights are random; speed and equality are measured, no text. Knows families by name only.
"""

import gc
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.gpu.device import Device
from harness.adapters.families import adapter_for, layout_for
from harness.plan.layout import (
    STATE_SNAPSHOT,
    STATIC_BUFFERS,
    LayoutRequest,
    StateDesign,
)
from harness.plan.records import (
    RECORDED,
    Determinism,
    Execution,
    Materialization,
    ModelRange,
    Workload,
)
from harness.realize.adapter import AdapterContext
from harness.state.arena import Memory
from harness.state.recording import rehearsing

_CAPACITY_BYTES = 1 << 50


class MadeModel:
    """Random tensors of one model on a device, and executors over them."""

    def __init__(self, family: str, request: LayoutRequest, device: Device) -> None:
        """Take and fill them."""
        self.request = request
        self._layout = layout_for(family)
        self._adapter: Any = adapter_for(family)
        self._memory = Memory(
            resource_id="device",
            kind="device",
            capacity_bytes=_CAPACITY_BYTES,
            blocks=device.blocks(),
        )
        context = AdapterContext(
            request=request,
            memories={"device": self._memory},
            census=(),
            record=rehearsing(device.record),
        )
        self._adapter.begin(context)
        torch.manual_seed(0)
        for design in self._layout.states(request):
            if design.on_device and design.representation not in (STATIC_BUFFERS, STATE_SNAPSHOT):
                self._realize(design)

    def eager(self) -> Any:
        """An executor that runs each step by itself; made before any that records."""
        return self._activated()

    def recorded(self) -> Any:
        """An executor that records its decode step, after it ran once, and replays it."""
        for design in self._layout.states(self.request):
            if design.representation == STATIC_BUFFERS and not self._has(design):
                self._realize(design)
        return self._activated()

    def release(self) -> None:
        """Give all memory back, after the executors were dropped."""
        del self._adapter
        gc.collect()
        for arena in list(self._memory.arenas):
            arena.release()

    def _has(self, design: StateDesign) -> bool:
        return any(arena.owner == design.id for arena in self._memory.arenas)

    def _activated(self) -> Any:
        (unit, *_) = sorted(self._layout.strategy_units)
        execution = Execution(
            id="steps", strategy_unit=unit, compute_unit_id="device", required_state=()
        )
        return self._adapter.activate(execution)

    def _realize(self, design: StateDesign) -> None:
        intent = Materialization(
            id=design.id,
            logical_state_id=design.id,
            representation=design.representation,
            memory_resource_id="device",
            expected_bytes=0,
            role=design.role,
            requirement="required",
            persistence="persistent",
        )
        arena = self._adapter.allocate(intent).arena
        if design.from_checkpoint:
            for tensor in arena.tensors.values():
                _fill(tensor)
        else:
            # Tables are calculated; the rest stays zero.
            self._adapter.populate(intent, None)


def _fill(tensor: torch.Tensor) -> None:
    """Numbers that keep the size of what they are multiplied with; halves in vectors."""
    if tensor.ndim > 1:
        tensor.normal_(std=tensor.shape[-1] ** -0.5)
    else:
        tensor.fill_(0.5)


def make_request(
    family: str, document: Mapping[str, Any], kernel_set: str, prompt: int, steps: int
) -> LayoutRequest:
    """Prefill of ``prompt`` rows and ``steps`` recorded decode steps of a whole model."""
    config = layout_for(family).parse_config(document)
    vocabulary = int(document["vocab_size"])
    return LayoutRequest(
        config=config,
        spec=ModelRange(
            start_layer=0,
            end_layer=int(config["num_layers"]),
            owns_embeddings=True,
            owns_final_norm_head=True,
            model_repository="benchmark",
            revision="0",
        ),
        determinism=Determinism(
            dtype="bfloat16",
            num_threads=torch.get_num_threads(),
            deterministic_algorithms=True,
            batch_invariant=False,
            kernel_set=kernel_set,
        ),
        workload=Workload(
            prompt_token_ids=tuple((31 * i * i + 17 * i + 1) % vocabulary for i in range(prompt)),
            chunk_rows=prompt,
            decode_steps=steps,
            repetitions=1,
            fresh_realizations=1,
            sampling="greedy",
            max_positions=prompt + steps,
            decode_mode=RECORDED,
        ),
        staging="none",
    )
