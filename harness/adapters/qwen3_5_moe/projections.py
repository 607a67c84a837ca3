"""Resident tensors of one projection, in each numeric format and variant. Imports no torch.

A projection's rows are those of one or more modules, in order. Shape legend: O rows, C columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from harness.adapters.common.rows import Fill, ResidentTensor, RowSource, merged
from harness.adapters.qwen3_5_moe.quantization import FP8, NVFP4, NVFP4_BLOCK

_E4M3 = "float8_e4m3fn"
_SCALE_BOUND = 1.0
"""A factor of 1 already allows weights of 2,688; what is above is the divisor of another layout."""


class Variant(StrEnum):
    """What a checkpoint's quantized tensors become in residency."""

    NATIVE = "native"
    """As they are; one float32 scale per row."""
    PUBLISHED = "published"
    """As they are, in the published byte layout: nvfp4 with one float16 scale per row."""
    DEQUANTIZED = "dequantized"
    """Numbers of the compute dtype."""


@dataclass(frozen=True, kw_only=True)
class Module:
    """One module of a projection."""

    name: str
    """Full name, without ``.weight``."""
    rows: int


def projection(
    name: str, modules: Sequence[Module], columns: int, form: str, variant: Variant
) -> list[ResidentTensor]:
    """Resident tensors of a projection whose modules all have one format.

    ``name`` [O, C] where it is plain, dequantized or fp8 (then with ``name_scale`` [O]); packed,
    ``name_codes`` [O, C/2], ``name_block_scales`` [O, C/16] and ``name_row_scales`` [O].
    """
    if form == FP8:
        make = _fp8_dequantized if variant is Variant.DEQUANTIZED else _fp8
        return make(name, modules, columns)
    if form == NVFP4:
        if variant is Variant.DEQUANTIZED:
            return [_tensor(name, (columns,), _nvfp4_steps(modules, columns))]
        return _nvfp4(name, modules, columns, variant)
    parts = [(f"{module.name}.weight", module.rows) for module in modules]
    return [merged(name, (columns,), parts)]


def input_scales(name: str, modules: Sequence[Module], kept: Sequence[int]) -> ResidentTensor:
    """``name`` [len(kept)]: the input scales of the modules at ``kept``; the others are checked."""
    sources = []
    for index, module in enumerate(modules):
        at = [kept.index(index)] if index in kept else []
        fill = Fill.REPEAT if at else Fill.CHECK
        sources.append(_input_scale(module, fill, row_offset=sum(at), rows=len(at)))
    return ResidentTensor(name=name, shape=(len(kept),), sources=tuple(sources), dtype="float32")


def with_checks(tensor: ResidentTensor, modules: Sequence[Module]) -> ResidentTensor:
    """The same tensor, with the input scales of some modules read beside it and kept nowhere."""
    checks = tuple(_input_scale(module, Fill.CHECK, row_offset=0, rows=0) for module in modules)
    return replace(tensor, sources=(*tensor.sources, *checks))


def _input_scale(module: Module, fill: Fill, *, row_offset: int, rows: int) -> RowSource:
    return RowSource(
        key=f"{module.name}.input_scale",
        row_offset=row_offset,
        rows=rows,
        shape=(),
        dtypes=("float32",),
        fill=fill,
    )


def _fp8(name: str, modules: Sequence[Module], columns: int) -> list[ResidentTensor]:
    weights = [
        RowSource(key=f"{m.name}.weight", row_offset=o, rows=m.rows, dtypes=(_E4M3,))
        for o, m in _placed(modules)
    ]
    scales = [_scale(m, o, "weight_scale", Fill.REPEAT) for o, m in _placed(modules)]
    return [
        _tensor(name, (columns,), weights, _E4M3),
        _tensor(f"{name}_scale", (), scales, "float32"),
    ]


def _fp8_dequantized(name: str, modules: Sequence[Module], columns: int) -> list[ResidentTensor]:
    steps: list[RowSource] = []
    for offset, module in _placed(modules):
        key = f"{module.name}.weight"
        steps.append(RowSource(key=key, row_offset=offset, rows=module.rows, dtypes=(_E4M3,)))
        steps.append(_scale(module, offset, "weight_scale", Fill.TIMES))
    return [_tensor(name, (columns,), steps)]


def _nvfp4(
    name: str, modules: Sequence[Module], columns: int, variant: Variant
) -> list[ResidentTensor]:
    def parts(kind: str, fill: Fill, dtype: str) -> list[RowSource]:
        return [
            RowSource(
                key=f"{module.name}.{kind}",
                row_offset=offset,
                rows=module.rows,
                dtypes=(dtype,),
                fill=fill,
            )
            for offset, module in _placed(modules)
        ]

    globals_ = [_global(m, o, Fill.REPEAT) for o, m in _placed(modules)]
    row_dtype = "float16" if variant is Variant.PUBLISHED else "float32"
    codes, scales = columns // 2, columns // NVFP4_BLOCK
    return [
        _tensor(f"{name}_codes", (codes,), parts("weight", Fill.COPY, "uint8"), "uint8"),
        _tensor(
            f"{name}_block_scales", (scales,), parts("weight_scale", Fill.COPY_SCALES, _E4M3), _E4M3
        ),
        _tensor(f"{name}_row_scales", (), globals_, row_dtype),
    ]


def _nvfp4_steps(modules: Sequence[Module], columns: int) -> Iterator[RowSource]:
    for offset, module in _placed(modules):
        for kind, fill, dtype, width in (
            ("weight", Fill.DECODE, "uint8", columns // 2),
            ("weight_scale", Fill.TIMES_BLOCKS, _E4M3, columns // NVFP4_BLOCK),
        ):
            yield RowSource(
                key=f"{module.name}.{kind}",
                row_offset=offset,
                rows=module.rows,
                shape=(module.rows, width),
                dtypes=(dtype,),
                fill=fill,
            )
        yield _global(module, offset, Fill.TIMES)


def _scale(module: Module, offset: int, kind: str, fill: Fill) -> RowSource:
    return RowSource(
        key=f"{module.name}.{kind}",
        row_offset=offset,
        rows=module.rows,
        shape=(),
        dtypes=("float32",),
        fill=fill,
        below=_SCALE_BOUND,
    )


def _global(module: Module, offset: int, fill: Fill) -> RowSource:
    return _scale(module, offset, "weight_scale_2", fill)


def _placed(modules: Sequence[Module]) -> Iterator[tuple[int, Module]]:
    offset = 0
    for module in modules:
        yield offset, module
        offset += module.rows


def _tensor(
    name: str,
    columns: tuple[int, ...],
    sources: Sequence[RowSource] | Iterator[RowSource],
    dtype: str | None = None,
) -> ResidentTensor:
    listed = tuple(sources)
    rows = sum(source.rows for source in listed if source.fill.places)
    return ResidentTensor(name=name, shape=(rows, *columns), sources=listed, dtype=dtype)
