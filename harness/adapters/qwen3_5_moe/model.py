"""The forward pass over resident tensors and one owned state.

Prefill chunks and decode steps are the same code. Takes tensors by name and does not know where
they came from, nor which numeric format they have.

Shape legend: R rows of the step, H hidden size, E experts, V vocabulary size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

import kernels.attention.api as attention
import kernels.embedding.api as embedding
import kernels.grouped_moe.api as grouped_moe
import kernels.linear.api as linear
import kernels.rms_norm.api as rms_norm
import kernels.rope.api as rope
from harness.adapters.common.rows import ResidentTensor
from harness.adapters.common.stepping import (
    ExpectedTensor,
    Position,
    RangeExecutor,
    require_tensors,
)
from harness.adapters.qwen3_5_moe.boundaries import AFTER, BEFORE, MIXER
from harness.adapters.qwen3_5_moe.config import FULL, QwenConfig
from harness.adapters.qwen3_5_moe.layout import STRATEGY_UNIT, runtime_shapes
from harness.adapters.qwen3_5_moe.mixers import AttentionStep, FullMixer, LinearMixer, Mixer
from harness.adapters.qwen3_5_moe.rope import rope_tables
from harness.adapters.qwen3_5_moe.weights import Projection, bind_bank, bind_projection
from harness.plan.records import ModelRange
from harness.realize.adapter import StepOutput, Tap
from harness.state.driver import without_waiting
from harness.state.session import Session
from kernels.grouped_moe.records import Bank


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layer:
    """Resident tensors of one layer."""

    input_norm: torch.Tensor
    mixer: Mixer
    num_mixer_boundaries: int
    post_norm: torch.Tensor
    router: torch.Tensor
    experts: Bank
    shared: Bank
    shared_gate: torch.Tensor


class QwenExecutor(RangeExecutor):
    """Runs a range of layers; implements :class:`harness.realize.adapter.Executor`.

    Ops of the kernel set are chosen, and every tensor's geometry is checked, once at binding.
    """

    def __init__(
        self,
        *,
        config: QwenConfig,
        spec: ModelRange,
        kernel_set: str,
        dtype: torch.dtype,
        planned: Sequence[ResidentTensor],
        residents: Mapping[str, torch.Tensor],
        tables: Mapping[str, torch.Tensor] | None,
        session: Session,
    ) -> None:
        """Bind tensors and state.

        Args:
            config: The model.
            spec: The range of it.
            kernel_set: The set that every op is chosen from.
            dtype: Compute dtype.
            planned: What the resident tensors are, in the forms that were chosen.
            residents: The tensors, by name.
            tables: Rotary tables; ``None`` to make them anew in each step.
            session: Owner of the mutable state.

        Raises:
            InvalidInputError: Listing every tensor that is absent or has another geometry.
            kernels.kernel_sets.UnknownKernelSetError: When the kernel set is not built.
        """
        kinds = [layer.kind for layer in config.layers[spec.start_layer : spec.end_layer]]
        _check_geometry(config, kinds, dtype, planned, residents, tables, session)
        super().__init__(
            strategy_unit=STRATEGY_UNIT, kernel_set=kernel_set, dtype=dtype, session=session
        )
        self._config = config
        self._linear = linear.select(kernel_set)
        self._rms_norm = rms_norm.select(kernel_set)
        self._attention = attention.select(kernel_set)
        self._moe = grouped_moe.select(kernel_set)
        self._embed = embedding.select(kernel_set)
        self._hidden_size = config.hidden_size
        self._vocab_size = config.vocab_size
        self._has_attention = FULL in kinds
        self._tables = tables
        self._table = residents["embed_tokens"] if spec.owns_embeddings else None
        self._final_norm: torch.Tensor | None = None
        self._head: Projection | None = None
        if spec.owns_final_norm_head:
            self._final_norm = residents["final_norm"]
            name = "embed_tokens" if config.tied else "lm_head"
            self._head = bind_projection(residents, name, kernel_set)
        self._layers = tuple(
            _bind_layer(config, spec.start_layer, kinds, offset, residents, kernel_set, session)
            for offset in range(len(kinds))
        )

    def _embedded(self, token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return self._embed(token_ids, table)

    def _run(
        self,
        hidden: torch.Tensor,
        start_position: Position,
        want_logits: bool,
        tap: Tap | None,
        boundary: int,
    ) -> StepOutput:
        step = None
        if self._has_attention and isinstance(start_position, int):
            step = self._prepare(hidden, start_position)
        elif self._has_attention and isinstance(start_position, torch.Tensor):
            step = self._prepare_at(start_position)
        for layer in self._layers:
            normed = self._norm(hidden, layer.input_norm)
            if tap is not None:
                tap(boundary, normed)
            boundary += len(BEFORE)
            mixed = layer.mixer(normed, step, tap, boundary)
            boundary += layer.num_mixer_boundaries
            hidden = self._transform(hidden, mixed, layer, tap, boundary)
            boundary += len(AFTER)
        logits = None
        if want_logits and self._final_norm is not None and self._head is not None:
            normed = self._norm(hidden[-1:], self._final_norm)
            logits = self._head(normed)[0].float()
            if tap is not None:
                tap(boundary, normed)
                tap(boundary + 1, logits)
        return StepOutput(plane=hidden, logits=logits)

    def _prepare(self, hidden: torch.Tensor, start: int) -> AttentionStep:
        end = start + hidden.shape[0]
        tables = self._tables
        if tables is None:
            # All positions, so that the bits are those of planned tables.
            made = rope_tables(self._config, self._session.capacity_positions)
            rows = (made[name][start:end] for name in ("cos", "sin"))
            cos, sin = rope.angles(*(without_waiting(row, hidden.device) for row in rows))
        else:
            cos, sin = rope.angles(tables["cos"][start:end], tables["sin"][start:end])
        reads = self._attention.prepare(
            end - start, start, dtype=hidden.dtype, device=hidden.device
        )
        return AttentionStep(start=start, end=end, cos=cos, sin=sin, reads=reads)

    def _prepare_at(self, position: torch.Tensor) -> AttentionStep:
        """One row, whose position is read on the device: nothing here depends on it."""
        assert self._attention.prepare_at is not None
        # The layout refuses to record beside tables that are made anew in each step.
        assert self._tables is not None
        end = self._session.capacity_positions
        tables = (self._tables[name] for name in ("cos", "sin"))
        cos, sin = rope.angles(*(table.index_select(0, position) for table in tables))
        reads = self._attention.prepare_at(position, num_positions=end)
        return AttentionStep(start=0, end=end, cos=cos, sin=sin, reads=reads, slot=position)

    def _transform(
        self,
        hidden: torch.Tensor,
        mixed: torch.Tensor,
        layer: _Layer,
        tap: Tap | None,
        boundary: int,
    ) -> torch.Tensor:
        """The first residual, then the experts and theirs: the boundaries :data:`AFTER`."""
        residual = hidden + mixed
        normed = self._norm(residual, layer.post_norm)
        router_logits = self._linear(normed, layer.router)
        routing = self._moe.route(router_logits, self._config.top_k)
        routed = self._moe.routed(normed, routing, layer.experts)
        shared = self._moe.shared(normed, layer.shared, layer.shared_gate)
        out = (routed + shared).to(normed.dtype)
        result = residual + out
        if tap is not None:
            chosen = (routing.expert_ids, routing.weights, routing.margins)
            hits = (mixed, residual, normed, router_logits, *chosen, routed, shared, out, result)
            for offset, tensor in enumerate(hits):
                tap(boundary + offset, tensor)
        return result

    def _norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._rms_norm(rows, weight, self._config.rms_norm_eps, True)


def _bind_layer(
    config: QwenConfig,
    first: int,
    kinds: Sequence[str],
    offset: int,
    residents: Mapping[str, torch.Tensor],
    kernel_set: str,
    session: Session,
) -> _Layer:
    prefix, kind = f"layers.{first + offset}.", kinds[offset]
    index = list(kinds[:offset]).count(kind)
    make = FullMixer if kind == FULL else LinearMixer
    return _Layer(
        input_norm=residents[f"{prefix}input_norm"],
        mixer=make(config, residents, prefix, kernel_set, session, index),
        num_mixer_boundaries=len(MIXER[kind]),
        post_norm=residents[f"{prefix}post_norm"],
        router=residents[f"{prefix}router"],
        experts=bind_bank(residents, f"{prefix}experts", config.num_experts),
        shared=bind_bank(residents, f"{prefix}shared", 1),
        shared_gate=residents[f"{prefix}shared_gate"],
    )


def _check_geometry(
    config: QwenConfig,
    kinds: list[str],
    dtype: torch.dtype,
    planned: Sequence[ResidentTensor],
    residents: Mapping[str, torch.Tensor],
    tables: Mapping[str, torch.Tensor] | None,
    session: Session,
) -> None:
    compute, positions = str(dtype).removeprefix("torch."), session.capacity_positions
    wanted: list[ExpectedTensor] = []
    for tensor in planned:
        spec = tensor.spec(compute)
        wanted.append((residents, spec.name, spec.shape, getattr(torch, spec.dtype)))
    for name, shape in runtime_shapes(config, kinds, positions).items():
        held = torch.float32 if name == "recurrent" else dtype
        wanted.append((session.tensors, name, shape, held))
    if tables is not None:
        shape = (positions, config.rotary_dim // 2)
        wanted += [(tables, name, shape, torch.float32) for name in ("cos", "sin")]
    require_tensors(wanted)
