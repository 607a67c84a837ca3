"""What the Triton kernels share: how they are compiled, and arithmetic that has one meaning both
compiled and interpreted. Knows no op. Imported by ``kernel.py`` files only; imports triton.

Why no runtime argument is specialized: Triton compiles anew for arguments that are 1, or divisible
by 16, and the layout it then chooses decides the order of sums. A row's bits would depend on the
number of rows or on where a tensor begins. Here a kernel's binary depends on dtypes and on
constants alone; the alignment in bytes that it may assume is such a constant (``ALIGN``).
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.configurations import Configuration
from kernels.kernel_sets import require

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Whether kernels run in Triton's interpreter, which knows no bfloat16 arithmetic."""

WIDE_BYTES = 16
"""The widest load of one thread."""
_NAMES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.int64: "i64",
}
FLOATS = (torch.float32, torch.bfloat16)
"""What the kernels compute with."""


def runtime_parameters(fn: Callable[..., Any]) -> list[str]:
    """Names of the parameters of a kernel that are no compile-time constants."""
    parameters = inspect.signature(fn).parameters.values()
    return [p.name for p in parameters if p.annotation is not tl.constexpr]


def one_binary(fn: Callable[..., Any]) -> Any:
    """Compile a kernel without specializing it to any runtime argument."""
    names = runtime_parameters(fn)
    return triton.jit(do_not_specialize=names, do_not_specialize_on_alignment=names)(fn)


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One compilation of a kernel that is shipped."""

    name: str
    kernel: Any
    types: Mapping[str, str]
    """Of each runtime parameter, as Triton writes them: ``*bf16``, ``i32``, ``fp32``."""
    constants: Mapping[str, Any]
    num_warps: int
    num_stages: int


def variant(
    name: str, kernel: Any, configuration: Configuration, pointers: str, **constants: Any
) -> Variant:
    """A variant whose pointers are listed as ``"x:bf16 slots:i64"``; other parameters are i32.

    Parameters called ``scale``, ``eps``, ``cap`` or ``softcap`` are fp32.
    """
    typed = dict(entry.split(":") for entry in pointers.split())
    types = {}
    for parameter in runtime_parameters(kernel.fn):
        number = "fp32" if parameter in ("scale", "eps", "cap", "softcap") else "i32"
        types[parameter] = f"*{typed[parameter]}" if parameter in typed else number
    return Variant(
        name=name,
        kernel=kernel,
        types=types,
        constants={**configuration.blocks, **constants},
        num_warps=configuration.num_warps,
        num_stages=configuration.num_stages,
    )


def type_name(dtype: torch.dtype) -> str:
    """Triton's name of a dtype."""
    return _NAMES[dtype]


def alignment(*tensors: torch.Tensor, size: int) -> int:
    """The ``ALIGN`` that all ``tensors`` and their rows of ``size`` elements allow.

    For kernels without sums, whose bits do not depend on it.
    """
    whole = size * tensors[0].element_size() % WIDE_BYTES == 0
    wide = whole and all(_is_aligned(x) for x in tensors)
    return WIDE_BYTES if wide else tensors[0].element_size()


def _is_aligned(x: torch.Tensor) -> bool:
    strides = (stride * x.element_size() for stride in x.stride()[:-1])
    return x.data_ptr() % WIDE_BYTES == 0 and all(s % WIDE_BYTES == 0 for s in strides)


def with_dense_rows(x: torch.Tensor) -> torch.Tensor:
    """``x``, or a copy of it where elements of its last axis do not lie side by side."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def placed_by_size(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """``x`` so placed that its ``ALIGN`` depends on dtype and row size alone; and that ALIGN.

    For kernels with sums. Copies where a row of a size that allows wide loads is not aligned.
    """
    x = with_dense_rows(x)
    if x.shape[-1] * x.element_size() % WIDE_BYTES:
        return x, x.element_size()
    if not _is_aligned(x):
        x = x.clone(memory_format=torch.contiguous_format)
    return x, WIDE_BYTES


def by_heads(x: torch.Tensor) -> torch.Tensor:
    """``x`` [R, ..., D] as [R, N, D]; copied where its middle axes do not lie evenly."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:-1]), x.shape[-1])


