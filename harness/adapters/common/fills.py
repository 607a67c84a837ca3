"""The ways in which a checkpoint tensor comes into resident rows. Knows no family.

A copy to another device may still run when it was asked for: the caller keeps the source until it
knows that it ended.

Shape legend: O rows, C columns.
"""

import math
from collections.abc import Callable, Mapping

import torch

from harness.adapters.common.rows import Fill, RowSource
from harness.errors import CheckpointError
from harness.state.copies import copy_rows

BLOCK_COLUMNS = 16
_LARGEST_SCALE_BITS = 0x7E
"""448; what is above is not a number, or negative."""
_NAN_BITS = 0x7F
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_PANEL_CODES = 1 << 20
"""Bytes of codes handled at a time: what that needs besides is a small multiple."""


def fill(source: RowSource, slot: torch.Tensor, tensor: torch.Tensor) -> None:
    """Bring one checkpoint tensor into its rows.

    Raises:
        CheckpointError: When a scale is not finite, negative, out of bounds, or lost by rounding,
            or a weight is not a number.
    """
    _FILLS[source.fill](source, slot, tensor)


def check_read(source: RowSource, slot: torch.Tensor) -> None:
    """Check what was read straight into its rows, as :func:`fill` would have.

    Raises:
        CheckpointError: When a scale is not finite, or negative, or a weight is not a number.
    """
    if source.fill is Fill.COPY_SCALES:
        _check_e4m3(source, slot)
    elif source.fill is Fill.COPY:
        _check_weights(source, slot)


def _copy(source: RowSource, slot: torch.Tensor, tensor: torch.Tensor) -> None:
    _check_weights(source, tensor)
    copy_rows(slot, tensor.reshape(slot.shape))


def _copy_scales(source: RowSource, slot: torch.Tensor, tensor: torch.Tensor) -> None:
    _check_e4m3(source, tensor)
    copy_rows(slot, tensor.reshape(slot.shape))


def _repeat(source: RowSource, slot: torch.Tensor, tensor: torch.Tensor) -> None:
    scale = _checked(source, tensor)
    slot.fill_(scale)
    kept = slot.reshape(-1)[0].item() if slot.numel() else scale
    if not math.isfinite(kept) or (kept == 0) != (scale == 0):
        raise CheckpointError(
            "a scale is lost by rounding",
            expected=f"a number that {str(slot.dtype).removeprefix('torch.')} can hold",
            got=repr(scale),
            where=source.key,
            hint="plan a representation that keeps scales in float32",
        )


def _decode(source: RowSource, slot: torch.Tensor, tensor: torch.Tensor) -> None:
    del source
    values = torch.tensor(
        [*_E2M1, *(-value for value in _E2M1)], dtype=slot.dtype, device=slot.device
    )
    pairs = slot.view(slot.shape[0], -1, 2)
    step = max(1, _PANEL_CODES // tensor.shape[1])
    for begin in range(0, tensor.shape[0], step):
        codes = tensor[begin : begin + step].to(slot.device)
        pairs[begin : begin + step, :, 0] = values[(codes & 0xF).int()]
        pairs[begin : begin + step, :, 1] = values[(codes >> 4).int()]


def _times_blocks(source: RowSource, slot: torch.Tensor, tensor: torch.Tensor) -> None:
    _check_e4m3(source, tensor)
    # The product of a code and a block's scale has six significant bits: exact in every float type.
    slot.view(*tensor.shape, BLOCK_COLUMNS).mul_(tensor.to(slot.device, slot.dtype)[..., None])


def _times(source: RowSource, slot: torch.Tensor, tensor: torch.Tensor) -> None:
    slot.mul_(_checked(source, tensor))


def _check(source: RowSource, slot: torch.Tensor, tensor: torch.Tensor) -> None:
    del slot
    _checked(source, tensor)


def _checked(source: RowSource, tensor: torch.Tensor) -> float:
    scale = float(tensor.reshape(()))
    bound = math.inf if source.below is None else source.below
    if not 0 <= scale < bound:
        raise CheckpointError(
            "a scale is not one",
            expected=f"a finite number in [0, {bound})",
            got=repr(scale),
            where=source.key,
            hint="a factor of 1 or more may be a divisor of another layout"
            if 1 <= scale < math.inf
            else None,
        )
    return scale


def _check_weights(source: RowSource, weights: torch.Tensor) -> None:
    """Refuse e4m3 weights that are no numbers, which products are not made to carry."""
    if weights.dtype != torch.float8_e4m3fn:
        return
    bits = weights.reshape(-1).view(torch.uint8)
    for begin in range(0, len(bits), _PANEL_CODES):
        wrong = (bits[begin : begin + _PANEL_CODES] & _NAN_BITS) == _NAN_BITS
        if bool(wrong.any()):
            raise CheckpointError(
                "weights are not numbers",
                expected="finite e4m3 weights",
                got=f"NaN at {begin + int(wrong.int().argmax())}",
                where=source.key,
            )


def _check_e4m3(source: RowSource, scales: torch.Tensor) -> None:
    bits = scales.reshape(-1).view(torch.uint8)
    if not bits.numel() or int(bits.max()) <= _LARGEST_SCALE_BITS:
        return
    wrong = bits > _LARGEST_SCALE_BITS
    first = int(wrong.int().argmax())
    raise CheckpointError(
        f"{int(wrong.sum())} block scales are not finite, or negative",
        expected="finite numbers of 0 or more",
        got=f"{float(scales.reshape(-1)[first].float())} at {first}",
        where=source.key,
    )


_FILLS: Mapping[Fill, Callable[[RowSource, torch.Tensor, torch.Tensor], None]] = {
    Fill.COPY: _copy,
    Fill.COPY_SCALES: _copy_scales,
    Fill.REPEAT: _repeat,
    Fill.DECODE: _decode,
    Fill.TIMES_BLOCKS: _times_blocks,
    Fill.TIMES: _times,
    Fill.CHECK: _check,
}
