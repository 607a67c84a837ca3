"""The layers of a Llama range as one list of native operations; one call per step.

A step of one row that ends in logits is one call with the head: what a step does outside of it is
done with every cache cold, so it is little.

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
    """Runs all layers of a range over a step's rows, and one row through the head too."""

    def __init__(
        self,
        *,
        config: LlamaConfig,
        layers: range,
        residents: Mapping[str, torch.Tensor],
        rope_tables: Mapping[str, torch.Tensor],
        cache: Mapping[str, torch.Tensor],
        head: "Head | None" = None,
    ) -> None:
        """Lay out every layer's operations over tensors whose geometry was checked.

        Raises:
            InvalidInputError: Listing every tensor that is strided: operations take addresses.
        """
        named = {} if head is None else {"final norm": head.norm, "head": head.table}
        _require_contiguous(residents, rope_tables, cache, named)
        self._config = config
        self._k, self._v = cache["k"], cache["v"]
        self._held = residents, rope_tables, cache, head  # operations name tensors by address
        self._listing = _Listing(config, layers, residents, rope_tables, cache, head)

    def run(
        self, hidden: torch.Tensor, start_position: int, tap: Tap | None, boundary: int
    ) -> torch.Tensor:
        """Run rows [R, H] at a position; returns [R, H], a tensor of its own.

        ``boundary`` is the index of the first layer's first boundary.
        """
        listing, rows = self._listing, hidden.shape[0]
        scratch = listing.begin(hidden, start_position)
        if tap is None:
            listing.program.run(scratch, rows, start_position, 0, listing.num_layer_ops)
        else:
            for index, mark in enumerate(listing.marks):
                for tensor in self._armed(scratch, rows, start_position, index, mark):
                    tap(boundary, tensor)
                    boundary += 1
        return listing.hidden.of(scratch, rows).clone()

    def run_row(
        self, hidden: torch.Tensor, start_position: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a row [1, H] through the head as well; returns [1, H], and the logits [V]."""
        listing = self._listing
        assert listing.logits is not None
        scratch = listing.begin(hidden, start_position, listing.logits.size)
        listing.program.run(scratch, 1, start_position)
        return listing.hidden.of(scratch, 1), listing.logits.of(scratch, 1)[0]

    def _armed(
        self, scratch: torch.Tensor, rows: int, start: int, index: int, mark: _Marks
    ) -> Iterator[torch.Tensor]:
        """One layer, its operations run between the boundaries that are read."""
        listing, config = self._listing, self._config
        program = listing.program

        def written() -> torch.Tensor:
            end = start + rows
            return torch.stack((self._k[index, start:end], self._v[index, start:end]))

        def of(buffer: Buffer) -> torch.Tensor:
            # A tap may keep what it is given, and the next layer writes here again.
            return buffer.of(scratch, rows).clone()

        program.run(scratch, rows, start, mark.begin, mark.stored - 1)
        before = written()
        program.run(scratch, rows, start, mark.stored - 1, mark.attended)
        rotated = of(listing.rotated).view(rows, -1, config.head_dim)
        heads = of(listing.qkv).view(rows, -1, config.head_dim)
        num_heads, num_rotated = config.num_heads, config.num_heads + config.num_kv_heads
        yield of(listing.normed)
        yield rotated[:, :num_heads]
        yield rotated[:, num_heads:]
        yield heads[:, num_rotated:]
        yield before
        yield written()
        yield of(listing.mixed)
        yield of(listing.projected)
        yield of(listing.residual)
        program.run(scratch, rows, start, mark.attended, mark.end)
        yield of(listing.normed)
        yield of(listing.gate_up)
        yield of(listing.projected)
        yield of(listing.hidden)


class _Listing:
    """The operations of all layers, of a head behind them where one is given, and their buffers."""

    def __init__(
        self,
        config: LlamaConfig,
        layers: range,
        residents: Mapping[str, torch.Tensor],
        rope_tables: Mapping[str, torch.Tensor],
        cache: Mapping[str, torch.Tensor],
        head: "Head | None",
    ) -> None:
        self._config, self._rope_tables, self._cache = config, rope_tables, cache
        self.program = Program()
        dtype = cache["k"].dtype

        def buffer(size: int) -> Buffer:
            return self.program.buffer(size, dtype)

        widest = max(config.hidden_size, config.q_rows, config.intermediate_size)
        self.hidden = buffer(config.hidden_size)
        self.normed = buffer(config.hidden_size)
        self.qkv = buffer(config.q_rows + 2 * config.kv_rows)
        self.rotated = buffer(config.q_rows + config.kv_rows)
        self.mixed = buffer(config.q_rows)
        self.projected = buffer(config.hidden_size)
        self.residual = buffer(config.hidden_size)
        self.gate_up = buffer(2 * config.intermediate_size)
        self._activated = buffer(config.intermediate_size)
        self._ordered = self.program.buffer(ordered_columns(widest), torch.float32)
        self.marks = tuple(
            self._add_layer(residents, f"layers.{layer}.", index)
            for index, layer in enumerate(layers)
        )
        self.num_layer_ops = len(self.program)
        self.logits = None
        if head is not None:
            # Of one row, where attention's parts were: nobody reads them any more.
            size = head.table.shape[0]
            self.logits = Buffer(offset=self.program.rest, size=size, dtype=torch.float32)
            head.add(self.program, self.hidden, self.normed, self._ordered, self.logits)
        self.program.seal()

    def begin(self, hidden: torch.Tensor, start_position: int, num_logits: int = 0) -> torch.Tensor:
        """Memory for a step over rows [R, H], which are put where the first layer reads them."""
        rows, config = hidden.shape[0], self._config
        end = start_position + rows
        parts = attention.num_part_floats(rows, config.num_heads, config.head_dim, end)
        scratch = self.program.scratch(rows, 4 * max(parts, num_logits))
        self.hidden.of(scratch, rows).copy_(hidden)
        return scratch

    def _add_layer(self, residents: Mapping[str, torch.Tensor], prefix: str, index: int) -> _Marks:
        config, add, dtype = self._config, self.program.add, self.hidden.dtype
        size, eps = config.head_dim, config.rms_norm_eps
        hidden, normed, qkv, rotated = self.hidden, self.normed, self.qkv, self.rotated
        mixed, projected, residual = self.mixed, self.projected, self.residual
        gate_up, activated = self.gate_up, self._activated
        k, v = self._cache["k"][index], self._cache["v"][index]

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

        begin = len(self.program)
        norm(hidden, "input_norm")
        project(normed, "qkv", qkv)
        heads = config.num_heads + config.num_kv_heads
        add(
            rope.describe(
                qkv.offset,
                self._rope_tables["cos"],
                self._rope_tables["sin"],
                rotated.offset,
                heads,
                size,
                qkv.size,
                dtype,
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
                self.program.rest,
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


@dataclass(frozen=True, kw_only=True)
class Head:
    """The last norm's weight [H] and the head's [V, H]."""

    norm: torch.Tensor
    eps: float
    table: torch.Tensor

    def add(
        self, program: Program, hidden: Buffer, normed: Buffer, ordered: Buffer, logits: Buffer
    ) -> None:
        """Append both: the logits are rounded, and stored as float32."""
        size, dtype = self.norm.shape[0], self.norm.dtype
        program.add(
            rms_norm.describe(hidden.offset, self.norm, normed.offset, size, self.eps, dtype)
        )
        program.add(
            linear.describe(
                normed.offset, self.table, None, logits.offset, ordered.offset, is_widened=True
            )
        )


class NativeHead:
    """A head over one row by itself, in one call."""

    def __init__(self, head: Head) -> None:
        """Lay out its operations."""
        self._program = Program()
        self._held = head  # operations name tensors by address
        size, dtype = head.norm.shape[0], head.norm.dtype
        self._hidden = self._program.buffer(size, dtype)
        self._normed = self._program.buffer(size, dtype)
        ordered = self._program.buffer(ordered_columns(size), torch.float32)
        self._logits = self._program.buffer(head.table.shape[0], torch.float32)
        head.add(self._program, self._hidden, self._normed, ordered, self._logits)
        self._program.seal()

    def run(self, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a row [1, H]: its norm [1, H]; the logits [V], rounded, as float32."""
        scratch = self._program.scratch(1)
        self._hidden.of(scratch, 1).copy_(row)
        self._program.run(scratch, 1, 0)
        return self._normed.of(scratch, 1), self._logits.of(scratch, 1)[0]
