"""Causal depthwise convolution with silu and a carried state, by kernel set."""

from collections.abc import Callable

import torch

from kernels.causal_conv import cpu, reference
from kernels.kernel_sets import (
    NATIVE_CPU,
    TORCH_CPU,
    TORCH_CPU_INVARIANT,
    TORCH_REFERENCE,
    choose,
    require,
)

CausalConv = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def select(kernel_set: str) -> CausalConv:
    """The unchecked implementation in a kernel set, for callers that check once."""
    implementations: dict[str, CausalConv] = {
        TORCH_CPU: cpu.causal_conv,
        TORCH_CPU_INVARIANT: cpu.causal_conv_invariant,
        NATIVE_CPU: cpu.causal_conv_invariant,
        TORCH_REFERENCE: reference.causal_conv,
    }
    return choose("causal_conv", kernel_set, implementations, _triton)


def _triton() -> CausalConv:
    from kernels.causal_conv import kernel

    return kernel.causal_conv


def causal_conv(
    x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, *, kernel_set: str = TORCH_CPU
) -> torch.Tensor:
    """``silu(conv(x))`` of x [R, C] by weight [C, W] after the raw inputs in state [C, W - 1].

    The state, oldest input first, is overwritten by the last W - 1 raw inputs; zeros stand for the
    start of a sequence. All of one dtype, on one device. Returns [R, C].
    """
    implementation = select(kernel_set)
    require(
        x.ndim == 2 and x.shape[0] > 0, "causal_conv", "x [rows, channels], a row or more", x.shape
    )
    channels = x.shape[1]
    require(
        weight.ndim == 2 and weight.shape[0] == channels and weight.shape[1] > 1,
        "causal_conv",
        f"weight [{channels}, 2 taps or more]",
        tuple(weight.shape),
    )
    shape = (channels, weight.shape[1] - 1)
    require(state.shape == shape, "causal_conv", f"state {list(shape)}", tuple(state.shape))
    parts = (x, weight, state)
    require(
        all(part.dtype == x.dtype and part.device == x.device for part in parts),
        "causal_conv",
        f"all {x.dtype} on {x.device}",
        [(part.dtype, part.device) for part in parts],
    )
    return implementation(x, weight, state)
