"""The Llama forward pass over resident tensors and one owned cache.

Prefill chunks and decode steps are the same code. Takes tensors by name and does not know where
they came from.

Shape legend: R rows of the step, T positions covered after it, H hidden size, N query heads,
K KV heads, D head size, I intermediate size, V vocabulary size.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

import kernels.attention.api as attention
import kernels.embedding.api as embedding
import kernels.gated_activation.api as gated_activation
import kernels.kv_cache.api as kv_cache
import kernels.linear.api as linear
import kernels.rms_norm.api as rms_norm
import kernels.rope.api as rope
from harness.adapters.common.stepping import (
    ExpectedTensor,
    Position,
    RangeExecutor,
    require_tensors,
)
from harness.adapters.llama.config import LlamaConfig
from harness.adapters.llama.keys import resident_tensors
from harness.adapters.llama.layout import (
    ATTENTION_BOUNDARIES,
    MLP_BOUNDARIES,
    STRATEGY_UNIT,
)
from harness.adapters.llama.native import Head, NativeHead, NativeLayers
from harness.plan.records import ModelRange
from harness.realize.adapter import StepOutput, Tap
from harness.state.session import Session
from kernels.kernel_sets import NATIVE_CPU


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layer:
    """Resident tensors of one layer."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    o: torch.Tensor
    o_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """What all layers of one step share; made once per step."""

    num_rows: int
    cos: torch.Tensor
    sin: torch.Tensor
    reads: attention.AttentionContext
    k_rows: tuple[torch.Tensor, ...]
    """Per layer [R, K, D]: where this step's keys go; none where a slot says so."""
    v_rows: tuple[torch.Tensor, ...]
    k_prefix: tuple[torch.Tensor, ...]
    """Per layer [T, K, D]: all keys, this step's included; with a slot the whole cache."""
    v_prefix: tuple[torch.Tensor, ...]
    slot: torch.Tensor | None = None
    """[1]: the row's place in the caches, where it is read on the device."""


