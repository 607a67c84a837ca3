"""Causal depthwise convolution in Triton: one program per block of rows and block of channels.

R rows, C channels, W taps. The window of a channel is its state, then its rows:

    window   s0 s1 s2 | x0 x1 x2 x3 ...      row r sums the W entries from window[r] on
    state after R rows: window[R] .. window[R + W - 2]

Bitwise: repeats; a row's bits depend on its W inputs and its weights alone, wherever they stand,
since each element sums its taps oldest first; the state is copied. So a cut of the rows changes
nothing. Only the programs of the first rows read the state, and they write it, after all of their
reads: no program can meet what another one wrote.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.configurations import CAUSAL_CONV, padded
from kernels.device_code import (
    FLOATS,
    Variant,
    narrow,
    one_binary,
    require_device,
    sigmoid,
    type_name,
    variant,
    widen,
)
from kernels.kernel_sets import require

OP = "causal_conv"
MOST_TAPS = 17
_SHIPPED_TAPS = 4


@triton.jit
def load_window(inputs, x_row, carried, state_tap, entry, mask, TAPS: tl.constexpr):
    """Entries of the channels' windows."""
    in_state = entry < TAPS - 1
    before = tl.load(carried + entry * state_tap, mask=mask & in_state, other=0.0)
    here = inputs + (entry - (TAPS - 1)) * x_row
    return tl.where(in_state, before, tl.load(here, mask=mask & ~in_state, other=0.0))


@one_binary
def causal_conv_kernel(
    x,
    weight,
    state,
    out,
    num_rows,
    num_channels,
    x_row,
    x_channel,
    weight_channel,
    weight_tap,
    state_channel,
    state_tap,
    TAPS: tl.constexpr,
    KEPT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """``out = silu(sum of weight times window)``; KEPT pads the entries of the state."""
    block = tl.program_id(0)
    row = (block.to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS).to(tl.int64)
    has_channel = channel < num_channels
    inside = (row < num_rows) & has_channel[None, :]
    inputs = x + channel[None, :] * x_channel
    carried = state + channel[None, :] * state_channel
    sums = tl.zeros([BLOCK_ROWS, BLOCK_CHANNELS], tl.float32)
    for tap in tl.static_range(TAPS):
        value = load_window(inputs, x_row, carried, state_tap, row + tap, inside, TAPS)
        factor = weight + channel * weight_channel + tap * weight_tap
        sums += widen(value) * widen(tl.load(factor, mask=has_channel, other=0.0))[None, :]
    target = out + row * num_channels + channel[None, :]
    tl.store(target, narrow(sums * sigmoid(sums), out.dtype.element_ty), mask=inside)
    if block == 0:
        kept = tl.arange(0, KEPT).to(tl.int64)[:, None]
        present = (kept < TAPS - 1) & has_channel[None, :]
        newest = load_window(inputs, x_row, carried, state_tap, num_rows + kept, present, TAPS)
        # Every thread has read before one writes: entries move to places that others read.
        tl.debug_barrier()
        tl.store(carried + kept * state_tap, newest, mask=present)


def causal_conv(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """``silu`` of the convolution of [R, C] by [C, W] after state [C, W - 1], updated in place."""
    require_device(OP, x, weight, state)
    (rows, channels), taps = x.shape, weight.shape[1]
    require(taps <= MOST_TAPS, OP, f"at most {MOST_TAPS} taps", taps)
    out = torch.empty((rows, channels), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    blocks = CAUSAL_CONV.blocks
    causal_conv_kernel[
        (-(-rows // blocks["BLOCK_ROWS"]), -(-channels // blocks["BLOCK_CHANNELS"]))
    ](
        x,
        weight,
        state,
        out,
        rows,
        channels,
        *x.stride(),
        *weight.stride(),
        *state.stride(),
        TAPS=taps,
        KEPT=padded(taps - 1, least=1),
        **blocks,
        num_warps=CAUSAL_CONV.num_warps,
        num_stages=CAUSAL_CONV.num_stages,
    )
    return out


def variants() -> Iterator[Variant]:
    """Both dtypes; another number of taps repeats what one does."""
    for dtype in FLOATS:
        name = type_name(dtype)
        yield variant(
            f"{name} {_SHIPPED_TAPS} taps",
            causal_conv_kernel,
            CAUSAL_CONV,
            f"x:{name} weight:{name} state:{name} out:{name}",
            TAPS=_SHIPPED_TAPS,
            KEPT=padded(_SHIPPED_TAPS - 1, least=1),
        )
