"""A 128-bit fingerprint of a tensor's bytes by kernel set; equal in every set.

It tells apart what differs by accident, at the speed of reading; it is no cryptographic digest.
"""

from collections.abc import Callable

import torch

from kernels.fingerprint import cpu, reference
from kernels.kernel_sets import NATIVE_CPU, TORCH_CPU, TORCH_CPU_INVARIANT, TORCH_REFERENCE, choose

Fingerprint = Callable[[torch.Tensor], torch.Tensor]


def select(kernel_set: str) -> Fingerprint:
    """The implementation in a kernel set: from any tensor to int64 [2] on its device."""
    # Sums of integers have one result in any order.
    implementations: dict[str, Fingerprint] = {
        TORCH_CPU: cpu.fingerprint,
        TORCH_CPU_INVARIANT: cpu.fingerprint,
        NATIVE_CPU: cpu.fingerprint,
        TORCH_REFERENCE: reference.fingerprint,
    }
    return choose("fingerprint", kernel_set, implementations, _triton)


def _triton() -> Fingerprint:
    from kernels.fingerprint import kernel

    return kernel.fingerprint


def fingerprint(x: torch.Tensor, *, kernel_set: str = TORCH_CPU) -> str:
    """The fingerprint of the bytes of ``x`` in row-major order, as 32 hexadecimal digits."""
    return as_hex(select(kernel_set)(x))


def as_hex(lanes: torch.Tensor) -> str:
    """Write int64 [2] as 32 hexadecimal digits."""
    return "".join(f"{lane % (1 << 64):016x}" for lane in lanes.tolist())
