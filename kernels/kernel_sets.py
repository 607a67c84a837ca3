"""How an op's ``api`` chooses an implementation: by the exact name of a kernel set.

A kernel set is a named, versioned choice of one implementation per op; two sets may differ in
bits, so a set that an op lacks is an error and never replaced by another one.
"""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

TORCH_CPU = "torch-cpu/1"
"""The fast path on a CPU: torch operations only, bitwise repeatable for equal geometry."""
TORCH_CPU_INVARIANT = "torch-cpu-invariant/1"
"""Each row computed alone, as torch-cpu/1 computes a step of one row: a row's bits depend neither
on the rows beside it nor on how a prompt is cut into steps. Many rows cost as many single ones."""
TORCH_REFERENCE = "torch-reference/1"
"""The oracle of each op, in double precision inside; slow."""


class UnknownKernelSetError(ValueError):
    """A kernel set that is not built here."""


def choose(op: str, kernel_set: str, implementations: Mapping[str, T]) -> T:
    """Return the implementation of ``op`` in ``kernel_set``.

    Raises:
        UnknownKernelSetError: When the op has no implementation in that set.
    """
    try:
        return implementations[kernel_set]
    except KeyError:
        known = ", ".join(sorted(implementations))
        raise UnknownKernelSetError(
            f"kernel set {kernel_set!r} has no {op}; built here: {known}"
        ) from None


def require(condition: bool, op: str, expected: str, got: object) -> None:
    """Raise a ValueError that says what an op expected and what it got, unless ``condition``."""
    if not condition:
        raise ValueError(f"{op}: expected {expected}, got {got}")