def require_reachable(op: str, *tensors: torch.Tensor) -> None:
    """Raise a ValueError unless a kernel can read ``tensors`` where they are."""
    for x in tensors:
        expected = "tensors on a CUDA device for a Triton kernel"
        require(x.is_cuda or bool(INTERPRETED.value), op, expected, x.device)


def require_device(op: str, *tensors: torch.Tensor) -> None:
    """As :func:`require_reachable`, and unless their floats are of a dtype it computes with."""
    require_reachable(op, *tensors)
    for x in tensors:
        if x.is_floating_point():
            require(x.dtype in FLOATS, op, "float32 or bfloat16", x.dtype)


@triton.jit
def widen(x):
    """To float32, exactly."""
    if INTERPRETED and x.dtype == tl.bfloat16:
        # Many times faster there than its own conversion.
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """Round float32 to ``dtype``, to nearest, ties to even."""
    if dtype == tl.bfloat16 and INTERPRETED:
        # The interpreter's own conversion truncates. The same rounding on the bits; a NaN is kept
        # apart, as a carry could turn it into an infinity.
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where(x == x, rounded, 0x7FC0)
        return rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(dtype)


@triton.jit
def dot(a, b):
    """``a b`` of one dtype with float32 sums; float32 products are not shortened."""
    if INTERPRETED:
        # What interprets takes another order of sums at another place of a tile, which a matrix
        # unit does not. float64 sums hide the order: they are rounded to one float32.
        return tl.dot(widen(a).to(tl.float64), widen(b).to(tl.float64)).to(tl.float32)
    else:
        return tl.dot(a, b, input_precision="ieee")


@triton.jit
def tanh(x):
    """Hyperbolic tangent of float32 within 4 units in the last place; NaN stays NaN."""
    # Near 0 the quotient cancels; there the Taylor polynomial is exact to float32.
    square = x * x
    odd = 62.0 / 2835 - square * (1382.0 / 155925)
    odd = -17.0 / 315 + square * odd
    odd = 2.0 / 15 + square * odd
    odd = -1.0 / 3 + square * odd
    small = x + x * square * odd
    decayed = tl.exp(-2.0 * tl.abs(x))
    large = (1.0 - decayed) / (1.0 + decayed)
    large = tl.where(x < 0, -large, large)
    return tl.where(tl.abs(x) < 0.25, small, large)


@triton.jit
def sigmoid(x):
    """``1 / (1 + exp(-x))`` of float32; exp of a large number is infinite, and the quotient 0."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """``log(1 + exp(x))`` of float32, also where it is far below 1."""
    # log(1 + u) for u near 0: the rounding of 1 + u is undone by the quotient (Kahan).
    u = tl.exp(-tl.abs(x))
    total = 1.0 + u
    above = tl.where(total == 1.0, u, tl.log(total) * u / (total - 1.0))
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) + above


@triton.jit
def e4m3(code):
    """The float32 value of E4M3 bits (uint8), exact; both NaN codes are NaN."""
    # Not every target has the type. Moved up by 7, the bits are a float16 of 2^-8 times the value.
    bits = code.to(tl.uint16)
    bits = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    value = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((code & 0x7F) == 0x7F, float("nan"), value)


@triton.jit
def dot_exact(x, weight):
    """``x weight`` of exact products and float32 sums.

    ``x`` is float32 or bfloat16, ``weight`` float32 of at most 8 significant bits. An infinity in a
    float32 ``x`` gives NaN.
    """
    # Interpreted, the same values stay float32: its own conversion is slow, and would truncate.
    short: tl.constexpr = tl.float32 if INTERPRETED else tl.bfloat16
    weight = weight.to(short)
    if x.dtype == tl.bfloat16:
        return dot(x, weight)
    else:
        # A float32 is the sum of three bfloat16, 8 bits each; matrix units then multiply exactly.
        high = (x.to(tl.uint32, bitcast=True) & 0xFFFF0000).to(tl.float32, bitcast=True)
        rest = x - high
        middle = (rest.to(tl.uint32, bitcast=True) & 0xFFFF0000).to(tl.float32, bitcast=True)
        sums = dot((rest - middle).to(short), weight) + dot(middle.to(short), weight)
        return sums + dot(high.to(short), weight)
