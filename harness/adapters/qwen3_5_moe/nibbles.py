"""Which of two packed elements comes first: what can be checked of it, and what cannot.

Both elements of a byte share their row and their block's scale, so no statistic of a packed weight
alone tells the two orders apart: swapping them changes no multiset of values. Two things do tell:

* what an op makes of bytes whose meaning is known (:func:`check_op`);
* weights of an ordinary float type that read the same columns (:func:`order_score`). In a trained
  model the columns of one layer's readers are large and small together: that of the router beside
  that of an expert. Pairs in the right order then agree, and swapped ones disagree as much.

Where nothing is shared (random weights), the second shows nothing, and nothing is refused.

Shape legend: O rows, C columns.
"""

import math
from collections.abc import Iterable

import torch

import kernels.nvfp4.api as nvfp4
from harness.errors import CheckpointError, NotEvaluableError
from kernels.nvfp4.records import BLOCK_COLUMNS, NvFp4Rows

SWAPPED_SCORE = -10.0
"""Standard deviations of chance. Unrelated weights reach it once in 1e23 checkpoints."""


def check_op(kernel_set: str, device: torch.device) -> None:
    """Refuse an op that does not read the even element from the low four bits.

    Raises:
        NotEvaluableError: When it does not.
    """
    codes = torch.full((1, BLOCK_COLUMNS // 2), 0x21, dtype=torch.uint8, device=device)
    rows = NvFp4Rows(
        codes=codes,
        block_scales=torch.ones(1, 1, device=device).to(torch.float8_e4m3fn),
        row_scales=torch.ones(1, device=device),
    )
    got = nvfp4.select(kernel_set)(torch.eye(BLOCK_COLUMNS, device=device), rows).flatten().tolist()
    expected = [0.5, 1.0] * (BLOCK_COLUMNS // 2)
    if got != expected:
        raise NotEvaluableError(
            "the op reads packed weights in another order",
            expected=str(expected[:2]),
            got=str(got[:2]),
            where=kernel_set,
        )


def order_score(rows: NvFp4Rows, reader: torch.Tensor, kernel_set: str) -> float:
    """How far packed rows [O, C] and a reader [P, C] of the same columns agree, pair by pair.

    The correlation, over pairs of columns, of the logarithms of the ratios of their sizes, in
    standard deviations of chance: positive for the right order, negative for the swapped one.
    """
    weight = nvfp4.select_dequantize(kernel_set)(rows, torch.float32)
    packed, plain = _pair_ratios(weight), _pair_ratios(reader.float())
    packed, plain = packed - packed.mean(), plain - plain.mean()
    norm = packed.norm() * plain.norm()
    if not float(norm) > 0:
        return 0.0
    return float((packed * plain).sum() / norm) * math.sqrt(len(packed))


def check_order(scores: Iterable[float]) -> None:
    """Refuse a checkpoint whose packed weights, over all layers, agree with the swapped order.

    Raises:
        CheckpointError: When they do, beyond chance.
    """
    listed = list(scores)
    total = sum(listed) / math.sqrt(max(1, len(listed)))
    if total <= SWAPPED_SCORE:
        raise CheckpointError(
            "packed weights have their elements swapped",
            expected="the even element in the low four bits",
            got=f"columns that agree with the router's in swapped pairs ({total:.1f} deviations "
            f"of chance over {len(listed)} layers)",
            hint="convert the checkpoint again; modelopt puts the even element first",
        )


def _pair_ratios(weight: torch.Tensor) -> torch.Tensor:
    sizes = weight.double().square().sum(dim=0).clamp_(min=1e-30).log_()
    return sizes[::2] - sizes[1::2]
