"""The layers of a Llama range as one list of native operations; one call per step.

The operations and the places where numbers are rounded are those of :mod:`.model`, so that a
step's bits are those of the kernel set's single ops. Boundaries are read between operations, from
the same list: an armed step runs what any other step runs.

Shape legend: R rows of the step, H hidden size, N query heads, K KV heads, D head size,
I intermediate size.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

import kernels.attention.native as attention
import kernels.gated_activation.native as gated_activation
import kernels.kv_cache.native as kv_cache
import kernels.linear.native as linear
import kernels.rms_norm.native as rms_norm
import kernels.rope.native as rope
from harness.adapters.llama.config import LlamaConfig
from harness.errors import InvalidInputError
from harness.realize.adapter import Tap
from kernels.native.calls import ordered_columns
from kernels.native.program import Buffer, Program


@dataclass(frozen=True, kw_only=True, slots=True)
class _Marks:
    """How many operations of the list end before a layer's points."""

    begin: int
    stored: int
    attended: int
    end: int


class NativeLayers:
    """Runs all layers of a range over a step's rows."""

    def __init__(
        self,
        *,
        config: LlamaConfig,
        layers: range,
        residents: Mapping[str, torch.Tensor],
        rope_tables: Mapping[str, torch.Tensor],
        cache: Mapping[str, torch.Tensor],
    ) -> None:
        """Lay out every layer's operations over tensors whose geometry was checked.

        Raises:
            InvalidInputError: Listing every tensor that is strided: operations take addresses.
        """
        _require_contiguous(residents, rope_tables, cache)
        self._config = config
        self._k, self._v = cache["k"], cache["v"]
        self._cos, self._sin = rope_tables["cos"], rope_tables["sin"]
        self._dtype = self._k.dtype
        self._program = Program()
        self._held = residents  # operations name tensors by address
        heads = config.q_rows + 2 * config.kv_rows
        widest = max(config.hidden_size, config.q_rows, config.intermediate_size)
        self._hidden = self._buffer(config.hidden_size)
        self._normed = self._buffer(config.hidden_size)
        self._qkv = self._buffer(heads)
        self._rotated = self._buffer(config.q_rows + config.kv_rows)
        self._mixed = self._buffer(config.q_rows)
        self._projected = self._buffer(config.hidden_size)
        self._residual = self._buffer(config.hidden_size)
        self._gate_up = self._buffer(2 * config.intermediate_size)
        self._activated = self._buffer(config.intermediate_size)
        self._ordered = self._program.buffer(ordered_columns(widest), torch.float32)
        self._marks = tuple(
            self._add_layer(residents, f"layers.{layer}.", index)
            for index, layer in enumerate(layers)
        )
        self._program.seal()

    def run(
        self, hidden: torch.Tensor, start_position: int, tap: Tap | None, boundary: int
    ) -> torch.Tensor:
        """Run rows [R, H] at a position; returns [R, H], a tensor of its own.

        ``boundary`` is the index of the first layer's first boundary.
        """
        rows, config = hidden.shape[0], self._config
        end = start_position + rows
        parts = attention.num_part_floats(rows, config.num_heads, config.head_dim, end)
        scratch = self._program.scratch(rows, 4 * parts)
        self._hidden.of(scratch, rows).copy_(hidden)
        if tap is None:
            self._program.run(scratch, rows, start_position)
        else:
            for index, mark in enumerate(self._marks):
                for tensor in self._armed(scratch, rows, start_position, index, mark):
                    tap(boundary, tensor)
                    boundary += 1
        return self._hidden.of(scratch, rows).clone()

    def _armed(
        self, scratch: torch.Tensor, rows: int, start: int, index: int, mark: _Marks
    ) -> Iterator[torch.Tensor]:
        """One layer, its operations run between the boundaries that are read."""
        program, config = self._program, self._config

        def written() -> torch.Tensor:
            end = start + rows
            return torch.stack((self._k[index, start:end], self._v[index, start:end]))

        def of(buffer: Buffer) -> torch.Tensor:
            # A tap may keep what it is given, and the next layer writes here again.
            return buffer.of(scratch, rows).clone()

        program.run(scratch, rows, start, mark.begin, mark.stored - 1)
        before = written()
        program.run(scratch, rows, start, mark.stored - 1, mark.attended)
        rotated = of(self._rotated).view(rows, -1, config.head_dim)
        heads = of(self._qkv).view(rows, -1, config.head_dim)
        num_heads, num_rotated = config.num_heads, config.num_heads + config.num_kv_heads
        yield of(self._normed)
        yield rotated[:, :num_heads]
        yield rotated[:, num_heads:]
        yield heads[:, num_rotated:]
        yield before
        yield written()
        yield of(self._mixed)
        yield of(self._projected)
        yield of(self._residual)
        program.run(scratch, rows, start, mark.attended, mark.end)
        yield of(self._normed)
        yield of(self._gate_up)
        yield of(self._projected)
        yield of(self._hidden)

    def _buffer(self, size: int) -> Buffer:
        return self._program.buffer(size, self._dtype)

    def _add_layer(self, residents: Mapping[str, torch.Tensor], prefix: str, index: int) -> _Marks:
        config, add, dtype = self._config, self._program.add, self._dtype
        size, eps = config.head_dim, config.rms_norm_eps
        hidden, normed, qkv, rotated = self._hidden, self._normed, self._qkv, self._rotated
        mixed, projected, residual = self._mixed, self._projected, self._residual
        gate_up, activated = self._gate_up, self._activated
        k, v = self._k[index], self._v[index]

        def norm(x: Buffer, name: str) -> int:
            weight = residents[prefix + name]
            op = rms_norm.describe(x.offset, weight, normed.offset, x.size, eps, dtype)
            return add(op)

        def project(
            x: Buffer,
            name: str,
            out: Buffer,
            added: Buffer | None = None,
            total: Buffer | None = None,
        ) -> int:
            weight, bias = residents[prefix + name], residents.get(f"{prefix}{name}_bias")
            ordered = self._ordered.offset
            op = linear.describe(
                x.offset,
                weight,
                bias,
                out.offset,
                ordered,
                residual=None if added is None else added.offset,
                total=None if total is None else total.offset,
            )
            return add(op)

        begin = len(self._program)
        norm(hidden, "input_norm")
        project(normed, "qkv", qkv)
        heads = config.num_heads + config.num_kv_heads
        add(
            rope.describe(
                qkv.offset, self._cos, self._sin, rotated.offset, heads, size, qkv.size, dtype
            )
        )
        k_rows = rotated.offset, rotated.size, config.q_rows
        v_rows = qkv.offset, qkv.size, config.q_rows + config.kv_rows
        stored = add(kv_cache.describe(k_rows, v_rows, k, v))
        add(
            attention.describe(
                rotated.offset,
                k,
                v,
                mixed.offset,
                self._program.rest,
                heads=config.num_heads,
                row_elements=rotated.size,
                scale=1 / math.sqrt(size),
            )
        )
        attended = project(mixed, "o", projected, hidden, residual)
        norm(residual, "post_norm")
        project(normed, "gate_up", gate_up)
        add(
            gated_activation.describe(
                gate_up.offset, activated.offset, config.intermediate_size, dtype
            )
        )
        end = project(activated, "down", projected, residual, hidden)
        return _Marks(begin=begin, stored=stored, attended=attended, end=end)


