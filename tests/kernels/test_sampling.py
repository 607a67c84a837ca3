import math

import pytest
import torch

from kernels.sampling.api import greedy

SETS = ("torch-cpu/1", "torch-reference/1")


@pytest.mark.parametrize("size", [1, 2, 3, 63, 65, 49152])
def test_equals_reference(size: int, dtype: torch.dtype) -> None:
    logits = torch.randn(size).to(dtype).float()  # bfloat16 values tie often
    assert greedy(logits) == greedy(logits, kernel_set="torch-reference/1")


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize(
    ("logits", "token", "margin"),
    [
        ([1.0, 4.0, 2.5], 1, 1.5),
        ([1.0, 4.0, 4.0, 0.0], 1, 0.0),
        ([-1.0, -1.0], 0, 0.0),
        ([-math.inf, -3.0], 1, math.inf),
        ([math.inf, math.inf, 1.0], 0, 0.0),
        ([7.0], 0, math.inf),
    ],
)
def test_lowest_index_and_margin(
    kernel_set: str, logits: list[float], token: int, margin: float
) -> None:
    assert greedy(torch.tensor(logits), kernel_set=kernel_set) == (token, margin)


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("logits", [[1.0, math.nan, 9.0], [math.nan], [math.nan, math.nan]])
def test_nan_never_looks_like_a_clear_choice(kernel_set: str, logits: list[float]) -> None:
    token, margin = greedy(torch.tensor(logits), kernel_set=kernel_set)
    assert math.isnan(logits[token])
    assert math.isnan(margin)


def test_refuses_an_empty_row() -> None:
    with pytest.raises(ValueError, match="logits"):
        greedy(torch.zeros(0))
