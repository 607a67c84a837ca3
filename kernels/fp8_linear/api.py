"""Linear projection by E4M3 weights, by kernel set."""

from collections.abc import Callable

import torch

from kernels.fp8_linear import cpu, native, reference
from kernels.kernel_sets import (
    NATIVE_CPU,
    TORCH_CPU,
    TORCH_CPU_INVARIANT,
    TORCH_REFERENCE,
    choose,
    require,
)

Fp8Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def select(kernel_set: str) -> Fp8Linear:
    """The unchecked implementation in a kernel set, for callers that check once."""
    implementations: dict[str, Fp8Linear] = {
        TORCH_CPU: cpu.fp8_linear,
        TORCH_CPU_INVARIANT: cpu.fp8_linear_invariant,
        NATIVE_CPU: native.fp8_linear,
        TORCH_REFERENCE: reference.fp8_linear,
    }
    return choose("fp8_linear", kernel_set, implementations, _triton)


def _triton() -> Fp8Linear:
    from kernels.fp8_linear import kernel

    return kernel.fp8_linear


def fp8_linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, *, kernel_set: str = TORCH_CPU
) -> torch.Tensor:
    """``x (weight * scale)^T`` of x [R, C], E4M3 weight [O, C], float32 scale [O] or [1].

    ``x`` is bfloat16 or float32, C even, the weight contiguous and without NaN codes. Returns
    [R, O] in the dtype of ``x``.
    """
    implementation = select(kernel_set)
    require(
        x.ndim == 2 and x.dtype in (torch.float32, torch.bfloat16),
        "fp8_linear",
        "x [rows, columns] of float32 or bfloat16",
        (x.dtype, tuple(x.shape)),
    )
    require(x.shape[1] % cpu.LANES == 0, "fp8_linear", "an even number of columns", x.shape[1])
    require(
        weight.dtype == torch.float8_e4m3fn
        and weight.ndim == 2
        and weight.shape[1] == x.shape[1]
        and weight.is_contiguous(),
        "fp8_linear",
        f"contiguous weight float8_e4m3fn [outputs, {x.shape[1]}]",
        (weight.dtype, tuple(weight.shape), weight.stride()),
    )
    require(
        scale.dtype == torch.float32 and scale.shape in ((1,), (weight.shape[0],)),
        "fp8_linear",
        f"scale float32 [1] or [{weight.shape[0]}]",
        (scale.dtype, tuple(scale.shape)),
    )
    devices = {x.device, weight.device, scale.device}
    require(len(devices) == 1, "fp8_linear", "one device", devices)
    return implementation(x, weight, scale)
