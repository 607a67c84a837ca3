"""The built library: where it is, whether it is of today's sources, and the one call into it.

Knows no operation. Nothing is loaded before the first call.
"""

import ctypes
import functools
import hashlib

import torch

from kernels.native.calls import Op
from kernels.native.sources import LIBRARY, built_digest, sources_digest

HOW_TO_BUILD = "install a C++17 compiler, then the package again (pip install -e .)"
_OP_BYTES = ctypes.sizeof(Op)
INSTRUCTION_SETS = ("avx2", "portable")
"""From the widest; the first that the processor has is used. Code for ``avx512`` is in the library
and is not chosen: no processor that has it has run its tests yet."""


class MissingNativeError(RuntimeError):
    """The native kernel set was asked for where it is not built."""


@functools.cache
def library_digest() -> str:
    """``sha256:`` digest of the library that this process runs: taken when it is loaded.

    Raises:
        MissingNativeError: When it is not built.
    """
    require_built()
    return f"sha256:{hashlib.sha256(LIBRARY.read_bytes()).hexdigest()}"


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded library.

    Raises:
        MissingNativeError: When it is not built, cannot be loaded, or is of other sources.
    """
    require_built()
    library_digest()
    built, today = built_digest(), sources_digest()
    if built != today:
        found = "cannot be loaded" if built is None else f"are of other sources, {built}"
        raise MissingNativeError(
            f"the native kernels {found}; today's sources are {today}; {HOW_TO_BUILD}"
        )
    loaded = ctypes.CDLL(str(LIBRARY))
    loaded.native_op_bytes.restype = ctypes.c_int64
    loaded.native_supports.argtypes = [ctypes.c_char_p]
    loaded.native_run.argtypes = [
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int,
    ]
    if loaded.native_op_bytes() != _OP_BYTES:
        raise MissingNativeError(f"the native kernels lay operations out otherwise; {HOW_TO_BUILD}")
    return loaded


@functools.cache
def instruction_set() -> str:
    """The instruction set whose code is used on this processor."""
    supports = library().native_supports
    return next(name for name in INSTRUCTION_SETS if supports(name.encode()))


def run(
    ops: "ctypes.Array[Op] | Op",
    count: int,
    rows: int,
    *,
    start_position: int = 0,
    scratch: torch.Tensor | None = None,
    skipped: int = 0,
    isa: str | None = None,
) -> None:
    """Carry out ``count`` operations in order, on as many threads as torch has.

    Args:
        ops: Their operands are addresses of memory that the caller keeps alive.
        count: How many of ``ops``.
        rows: R, of the step.
        start_position: Position of the first row.
        scratch: Memory that relative operands are offsets into.
        skipped: Operations before the first that is carried out.
        isa: Another instruction set than :func:`instruction_set`.
    """
    code = library().native_run(
        (isa or instruction_set()).encode(),
        ctypes.addressof(ops) + skipped * _OP_BYTES,
        count,
        None if scratch is None else scratch.data_ptr(),
        rows,
        start_position,
        torch.get_num_threads(),
    )
    if code:
        raise MissingNativeError(f"this processor has no {isa}")


def require_built() -> None:
    """Raise a MissingNativeError unless the library is there."""
    if not LIBRARY.is_file():
        raise MissingNativeError(f"kernel set 'native-cpu/1' is not built here; {HOW_TO_BUILD}")