class LlamaExecutor(RangeExecutor):
    """Runs a range of layers; implements :class:`harness.realize.adapter.Executor`.

    Ops of the kernel set are chosen, and every tensor's geometry is checked, once at binding.
    """

    def __init__(
        self,
        *,
        config: LlamaConfig,
        spec: ModelRange,
        kernel_set: str,
        residents: Mapping[str, torch.Tensor],
        rope_tables: Mapping[str, torch.Tensor],
        session: Session,
    ) -> None:
        """Bind tensors and state.

        Raises:
            InvalidInputError: Listing every tensor that is absent or has another geometry.
            kernels.kernel_sets.UnknownKernelSetError: When the kernel set is not built.
        """
        _check_geometry(config, spec, residents, rope_tables, session)
        super().__init__(
            strategy_unit=STRATEGY_UNIT,
            kernel_set=kernel_set,
            dtype=session.tensors["k"].dtype,
            session=session,
        )
        self._linear = linear.select(kernel_set)
        self._rms_norm = rms_norm.select(kernel_set)
        self._rope = rope.select(kernel_set)
        self._attention = attention.select(kernel_set)
        self._kv_cache = kv_cache.select(kernel_set)
        self._silu_gated = gated_activation.select_silu(kernel_set)
        self._embed = embedding.select(kernel_set)
        self._num_heads = config.num_heads
        self._num_kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._score_scale = 1 / math.sqrt(config.head_dim)
        self._hidden_size = config.hidden_size
        self._vocab_size = config.vocab_size
        self._eps = config.rms_norm_eps
        self._k = session.tensors["k"]
        self._v = session.tensors["v"]
        self._cos = rope_tables["cos"]
        self._sin = rope_tables["sin"]
        self._table = residents["embed_tokens"] if spec.owns_embeddings else None
        self._final_norm: torch.Tensor | None = None
        self._head: torch.Tensor | None = None
        if spec.owns_final_norm_head:
            self._final_norm = residents["final_norm"]
            self._head = residents["embed_tokens" if config.tied else "lm_head"]
        self._layers = tuple(
            _bind_layer(residents, layer) for layer in range(spec.start_layer, spec.end_layer)
        )
        self._native_layers: NativeLayers | None = None
        self._native_head: NativeHead | None = None
        if kernel_set == NATIVE_CPU:
            head = None
            if self._final_norm is not None and self._head is not None:
                head = Head(norm=self._final_norm, eps=self._eps, table=self._head)
                self._native_head = NativeHead(head)
            self._native_layers = NativeLayers(
                config=config,
                layers=range(spec.start_layer, spec.end_layer),
                residents=residents,
                rope_tables=rope_tables,
                cache=session.tensors,
                head=head,
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
        if self._native_layers is not None:
            assert isinstance(start_position, int)
            if want_logits and self._native_head and tap is None and hidden.shape[0] == 1:
                plane, last = self._native_layers.run_row(hidden, start_position)
                return StepOutput(plane=plane, logits=last)
            hidden = self._native_layers.run(hidden, start_position, tap, boundary)
        else:
            hidden = self._through_layers(hidden, start_position, tap, boundary)
        boundary += len(self._layers) * len(ATTENTION_BOUNDARIES + MLP_BOUNDARIES)
        logits = None
        if want_logits and self._final_norm is not None and self._head is not None:
            # Row-wise, so the last row alone has the bits it would have among all rows.
            if self._native_head is not None:
                normed, logits = self._native_head.run(hidden[-1:])
            else:
                normed = self._rms_norm(hidden[-1:], self._final_norm, self._eps)
                logits = self._linear(normed, self._head)[0].float()
            if tap is not None:
                tap(boundary, normed)
                tap(boundary + 1, logits)
        return StepOutput(plane=hidden, logits=logits)

    def _through_layers(
        self, hidden: torch.Tensor, start_position: Position, tap: Tap | None, boundary: int
    ) -> torch.Tensor:
        """All layers, by single ops."""
        if isinstance(start_position, int):
            step = self._prepare(hidden, start_position)
        else:
            step = self._prepare_at(start_position)
        for index, layer in enumerate(self._layers):
            hidden = self._attend(hidden, layer, index, step, tap, boundary)
            boundary += len(ATTENTION_BOUNDARIES)
            hidden = self._transform(hidden, layer, tap, boundary)
            boundary += len(MLP_BOUNDARIES)
        return hidden

    def _prepare(self, hidden: torch.Tensor, start_position: int) -> _Step:
        num_rows = hidden.shape[0]
        end = start_position + num_rows
        cos, sin = rope.angles(self._cos[start_position:end], self._sin[start_position:end])
        return _Step(
            num_rows=num_rows,
            cos=cos,
            sin=sin,
            reads=self._attention.prepare(
                num_rows, start_position, dtype=hidden.dtype, device=hidden.device
            ),
            k_rows=self._k[:, start_position:end].unbind(0),
            v_rows=self._v[:, start_position:end].unbind(0),
            k_prefix=self._k[:, :end].unbind(0),
            v_prefix=self._v[:, :end].unbind(0),
        )

    def _prepare_at(self, position: torch.Tensor) -> _Step:
        """One row, whose position is read on the device: nothing here depends on it."""
        assert self._attention.prepare_at is not None
        cos, sin = (table.index_select(0, position) for table in (self._cos, self._sin))
        cos, sin = rope.angles(cos, sin)
        return _Step(
            num_rows=1,
            cos=cos,
            sin=sin,
            reads=self._attention.prepare_at(position, num_positions=self._k.shape[1]),
            k_rows=(),
            v_rows=(),
            k_prefix=self._k.unbind(0),
            v_prefix=self._v.unbind(0),
            slot=position,
        )

    def _attend(
        self,
        hidden: torch.Tensor,
        layer: _Layer,
        index: int,
        step: _Step,
        tap: Tap | None,
        boundary: int,
    ) -> torch.Tensor:
        """Attention block and its residual: the boundaries :data:`ATTENTION_BOUNDARIES`."""
        num_heads, rotated_heads = self._num_heads, self._num_heads + self._num_kv_heads
        normed = self._rms_norm(hidden, layer.input_norm, self._eps)
        heads = self._linear(normed, layer.qkv, layer.qkv_bias)
        heads = heads.view(step.num_rows, rotated_heads + self._num_kv_heads, self._head_dim)
        rotated = self._rope(heads[:, :rotated_heads], step.cos, step.sin)
        q, k, v = rotated[:, :num_heads], rotated[:, num_heads:], heads[:, rotated_heads:]
        before = None if tap is None else _written(step, index)
        if step.slot is None:
            step.k_rows[index].copy_(k)
            step.v_rows[index].copy_(v)
        else:
            caches = (step.k_prefix[index], step.v_prefix[index])
            self._kv_cache.store(k, v, *caches, step.slot)
        written = None if tap is None else _written(step, index)
        mixed = self._attention.attend(
            q, step.k_prefix[index], step.v_prefix[index], step.reads, self._score_scale
        )
        projected = self._linear(mixed, layer.o, layer.o_bias)
        residual = hidden + projected
        if tap is not None and before is not None and written is not None:
            hits = (normed, q, k, v, before, written, mixed, projected, residual)
            for offset, tensor in enumerate(hits):
                tap(boundary + offset, tensor)
        return residual

    def _transform(
        self, hidden: torch.Tensor, layer: _Layer, tap: Tap | None, boundary: int
    ) -> torch.Tensor:
        """MLP block and its residual: the boundaries :data:`MLP_BOUNDARIES`."""
        normed = self._rms_norm(hidden, layer.post_norm, self._eps)
        gate_up = self._linear(normed, layer.gate_up, layer.gate_up_bias)
        out = self._linear(self._silu_gated(gate_up), layer.down, layer.down_bias)
        residual = hidden + out
        if tap is not None:
            for offset, tensor in enumerate((normed, gate_up, out, residual)):
                tap(boundary + offset, tensor)
        return residual


def _written(step: _Step, index: int) -> torch.Tensor:
    """Keys and values [2, R, K, D] at the step's rows of one layer, copied."""
    return torch.stack((step.k_rows[index], step.v_rows[index]))


def _bind_layer(residents: Mapping[str, torch.Tensor], layer: int) -> _Layer:
    prefix = f"layers.{layer}."
    return _Layer(
        input_norm=residents[prefix + "input_norm"],
        qkv=residents[prefix + "qkv"],
        qkv_bias=residents.get(prefix + "qkv_bias"),
        o=residents[prefix + "o"],
        o_bias=residents.get(prefix + "o_bias"),
        post_norm=residents[prefix + "post_norm"],
        gate_up=residents[prefix + "gate_up"],
        gate_up_bias=residents.get(prefix + "gate_up_bias"),
        down=residents[prefix + "down"],
        down_bias=residents.get(prefix + "down_bias"),
    )


def _check_geometry(
    config: LlamaConfig,
    spec: ModelRange,
    residents: Mapping[str, torch.Tensor],
    rope_tables: Mapping[str, torch.Tensor],
    session: Session,
) -> None:
    state = session.tensors
    dtype = state["k"].dtype if "k" in state else torch.float32
    num_layers, positions = spec.end_layer - spec.start_layer, session.capacity_positions
    cache = (num_layers, positions, config.num_kv_heads, config.head_dim)
    table = (positions, config.head_dim // 2)
    wanted: list[ExpectedTensor] = [
        (residents, t.name, t.shape, dtype) for t in resident_tensors(config, spec)
    ]
    wanted += [(rope_tables, name, table, torch.float32) for name in ("cos", "sin")]
    wanted += [(state, name, cache, dtype) for name in ("k", "v")]
    require_tensors(wanted)
