from collections.abc import Callable

import pytest
import torch

from harness.errors import ExitCode, InvalidInputError
from harness.state.session import CapacityError, GapError, Session


@pytest.fixture
def session() -> Session:
    return Session(
        logical_state_id="state.x",
        epoch=3,
        tensors={"a": torch.ones(8, 2), "b": torch.ones(3, 8)},
        capacity_positions=8,
    )


def test_mints_its_lineage(session: Session) -> None:
    assert session.lineage == "state.x@epoch-3"


def test_covering_moves_the_frontier_and_an_owned_range_does_not(session: Session) -> None:
    session.cover(0, 3)
    session.cover(3, 2)
    session.cover(1, 2)
    assert session.frontier == 5
    session.cover(4, 4)
    assert session.frontier == 8


@pytest.mark.parametrize(
    ("cover", "error", "kind", "code"),
    [
        (lambda s: s.cover(4, 1), GapError, "gap", ExitCode.INVALID_INPUT),
        (lambda s: s.cover(3, 6), CapacityError, "capacity", ExitCode.NOT_EVALUABLE),
    ],
)
def test_fails_closed(
    session: Session,
    cover: Callable[[Session], None],
    error: type[GapError | CapacityError],
    kind: str,
    code: ExitCode,
) -> None:
    session.cover(0, 3)
    with pytest.raises(error) as caught:
        cover(session)
    assert (caught.value.kind, caught.value.exit_code) == (kind, code)
    assert session.frontier == 3
    session.cover(3, 5)
    assert session.frontier == 8


@pytest.mark.parametrize(("start", "rows"), [(0, 0), (0, -1), (-1, 1)])
def test_refuses_rows_that_are_none(session: Session, start: int, rows: int) -> None:
    with pytest.raises(InvalidInputError, match="rows are not valid"):
        session.cover(start, rows)
    assert session.frontier == 0


def test_reset_zeroes_every_declared_tensor_and_may_be_repeated(session: Session) -> None:
    session.cover(0, 5)
    for _ in range(2):
        session.reset()
        assert session.frontier == 0
        assert all(not tensor.any() for tensor in session.tensors.values())


def test_restore_sets_the_frontier_within_the_capacity(session: Session) -> None:
    session.restore(8)
    assert session.frontier == 8
    for positions in (-1, 9):
        with pytest.raises(InvalidInputError, match="cannot hold"):
            session.restore(positions)
    assert session.frontier == 8
