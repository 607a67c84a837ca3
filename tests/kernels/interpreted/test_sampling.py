import math

import pytest
import torch

from kernels.sampling.api import greedy

TRITON, REFERENCE = "triton/1", "torch-reference/1"


@pytest.mark.parametrize("size", [1, 2, 3, 63, 65, 4097, 49152])
def test_equals_reference(size: int, dtype: torch.dtype) -> None:
    logits = torch.randn(size).to(dtype)  # bfloat16 values tie often
    assert greedy(logits, kernel_set=TRITON) == greedy(logits, kernel_set=REFERENCE)
    if size > 2:
        strided = logits[1::2]
        assert greedy(strided, kernel_set=TRITON) == greedy(strided, kernel_set=REFERENCE)


@pytest.mark.parametrize(
    ("values", "token", "margin"),
    [
        ({5: 4.0, 9000: 2.5}, 5, 1.5),
        ({4095: 4.0, 4096: 4.0}, 4095, 0.0),
        ({8000: 4.0, 8001: 3.0, 1: 2.0}, 8000, 1.0),
        ({8000: math.inf, 1: 2.0}, 8000, math.inf),
        ({3: math.inf, 8000: math.inf}, 3, 0.0),
    ],
)
def test_lowest_index_and_margin(values: dict[int, float], token: int, margin: float) -> None:
    logits = torch.zeros(9001)
    for index, value in values.items():
        logits[index] = value
    assert greedy(logits, kernel_set=TRITON) == (token, margin)
    assert greedy(torch.full((9000,), -math.inf), kernel_set=TRITON) == (0, 0.0)
    assert greedy(torch.tensor([7.0]), kernel_set=TRITON) == (0, math.inf)


@pytest.mark.parametrize("at", [0, 1, 4097, 9000])
def test_the_first_nan_is_chosen_without_a_margin(at: int) -> None:
    logits = torch.randn(9001)
    logits[at] = logits[9000] = math.nan
    logits[7] = math.inf
    token, margin = greedy(logits, kernel_set=TRITON)
    assert token == at
    assert math.isnan(margin)
    assert math.isnan(greedy(torch.tensor([math.nan]), kernel_set=TRITON)[1])


def test_any_order_of_programs(program_order) -> None:
    logits = torch.randn(20000).bfloat16()
    expected = greedy(logits, kernel_set=TRITON)
    for order in ("reversed", "shuffled"):
        with program_order(order):
            assert greedy(logits, kernel_set=TRITON) == expected
