"""Operations as the library takes them: one record of sizes, flags and addresses each.

Loads nothing. A tensor is given by its address; whoever runs an operation keeps it alive.
"""

import ctypes
from collections.abc import Sequence
from enum import IntEnum, IntFlag

import torch


class Kind(IntEnum):
    """What an operation does; see ops.h."""

    RMS_NORM = 1
    LINEAR = 2
    ROPE = 3
    STORE = 4
    ATTENTION = 5
    SILU_GATED = 6
    GREEDY = 7
    EXPERTS = 8


class Flag(IntFlag):
    """How an operation does it; see op.h."""

    NONE = 0
    UNIT_OFFSET = 1
    FLOAT_OUT = 2
    WIDENED_OUT = 4
    ONE_SCALE = 8
    HALF_SCALES = 16


NVFP4 = 3
"""Weight type of packed rows, which torch has no dtype for."""
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float8_e4m3fn: 2}
"""Of activations (the first two) and weights."""


class Relative(int):
    """An operand in the scratch memory: its offset there, in bytes for each row of the step."""


Operand = torch.Tensor | Relative | None


class Op(ctypes.Structure):
    """The record; laid out as in op.h."""

    held: tuple[Operand, ...]
    """Kept alive with the record, unless it is copied into an array."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("weight", ctypes.c_int32),
        ("flags", ctypes.c_int32),
        ("relative", ctypes.c_int64),
        ("size", ctypes.c_int64 * 8),
        ("operand", ctypes.c_int64 * 12),
        ("real", ctypes.c_double * 2),
    )


def type_of(dtype: torch.dtype) -> int:
    """The library's number of a dtype of activations.

    Raises:
        ValueError: For another one than float32 and bfloat16.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"native kernels: expected float32 or bfloat16, got {dtype}")
    return TYPES[dtype]


def operation(
    kind: Kind,
    dtype: torch.dtype,
    *,
    sizes: Sequence[int] = (),
    operands: Sequence[Operand] = (),
    weight: int = 0,
    flags: Flag = Flag.NONE,
    reals: Sequence[float] = (),
) -> Op:
    """A record; ops.h says which sizes and operands an operation takes, in which order.

    Raises:
        ValueError: For a dtype that :func:`type_of` refuses, or a tensor on another device.
    """
    relative = 0
    addresses = []
    for index, operand in enumerate(operands):
        if isinstance(operand, Relative):
            relative |= 1 << index
            addresses.append(int(operand))
        elif operand is None:
            addresses.append(0)
        elif operand.is_cpu:
            addresses.append(operand.data_ptr())
        else:
            raise ValueError(f"native kernels: expected tensors on a CPU, got {operand.device}")
    op = Op(
        kind, type_of(dtype), weight, flags, relative, tuple(sizes), tuple(addresses), tuple(reals)
    )
    op.held = tuple(operands)
    return op


def ordered_columns(columns: int) -> int:
    """Room for a row in the order of a weight's columns, padded for any instruction set."""
    return -(-columns // 128) * 128
