import pytest
import torch

from harness.errors import InvalidInputError
from harness.state.advancing import AdvancingSession
from harness.state.errors import CapacityError, GapError


def session() -> AdvancingSession:
    return AdvancingSession(
        logical_state_id="state.x", epoch=1, tensors={"s": torch.ones(2)}, capacity_positions=8
    )


def test_rows_begin_at_the_frontier() -> None:
    one = session()
    one.cover(0, 3)
    for start in (0, 2):
        with pytest.raises(InvalidInputError, match="cannot go back"):
            one.cover(start, 1)
    with pytest.raises(GapError):
        one.cover(4, 1)
    assert one.frontier == 3
    one.cover(3, 5)
    with pytest.raises(CapacityError):
        one.cover(8, 1)
    assert one.frontier == 8


def test_the_way_back_is_a_reset_or_a_snapshot() -> None:
    one = session()
    one.cover(0, 5)
    one.restore(2)
    one.cover(2, 1)
    one.reset()
    assert not one.tensors["s"].any()
    one.cover(0, 1)


def test_no_rows_are_refused_as_in_any_session() -> None:
    one = session()
    for start, rows in ((0, 0), (-1, 1)):
        with pytest.raises(InvalidInputError, match="rows are not valid"):
            one.cover(start, rows)
