"""Resident tensors as rows of checkpoint tensors, and which checkpoint tensors those are.

Pure arithmetic over what a family declares; imports no torch and knows no family.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.errors import PlanError
from harness.plan.layout import DTYPE_BYTES, CensusEntry, TensorSpec
from harness.plan.records import Finding, ModelRange

FLOAT_DTYPES = ("bfloat16", "float16", "float32")
"""Forms of a checkpoint's ordinary weights; each may be cast to the compute dtype."""


class Fill(StrEnum):
    """How a checkpoint tensor comes into its rows. Scales are finite and not negative."""

    COPY = "copy"
    """Element by element, rounded to the resident type; e4m3 weights are numbers."""
    COPY_SCALES = "copy-scales"
    """The same, of e4m3 scales."""
    REPEAT = "repeat"
    """One scale, the same in every row."""
    DECODE = "decode"
    """Packed e2m1 codes (the even element in the low four bits) as the numbers they mean."""
    TIMES_BLOCKS = "times-blocks"
    """What the rows hold, times an e4m3 scale per 16 columns."""
    TIMES = "times"
    """What the rows hold, times one scale."""
    CHECK = "check"
    """One scale that is read and kept nowhere; it has no rows."""

    @property
    def places(self) -> bool:
        """Whether it puts data into rows that held none."""
        return self in (Fill.COPY, Fill.COPY_SCALES, Fill.REPEAT, Fill.DECODE)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSource:
    """Which checkpoint tensor fills rows [row_offset, row_offset + rows) of a resident one.

    One checkpoint tensor may fill several places. Where several fill one place, the first puts
    data there and the others change it, in order.
    """

    key: str
    row_offset: int
    rows: int
    shape: tuple[int, ...] | None = None
    """Shape in the checkpoint, where it is not that of the rows (a scalar of all of them)."""
    dtypes: tuple[str, ...] = FLOAT_DTYPES
    """Forms that the checkpoint may have it in."""
    fill: Fill = Fill.COPY
    below: float | None = None
    """A scale's bound, where one as large or larger cannot be meant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResidentTensor:
    """One resident tensor and its ordered, gap-free sources."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[RowSource, ...]
    dtype: str | None = None
    """``None`` for the compute dtype."""

    def source_shape(self, source: RowSource) -> tuple[int, ...]:
        """Shape of the checkpoint tensor behind ``source``."""
        return (source.rows, *self.shape[1:]) if source.shape is None else source.shape

    def spec(self, compute_dtype: str) -> TensorSpec:
        """The tensor as planned."""
        return TensorSpec(name=self.name, dtype=self.dtype or compute_dtype, shape=self.shape)

    def row_bytes(self, rows: int, compute_dtype: str) -> int:
        """Bytes of so many of its rows."""
        return rows * math.prod(self.shape[1:]) * DTYPE_BYTES[self.dtype or compute_dtype]


def merged(name: str, columns: tuple[int, ...], parts: Sequence[tuple[str, int]]) -> ResidentTensor:
    """A tensor of the compute dtype whose rows are those of ``parts`` (key, rows), in order."""
    sources = []
    offset = 0
    for key, rows in parts:
        sources.append(RowSource(key=key, row_offset=offset, rows=rows))
        offset += rows
    return ResidentTensor(name=name, shape=(offset, *columns), sources=tuple(sources))


def check_range(spec: ModelRange, num_layers: int) -> None:
    """Refuse a range that is not within the model.

    Raises:
        PlanError: Saying what the range is and what the model has.
    """
    if not 0 <= spec.start_layer < spec.end_layer <= num_layers:
        raise PlanError(
            "the layer range is not within the model",
            expected=f"0 <= start < end <= {num_layers}",
            got=f"[{spec.start_layer}, {spec.end_layer})",
            where="$.adapter_data.spec",
        )
    skipped = [
        f"{name} with layers [{spec.start_layer}, {spec.end_layer})"
        for name, is_owned, is_at_end in (
            ("owns_embeddings", spec.owns_embeddings, spec.start_layer == 0),
            ("owns_final_norm_head", spec.owns_final_norm_head, spec.end_layer == num_layers),
        )
        if is_owned and not is_at_end
    ]
    if skipped:
        raise PlanError(
            "the range skips layers between itself and an end that it owns",
            expected=f"embeddings with layer 0, the head with layer {num_layers - 1}",
            got="; ".join(skipped),
            where="$.adapter_data.spec",
        )


def _sources(residents: Sequence[ResidentTensor]) -> Iterator[tuple[ResidentTensor, RowSource]]:
    for tensor in residents:
        for source in tensor.sources:
            yield tensor, source


def source_shapes(residents: Sequence[ResidentTensor]) -> dict[str, tuple[int, ...]]:
    """Checkpoint key -> shape, for every key that the tensors need, sorted."""
    shapes = {source.key: tensor.source_shape(source) for tensor, source in _sources(residents)}
    return dict(sorted(shapes.items()))


def resident_bytes_by_key(residents: Sequence[ResidentTensor], dtype: str) -> dict[str, int]:
    """Resident bytes that each checkpoint key contributes, all its places together, sorted."""
    sizes: dict[str, int] = {}
    for tensor, source in _sources(residents):
        placed = tensor.row_bytes(source.rows, dtype) if source.fill.places else 0
        sizes[source.key] = sizes.get(source.key, 0) + placed
    return dict(sorted(sizes.items()))


def needed_entries(
    residents: Sequence[ResidentTensor], census: Sequence[CensusEntry]
) -> list[CensusEntry]:
    """The census rows of the keys that the tensors need, sorted by key.

    Raises:
        PlanError: Listing every key that is absent, twice there, or of another shape or dtype.
    """
    findings = []
    by_key: dict[str, CensusEntry] = {}
    shapes = source_shapes(residents)
    dtypes = {source.key: source.dtypes for _, source in _sources(residents)}
    for entry in census:
        if entry.key not in shapes:
            continue
        problems = []
        if entry.key in by_key:
            problems.append("is there twice")
        if entry.shape != shapes[entry.key]:
            problems.append(f"expected shape {shapes[entry.key]}, got {entry.shape}")
        if entry.dtype not in dtypes[entry.key]:
            problems.append(f"expected one of {', '.join(dtypes[entry.key])}, got {entry.dtype}")
        by_key[entry.key] = entry
        findings += [
            Finding(path=entry.key, rule="checkpoint-tensors", message=text) for text in problems
        ]
    findings += [
        Finding(path=key, rule="checkpoint-tensors", message="is not in the checkpoint")
        for key in shapes.keys() - by_key.keys()
    ]
    if findings:
        raise PlanError("the checkpoint does not hold this model", sorted(findings))
    return [by_key[key] for key in shapes]
