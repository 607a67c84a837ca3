"""Writing rows into a cache in C++, as a part of longer work: a copy has one result.

Shapes: R rows, W elements of a row of keys or values, S slots.
"""

import torch

from kernels.native.calls import Kind, Op, Operand, operation


def describe(
    k_rows: tuple[Operand, int, int],
    v_rows: tuple[Operand, int, int],
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> Op:
    """The operation: rows to the slots of their positions.

    Args:
        k_rows: A buffer, elements of one of its rows, and where in a row W keys begin.
        v_rows: The same of values.
        k_cache: [S, ...] of W elements each, contiguous.
        v_cache: The same.
    """
    width = k_cache.element_size()
    row_bytes = k_cache[0].numel() * width
    (k, k_row, k_first), (v, v_row, v_first) = k_rows, v_rows
    return operation(
        Kind.STORE,
        k_cache.dtype,
        sizes=(row_bytes, k_row * width, v_row * width, k_first * width, v_first * width),
        operands=(k, v, k_cache, v_cache),
    )
