"""The two token mixers: a gated delta rule over a recurrent state, and gated attention.

Each takes normed rows and gives what goes into the residual. State lies in tensors that a session
owns, and is advanced in place.

Shape legend: R rows of the step, T positions covered after it, H hidden size, N query heads, K KV
heads, D head size, C channels of the convolution, V value heads, Dk and Dv sizes of a key and a
value head.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

import kernels.attention.api as attention
import kernels.causal_conv.api as causal_conv
import kernels.delta_rule.api as delta_rule
import kernels.gated_norm.api as gated_norm
import kernels.kv_cache.api as kv_cache
import kernels.linear.api as linear
import kernels.rms_norm.api as rms_norm
import kernels.rope.api as rope
import kernels.sigmoid_gate.api as sigmoid_gate
from harness.adapters.qwen3_5_moe.config import QwenConfig
from harness.adapters.qwen3_5_moe.weights import Tensors, bind_projection
from harness.realize.adapter import Tap
from harness.state.session import Session


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionStep:
    """What all attention layers of one step share; made once per step."""

    start: int
    end: int
    """Of the positions that are read; of all there are, where the row's slot is on the device."""
    cos: torch.Tensor
    sin: torch.Tensor
    reads: attention.AttentionContext
    slot: torch.Tensor | None = None
    """[1]: the row's place in the caches, where it is read on the device."""


class Mixer(Protocol):
    """A token mixer of one layer."""

    def __call__(
        self, normed: torch.Tensor, step: AttentionStep | None, tap: Tap | None, boundary: int
    ) -> torch.Tensor:
        """Mix rows [R, H], hitting the kind's boundaries from ``boundary`` on."""


class LinearMixer:
    """A gated delta rule; implements :class:`Mixer`."""

    def __init__(
        self,
        config: QwenConfig,
        tensors: Tensors,
        prefix: str,
        kernel_set: str,
        session: Session,
        index: int,
    ) -> None:
        """Bind the layer whose state is the ``index``-th of its kind."""
        self._qkvz = bind_projection(tensors, f"{prefix}qkvz", kernel_set)
        self._out = bind_projection(tensors, f"{prefix}out", kernel_set)
        self._linear = linear.select(kernel_set)
        self._convolve = causal_conv.select(kernel_set)
        self._advance = delta_rule.select(kernel_set)
        self._gated_norm = gated_norm.select(kernel_set)
        self._ab = tensors[f"{prefix}ab"]
        self._taps = tensors[f"{prefix}conv"]
        self._a_log = tensors[f"{prefix}a_log"]
        self._dt_bias = tensors[f"{prefix}dt_bias"]
        self._norm = tensors[f"{prefix}mixer_norm"]
        self._eps = config.rms_norm_eps
        self._key_rows = config.key_rows
        self._conv_rows = config.conv_rows
        self._num_value_heads = config.num_value_heads
        self._keys_shape = (-1, config.num_key_heads, config.key_head_dim)
        self._values_shape = (-1, config.num_value_heads, config.value_head_dim)
        self._conv_state = session.tensors["conv"][index]
        self._recurrent_state = session.tensors["recurrent"][index]

    def __call__(
        self, normed: torch.Tensor, step: AttentionStep | None, tap: Tap | None, boundary: int
    ) -> torch.Tensor:
        """Advance the layer's state by the rows."""
        del step
        qkvz = self._qkvz(normed)
        ab = self._linear(normed, self._ab)
        if tap is not None:
            tap(boundary, qkvz)
            tap(boundary + 1, ab)
            tap(boundary + 2, self._conv_state.clone())
        mixed = self._convolve(qkvz[:, : self._conv_rows], self._taps, self._conv_state)
        if tap is not None:
            tap(boundary + 3, mixed)
            tap(boundary + 4, self._conv_state.clone())
            tap(boundary + 5, self._recurrent_state.clone())
        q, k = mixed[:, : self._key_rows], mixed[:, self._key_rows : 2 * self._key_rows]
        read = self._advance(
            q.view(self._keys_shape),
            k.view(self._keys_shape),
            mixed[:, 2 * self._key_rows :].view(self._values_shape),
            ab[:, : self._num_value_heads],
            ab[:, self._num_value_heads :],
            self._a_log,
            self._dt_bias,
            self._recurrent_state,
        )
        gate = qkvz[:, self._conv_rows :].view(self._values_shape)
        gated = self._gated_norm(read, gate, self._norm, self._eps)
        if tap is not None:
            tap(boundary + 6, read)
            tap(boundary + 7, self._recurrent_state.clone())
            tap(boundary + 8, gated)
        return self._out(gated.flatten(1))


