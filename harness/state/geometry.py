"""The geometry of a hybrid pool: which tensors it is made of, exactly, and what they mean.

A hybrid pool keeps the keys and values of two groups of layers. Layers of the *full* group read
every position; layers of the *swa* group (sliding-window attention) read the last ``window``
positions only. Pure arithmetic, no torch, so that a plan's bytes come from the same place as the
pool's tensors. Knows no model.

    position --page_table--> full slot --full_to_swa--> swa slot        slot = page * S + offset

Shape legend: P max_positions, S page_size, W window, C chunk_rows, L layers of a group,
K KV heads, D head size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.errors import InvalidInputError
from harness.plan.layout import DTYPE_BYTES, TensorSpec

Kind = Literal["full", "swa"]

FULL: Kind = "full"
SWA: Kind = "swa"

EVICT_OUTSIDE_WINDOW = "evict-outside-window/1"
"""After a step, swa pages whose every position has left the window of every later row are freed."""
EVICTION_POLICIES = frozenset({EVICT_OUTSIDE_WINDOW})

GEOMETRY = "geometry"
"""Declared tensor that says what the other tensors mean; see :meth:`HybridGeometry.header`."""
PAGE_TABLE = "page_table"
FULL_TO_SWA = "full_to_swa"
EVICTED_END = "swa.evicted_end"

_HEADER_FORMAT = 1
_MAX_POSITIONS = 1 << 40


@dataclass(frozen=True, kw_only=True)
class KvGroup:
    """Layers that share one shape of keys and values."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, kw_only=True)
class HybridGeometry:
    """Everything a hybrid pool's tensors depend on; refused where it is not valid.

    A group without layers is ``None``. The full group's page table and allocator exist in any
    case, since they are the address space; a pool without an swa group has no swa tensor at all.
    """

    max_positions: int
    dtype: str
    """Of keys and values, by torch's name."""
    full: KvGroup | None
    swa: KvGroup | None
    window: int | None
    """Positions that a row of the swa group reads, its own included; ``None`` without the group."""
    page_size: int = 1
    """Slots of one page; both pools have the same."""
    eviction_policy: str | None = None
    chunk_rows: int | None = None
    """Most rows of one step; needed, and part of the geometry, only with an eviction policy."""

    def __post_init__(self) -> None:
        faults = _faults(self)
        if faults:
            raise InvalidInputError(
                "a pool's geometry is not valid", got="; ".join(sorted(faults)), where="the state"
            )

    @property
    def evicts(self) -> bool:
        """Whether swa slots are freed before the end of the session."""
        return self.swa is not None and self.eviction_policy is not None

    def has(self, kind: Kind) -> bool:
        """Whether the pool of ``kind`` exists."""
        return kind == FULL or self.swa is not None

    def group(self, kind: Kind) -> KvGroup | None:
        """The layers of ``kind``, or ``None`` where there are none."""
        return self.full if kind == FULL else self.swa

    def num_pages(self, kind: Kind) -> int:
        """Pages of one pool, page 0 (the sentinel, never handed out) included.

        All positions: ``ceil(P / S) + 1``, which is ``P + 1`` slots for S = 1. With an eviction
        policy the swa pool is smaller: W - 1 positions before the frontier stay, a step adds at
        most C rows, and the first page is kept while one of its S positions is, so at most
        ``W - 1 + C + S - 1`` positions from the start of a page on are held at once.
        """
        most = self.max_positions
        if kind == SWA:
            if self.window is None:
                return 0
            if self.evicts and self.chunk_rows is not None:
                most = min(most, self.window + self.chunk_rows + self.page_size - 2)
        return -(-most // self.page_size) + 1

    def num_slots(self, kind: Kind) -> int:
        """Slots of one pool; those below ``page_size`` belong to the sentinel page."""
        return self.num_pages(kind) * self.page_size

    def window_begin(self, position: int) -> int:
        """First position that a row of the swa group at ``position`` reads: W in all, with its own.

        The rows [start, end) of a step together read [window_begin(start), end).
        """
        return position if self.window is None else max(0, position - self.window + 1)

    def header(self) -> tuple[int, ...]:
        """What shapes alone do not say, as the declared tensor ``geometry`` holds it.

        Format, page size, positions, window, policy and chunk rows (both 0 unless the pool evicts).
        """
        policies = sorted(EVICTION_POLICIES)
        policy = chunk_rows = 0
        if self.evicts and self.eviction_policy is not None and self.chunk_rows is not None:
            policy, chunk_rows = policies.index(self.eviction_policy) + 1, self.chunk_rows
        window = self.window or 0
        return _HEADER_FORMAT, self.page_size, self.max_positions, window, policy, chunk_rows

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every declared tensor, in arena order: tables and allocators, then keys and values."""
        specs = [_table(GEOMETRY, len(self.header())), _table(PAGE_TABLE, self.max_positions)]
        if self.swa is not None:
            specs.append(_table(FULL_TO_SWA, self.num_slots(FULL)))
        kinds: tuple[Kind, ...] = (FULL, SWA)
        for kind in kinds:
            if self.has(kind):
                specs += allocator_tensors(kind, self.num_pages(kind))
        if self.evicts:
            specs.append(_table(EVICTED_END, 1))
        for kind in kinds:
            group = self.group(kind)
            if group is not None:
                shape = (
                    group.num_layers,
                    self.num_slots(kind),
                    group.num_kv_heads,
                    group.head_dim,
                )
                specs += [
                    TensorSpec(name=f"{kind}.{part}", dtype=self.dtype, shape=shape)
                    for part in ("k", "v")
                ]
        return tuple(specs)


def allocator_tensors(pool: str, num_pages: int) -> tuple[TensorSpec, ...]:
    """The declared tensors of one :class:`harness.state.pages.PagePool`, page 0 included."""
    return (
        _table(f"{pool}.free_list", num_pages - 1),
        _table(f"{pool}.live", num_pages),
        _table(f"{pool}.free_head", 1),
    )


def _table(name: str, length: int) -> TensorSpec:
    return TensorSpec(name=name, dtype="int64", shape=(length,))


def _faults(geometry: HybridGeometry) -> list[str]:
    sizes: dict[str, int | None] = {
        "max_positions": geometry.max_positions,
        "page_size": geometry.page_size,
    }
    groups: Mapping[str, KvGroup | None] = {FULL: geometry.full, SWA: geometry.swa}
    for name, group in groups.items():
        if group is not None:
            sizes |= {f"{name}.{field}": value for field, value in vars(group).items()}
    for name, value in (("window", geometry.window), ("chunk_rows", geometry.chunk_rows)):
        if value is not None:
            sizes[name] = value
    faults = [
        f"{name} is {value!r}, not a whole number from 1 to {_MAX_POSITIONS}"
        for name, value in sizes.items()
        if type(value) is not int or not 1 <= value <= _MAX_POSITIONS
    ]
    if geometry.dtype not in DTYPE_BYTES:
        faults.append(f"dtype {geometry.dtype!r} is not known")
    if geometry.full is None and geometry.swa is None:
        faults.append("there are no layers")
    if (geometry.swa is None) != (geometry.window is None):
        faults.append("window and swa layers: one is there without the other")
    if geometry.eviction_policy is not None:
        if geometry.eviction_policy not in EVICTION_POLICIES:
            known = ", ".join(sorted(EVICTION_POLICIES))
            faults.append(f"eviction_policy {geometry.eviction_policy!r} is not one of {known}")
        if geometry.swa is not None and geometry.chunk_rows is None:
            faults.append("chunk_rows is absent, and the eviction policy's bound needs it")
    return faults
