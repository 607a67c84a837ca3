"""How an op's ``api`` chooses an implementation: by the exact name of a kernel set.

A kernel set is a named, versioned choice of one implementation per op; two sets may differ in
bits, so a set that an op lacks is an error and never replaced by another one.
"""

import importlib.util
from collections.abc import Callable, Mapping
from typing import TypeVar

from kernels.native import library

T = TypeVar("T")

TORCH_CPU = "torch-cpu/1"
"""The fast path on a CPU: torch operations only, bitwise repeatable for equal geometry."""
TORCH_CPU_INVARIANT = "torch-cpu-invariant/1"
"""Each row computed alone, as torch-cpu/1 computes a step of one row: a row's bits depend neither
on the rows beside it nor on how a prompt is cut into steps. Many rows cost as many single ones."""
NATIVE_CPU = "native-cpu/1"
"""Operations in C++ where they pay, the others as in torch-cpu-invariant/1. A row's bits depend
neither on the rows beside it nor on how a prompt is cut into steps, nor on the number of threads
where the operation is in C++. Which bits these are, the library's digest in a record's key says."""
TORCH_REFERENCE = "torch-reference/1"
"""The oracle of each op, in double precision inside; slow."""
TRITON = "triton/1"
"""Triton kernels, one pinned configuration per shape class; on a CUDA GPU, or interpreted. A row's
bits depend neither on the rows beside it nor on how a prompt is cut into steps."""


class UnknownKernelSetError(ValueError):
    """A kernel set that is not built here."""


class MissingTritonError(RuntimeError):
    """A kernel set of Triton kernels was asked for where Triton is not installed."""


def choose(
    op: str,
    kernel_set: str,
    implementations: Mapping[str, T],
    triton: Callable[[], T] | None = None,
) -> T:
    """Return the implementation of ``op`` in ``kernel_set``.

    Args:
        op: Named in errors.
        kernel_set: The exact name.
        implementations: Those that need torch alone.
        triton: Imports the op's Triton kernels; called only when their set is asked for.

    Raises:
        UnknownKernelSetError: When the op has no implementation in that set.
        MissingTritonError: When the set needs Triton, and it is not installed.
        kernels.native.library.MissingNativeError: When the set is of C++, and that is not built.
    """
    if kernel_set == NATIVE_CPU:
        library.library()
    if kernel_set == TRITON and triton is not None:
        if importlib.util.find_spec("triton") is None:
            raise MissingTritonError(
                f"kernel set {TRITON!r} needs the distribution triton, which is not installed; "
                "install the project's extra of that name, or name another kernel set in the plan"
            )
        return triton()
    try:
        return implementations[kernel_set]
    except KeyError:
        built = [*implementations, TRITON] if triton is not None else [*implementations]
        raise UnknownKernelSetError(
            f"kernel set {kernel_set!r} has no {op}; built here: {', '.join(sorted(built))}"
        ) from None


def require(condition: bool, op: str, expected: str, got: object) -> None:
    """Raise a ValueError that says what an op expected and what it got, unless ``condition``."""
    if not condition:
        raise ValueError(f"{op}: expected {expected}, got {got}")
