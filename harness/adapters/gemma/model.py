"""The Gemma forward pass over resident tensors and one owned hybrid pool.

Prefill chunks and decode steps are the same code. A step's keys and values are written to their
slots first, and attention reads all of them back through the slots, the step's own included: what
is not in the cache is not seen. Takes tensors by name and does not know where they came from.

Shape legend: R rows of the step, T positions that a layer reads, H hidden size, N query heads,
K KV heads, D head size, I intermediate size, V vocabulary size, S slots.
"""

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
import kernels.softcap.api as softcap
from harness.adapters.common.stepping import (
    ExpectedTensor,
    Position,
    RangeExecutor,
    require_tensors,
)
from harness.adapters.gemma.config import GemmaConfig
from harness.adapters.gemma.keys import resident_tensors, shared_tensors
from harness.adapters.gemma.layout import (
    ATTENTION_BOUNDARIES,
    MLP_BOUNDARIES,
    STRATEGY_UNIT,
    GemmaLayout,
    kv_groups,
)
from harness.errors import InvalidInputError
from harness.plan.records import ModelRange
from harness.realize.adapter import StepOutput, Tap
from harness.state.geometry import FULL, Kind
from harness.state.session import PagedSession
from kernels.attention.context import AttentionContext


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layer:
    """Resident tensors of one layer and its place in the cache."""

    kind: Kind
    input_norm: torch.Tensor
    qkv: torch.Tensor
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    o: torch.Tensor
    post_attention_norm: torch.Tensor
    pre_mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    post_mlp_norm: torch.Tensor
    scalar: torch.Tensor | None
    k_cache: torch.Tensor
    """[S, K, D]"""
    v_cache: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class _KindStep:
    """What all layers of one kind share in one step."""

    num_kv_heads: int
    head_dim: int
    cos: torch.Tensor
    sin: torch.Tensor
    write_slots: torch.Tensor
    """[R]: of the step's rows."""
    read_slots: torch.Tensor
    """[T]: of the positions that some row reads, the step's own last; or of all there are."""
    run: slice | None
    """The slots read, where they are one run; caches are then read in place."""
    context: AttentionContext