class FullMixer:
    """Gated attention over all positions; implements :class:`Mixer`."""

    def __init__(
        self,
        config: QwenConfig,
        tensors: Tensors,
        prefix: str,
        kernel_set: str,
        session: Session,
        index: int,
    ) -> None:
        """Bind the layer whose cache is the ``index``-th of its kind."""
        self._qkv = bind_projection(tensors, f"{prefix}qkv", kernel_set)
        self._out = bind_projection(tensors, f"{prefix}out", kernel_set)
        self._rms_norm = rms_norm.select(kernel_set)
        self._rope = rope.select(kernel_set)
        self._attention = attention.select(kernel_set)
        self._kv_cache = kv_cache.select(kernel_set)
        self._sigmoid_gate = sigmoid_gate.select(kernel_set)
        self._q_norm = tensors[f"{prefix}q_norm"]
        self._k_norm = tensors[f"{prefix}k_norm"]
        self._eps = config.rms_norm_eps
        self._rotary_dim = config.rotary_dim
        self._scale = config.head_dim**-0.5
        self._q_shape = (-1, config.num_heads, 2, config.head_dim)
        self._kv_shape = (-1, 2, config.num_kv_heads, config.head_dim)
        self._q_columns = 2 * config.q_rows
        self._k_cache = session.tensors["k"][index]
        self._v_cache = session.tensors["v"][index]

    def __call__(
        self, normed: torch.Tensor, step: AttentionStep | None, tap: Tap | None, boundary: int
    ) -> torch.Tensor:
        """Write the rows' keys and values, and attend over all positions so far."""
        assert step is not None
        qkv = self._qkv(normed)
        # Per head, its query comes before its gate.
        q, gate = qkv[:, : self._q_columns].view(self._q_shape).unbind(2)
        k, v = qkv[:, self._q_columns :].view(self._kv_shape).unbind(1)
        q, k = self._placed(q, self._q_norm, step), self._placed(k, self._k_norm, step)
        before = None if tap is None else self._written(step)
        if step.slot is None:
            self._k_cache[step.start : step.end].copy_(k)
            self._v_cache[step.start : step.end].copy_(v)
        else:
            self._kv_cache.store(k, v, self._k_cache, self._v_cache, step.slot)
        written = None if tap is None else self._written(step)
        keys, values = self._k_cache[: step.end], self._v_cache[: step.end]
        mixed = self._attention.attend(q, keys, values, step.reads, self._scale)
        gated = self._sigmoid_gate(mixed.view(q.shape), gate)
        if tap is not None and before is not None and written is not None:
            hits = (q, k, v, gate, before, written, mixed, gated)
            for offset, tensor in enumerate(hits):
                tap(boundary + offset, tensor)
        return self._out(gated.flatten(1))

    def _written(self, step: AttentionStep) -> torch.Tensor:
        """Keys and values [2, R, K, D] at the step's rows, copied."""
        rows = slice(step.start, step.end)
        return torch.stack((self._k_cache[rows], self._v_cache[rows]))

    def _placed(self, heads: torch.Tensor, norm: torch.Tensor, step: AttentionStep) -> torch.Tensor:
        """Normed heads, the first elements of each rotated by its position."""
        placed = self._rms_norm(heads, norm, self._eps, True)
        part = placed[..., : self._rotary_dim]
        part.copy_(self._rope(part, step.cos, step.sin))
        return placed