def _require_contiguous(*groups: Mapping[str, torch.Tensor]) -> None:
    strided = {n for group in groups for n, tensor in group.items() if not tensor.is_contiguous()}
    if strided:
        raise InvalidInputError("tensors are not contiguous", got=", ".join(sorted(strided)))


class NativeHead:
    """The last norm and the head, over one row, in one call."""

    def __init__(self, norm: torch.Tensor, eps: float, table: torch.Tensor) -> None:
        """Lay out the operations over the norm's weight [H] and the head's [V, H]."""
        self._program = Program()
        self._held = norm, table  # operations name tensors by address
        size, dtype = norm.shape[0], norm.dtype
        self._hidden = self._program.buffer(size, dtype)
        self._normed = self._program.buffer(size, dtype)
        ordered = self._program.buffer(ordered_columns(size), torch.float32)
        self._logits = self._program.buffer(table.shape[0], torch.float32)
        hidden, normed, logits = self._hidden.offset, self._normed.offset, self._logits.offset
        self._program.add(rms_norm.describe(hidden, norm, normed, size, eps, dtype))
        self._program.add(
            linear.describe(normed, table, None, logits, ordered.offset, is_widened=True)
        )
        self._program.seal()

    def run(self, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a row [1, H]: its norm [1, H]; the logits [V], rounded, as float32."""
        scratch = self._program.scratch(1)
        self._hidden.of(scratch, 1).copy_(row)
        self._program.run(scratch, 1, 0)
        return self._normed.of(scratch, 1), self._logits.of(scratch, 1)[0]
