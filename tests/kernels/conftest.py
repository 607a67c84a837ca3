"""Dtypes, awkward sizes and tolerances that all ops are tested with."""

from collections.abc import Iterator

import pytest
import torch

SIZES = (1, 3, 63, 65)
"""One, fewer than a vector, and one below and above a power of two."""


@pytest.fixture(autouse=True)
def one_thread_and_seed() -> Iterator[None]:
    """Fixed inputs; small operations only lose time to a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    return chosen


@pytest.fixture(params=SIZES)
def rows(request: pytest.FixtureRequest) -> int:
    chosen: int = request.param
    return chosen