class GemmaExecutor(RangeExecutor):
    """Runs a range of layers; implements :class:`harness.realize.adapter.Executor`.

    Ops of the kernel set are chosen, and every tensor's geometry is checked, once at binding.
    """

    _session: PagedSession

    def __init__(
        self,
        *,
        config: GemmaConfig,
        spec: ModelRange,
        kernel_set: str,
        residents: Mapping[str, torch.Tensor],
        rope_tables: Mapping[str, torch.Tensor],
        session: PagedSession,
    ) -> None:
        """Bind tensors and state.

        Raises:
            InvalidInputError: Listing every tensor that is absent or has another geometry.
            kernels.kernel_sets.UnknownKernelSetError: When the kernel set is not built.
        """
        dtype = getattr(torch, session.pool.geometry.dtype)
        _check_geometry(config, spec, residents, rope_tables, session, dtype)
        super().__init__(
            strategy_unit=STRATEGY_UNIT, kernel_set=kernel_set, dtype=dtype, session=session
        )
        self._linear = linear.select(kernel_set)
        self._rms_norm = rms_norm.select(kernel_set)
        self._rope = rope.select(kernel_set)
        self._attention = attention.select(kernel_set)
        self._kv_cache = kv_cache.select(kernel_set)
        self._gelu_gated = gated_activation.select_gelu_tanh(kernel_set)
        self._softcap = softcap.select(kernel_set)
        self._embed = embedding.select(kernel_set)
        # Elsewhere a product's bits depend on the number of rows, and all rows are computed.
        self._is_last_row_alone_equal = GemmaLayout.kernel_sets.get(kernel_set, False)
        self._config = config
        self._hidden_size = config.hidden_size
        self._vocab_size = config.vocab_size
        self._kinds = config.kinds_in(spec.start_layer, spec.end_layer)
        self._tables = rope_tables
        self._table = residents["table"] if spec.owns_embeddings else None
        self._head = residents["table"] if spec.owns_final_norm_head else None
        self._final_norm = residents["final_norm"] if spec.owns_final_norm_head else None
        self._layers = _bind_layers(config, spec, residents, session)
        self._boundaries_per_layer = len(ATTENTION_BOUNDARIES) + len(MLP_BOUNDARIES)
        self._boundaries_per_layer += config.layer_scalar

    def _embedded(self, token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return self._embed(token_ids, table, float(self._hidden_size**0.5))

    def _run(
        self,
        hidden: torch.Tensor,
        start_position: Position,
        want_logits: bool,
        tap: Tap | None,
        boundary: int,
    ) -> StepOutput:
        if isinstance(start_position, int):
            end = start_position + hidden.shape[0]
            steps = {kind: self._prepare(kind, start_position, end) for kind in self._kinds}
            if tap is not None:
                tap(boundary, self._session.pool.slots(FULL, 0, end))
        else:
            steps = {kind: self._prepare_at(kind, start_position) for kind in self._kinds}
        boundary += 1
        for layer in self._layers:
            hidden = self._attend(hidden, layer, steps[layer.kind], tap, boundary)
            hidden = self._transform(hidden, layer, tap, boundary + len(ATTENTION_BOUNDARIES))
            boundary += self._boundaries_per_layer
        logits = None
        if want_logits and self._final_norm is not None and self._head is not None:
            logits = self._logits(hidden, self._final_norm, self._head, tap, boundary)
        return StepOutput(plane=hidden, logits=logits)

    def _require_readable(self, position: int) -> None:
        for kind in self._kinds:
            self._session.pool.require_slots(kind, self._first_read(kind, position), position + 1)

    def _first_read(self, kind: Kind, start: int) -> int:
        return 0 if kind == FULL else self._session.pool.geometry.window_begin(start)

    def _window(self, kind: Kind) -> int | None:
        return None if kind == FULL else self._config.window

    def _prepare(self, kind: Kind, start: int, end: int) -> _KindStep:
        pool, shape = self._session.pool, self._config.kind(kind)
        first = self._first_read(kind, start)
        cos, sin = rope.angles(
            self._tables[f"{kind}.cos"][start:end], self._tables[f"{kind}.sin"][start:end]
        )
        read_slots = pool.slots(kind, first, end)
        # To look at slots that lie on a device would wait for it; they are then read as a table.
        is_host = read_slots.device.type == "cpu"
        run_start = kv_cache.contiguous_start(read_slots) if is_host else None
        return _KindStep(
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            cos=cos,
            sin=sin,
            write_slots=read_slots[start - first :],
            read_slots=read_slots,
            run=None if run_start is None else slice(run_start, run_start + end - first),
            context=self._attention.prepare(
                end - start,
                start,
                dtype=self._dtype,
                device=read_slots.device,
                first_position=first,
                window=self._window(kind),
            ),
        )

    def _prepare_at(self, kind: Kind, position: torch.Tensor) -> _KindStep:
        """One row, whose position is read on the device, through the slots of all positions."""
        assert self._attention.prepare_at is not None
        pool, shape = self._session.pool, self._config.kind(kind)
        capacity = pool.geometry.max_positions
        tables = (self._tables[f"{kind}.{name}"] for name in ("cos", "sin"))
        cos, sin = rope.angles(*(table.index_select(0, position) for table in tables))
        slots = pool.translate(kind, 0, capacity)
        return _KindStep(
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            cos=cos,
            sin=sin,
            write_slots=slots.index_select(0, position),
            read_slots=slots,
            run=None,
            context=self._attention.prepare_at(
                position, num_positions=capacity, window=self._window(kind)
            ),
        )

    def _attend(
        self, hidden: torch.Tensor, layer: _Layer, step: _KindStep, tap: Tap | None, boundary: int
    ) -> torch.Tensor:
        """Attention block and its residual: the boundaries :data:`ATTENTION_BOUNDARIES`."""
        normed = self._norm(hidden, layer.input_norm)
        qkv = self._linear(normed, layer.qkv)
        q, k, v = self._heads(qkv, layer, step)
        before = None if tap is None else _at(layer, step.write_slots)
        self._kv_cache.store(k, v, layer.k_cache, layer.v_cache, step.write_slots)
        written = None if tap is None else _at(layer, step.write_slots)
        mixed = self._mix(q, layer, step)
        projected = self._linear(mixed, layer.o)
        post_normed = self._norm(projected, layer.post_attention_norm)
        residual = hidden + post_normed
        if tap is not None and before is not None and written is not None:
            hits = (normed, step.read_slots, qkv, q, k, v, before, written)
            for index, tensor in enumerate((*hits, mixed, projected, post_normed, residual)):
                tap(boundary + index, tensor)
        return residual

    def _heads(
        self, qkv: torch.Tensor, layer: _Layer, step: _KindStep
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [R, N, D], keys and values [R, K, D], as attention and cache take them."""
        num_heads, num_kv_heads = self._config.num_heads, step.num_kv_heads
        heads = qkv.view(-1, num_heads + 2 * num_kv_heads, step.head_dim)
        q, k = heads[:, :num_heads], heads[:, num_heads : num_heads + num_kv_heads]
        v = heads[:, num_heads + num_kv_heads :]
        q = self._rope(self._head_norm(q, layer.q_norm), step.cos, step.sin)
        k = self._rope(self._head_norm(k, layer.k_norm), step.cos, step.sin)
        return q, k, self._head_norm(v, None) if self._config.value_norm else v

    def _mix(self, q: torch.Tensor, layer: _Layer, step: _KindStep) -> torch.Tensor:
        keys, values, scale = layer.k_cache, layer.v_cache, self._config.attention_scale
        if step.run is None:
            slots = step.read_slots
            return self._attention.paged(q, keys, values, slots, step.context, scale)
        return self._attention.attend(q, keys[step.run], values[step.run], step.context, scale)

    def _transform(
        self, hidden: torch.Tensor, layer: _Layer, tap: Tap | None, boundary: int
    ) -> torch.Tensor:
        """MLP block and what follows it: the boundaries :data:`MLP_BOUNDARIES`, and the scalar."""
        normed = self._norm(hidden, layer.pre_mlp_norm)
        gate_up = self._linear(normed, layer.gate_up)
        out = self._linear(self._gelu_gated(gate_up), layer.down)
        post_normed = self._norm(out, layer.post_mlp_norm)
        residual = hidden + post_normed
        result = residual if layer.scalar is None else residual * layer.scalar
        if tap is not None:
            hits = (normed, gate_up, out, post_normed, residual)
            scaled = () if layer.scalar is None else (result,)
            for index, tensor in enumerate((*hits, *scaled)):
                tap(boundary + index, tensor)
        return result

    def _logits(
        self,
        hidden: torch.Tensor,
        final_norm: torch.Tensor,
        table: torch.Tensor,
        tap: Tap | None,
        boundary: int,
    ) -> torch.Tensor:
        """Logits [V] float32 of the last row, rounded as in a product over all rows."""
        rows = hidden[-1:] if self._is_last_row_alone_equal else hidden
        normed = self._norm(rows, final_norm)
        products = self._linear(normed, table)
        if self._config.logit_softcap is not None:
            self._softcap(products, self._config.logit_softcap)
        # A copy, so that the rows that nobody asked for are let go.
        logits = products[-1].to(torch.float32, copy=True)
        if tap is not None:
            tap(boundary, normed)
            tap(boundary + 1, logits)
        return logits

    def _norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        config = self._config
        return self._rms_norm(rows, weight, config.rms_norm_eps, config.norm_unit_offset)

    def _head_norm(self, heads: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        has_offset = self._config.norm_unit_offset and weight is not None
        return self._rms_norm(heads, weight, self._config.rms_norm_eps, has_offset)


def _at(layer: _Layer, slots: torch.Tensor) -> torch.Tensor:
    """Keys and values [2, R, K, D] at some slots, copied."""
    return torch.stack((layer.k_cache[slots], layer.v_cache[slots]))


def _bind_layers(
    config: GemmaConfig,
    spec: ModelRange,
    residents: Mapping[str, torch.Tensor],
    session: PagedSession,
) -> tuple[_Layer, ...]:
    layers = []
    kinds = config.layer_kinds[spec.start_layer : spec.end_layer]
    for offset, kind in enumerate(kinds):
        prefix = f"layers.{spec.start_layer + offset}."
        index = kinds[:offset].count(kind)
        layers.append(
            _Layer(
                kind=kind,
                input_norm=residents[prefix + "input_norm"],
                qkv=residents[prefix + "qkv"],
                q_norm=residents[prefix + "q_norm"],
                k_norm=residents[prefix + "k_norm"],
                o=residents[prefix + "o"],
                post_attention_norm=residents[prefix + "post_attention_norm"],
                pre_mlp_norm=residents[prefix + "pre_mlp_norm"],
                gate_up=residents[prefix + "gate_up"],
                down=residents[prefix + "down"],
                post_mlp_norm=residents[prefix + "post_mlp_norm"],
                scalar=residents.get(prefix + "scalar"),
                k_cache=session.pool.keys(kind)[index],
                v_cache=session.pool.values(kind)[index],
            )
        )
    return tuple(layers)


def _check_geometry(
    config: GemmaConfig,
    spec: ModelRange,
    residents: Mapping[str, torch.Tensor],
    rope_tables: Mapping[str, torch.Tensor],
    session: PagedSession,
    dtype: torch.dtype,
) -> None:
    geometry = session.pool.geometry
    tensors = (*shared_tensors(config, spec), *resident_tensors(config, spec))
    wanted: list[ExpectedTensor] = [(residents, t.name, t.shape, dtype) for t in tensors]
    for kind in config.kinds_in(spec.start_layer, spec.end_layer):
        table = (geometry.max_positions, config.kind(kind).head_dim // 2)
        for name in ("cos", "sin"):
            wanted.append((rope_tables, f"{kind}.{name}", table, torch.float32))
    require_tensors(wanted)
    full, swa = kv_groups(config, spec)
    window = None if swa is None else config.window
    if (geometry.full, geometry.swa, geometry.window) != (full, swa, window):
        raise InvalidInputError(
            "the pool does not fit the model",
            expected=f"full {full}, swa {swa}, window {window}",
            got=f"full {geometry.full}, swa {geometry.swa}, window {geometry.window}",
        )
