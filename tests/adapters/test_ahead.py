"""Reading ahead, with sources that are finished as late, or fail as late, as they may."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import torch

from harness.adapters.common.ahead import MAX_AHEAD, Placed, read_ahead
from harness.adapters.common.marks import is_unwritten


class Late:
    """Writes when it is waited for; some keys fail then."""

    def __init__(self, fails: tuple[str, ...] = ()) -> None:
        self.open: list[str] = []
        self.most_open = 0
        self._fails = fails

    def begin(self, key: str, target: torch.Tensor) -> Callable[[], None]:
        self.open.append(key)
        self.most_open = max(self.most_open, len(self.open))

        def finish() -> None:
            self.open.remove(key)
            if key in self._fails:
                raise ValueError(f"{key} is bad")
            target.fill_(int(key))

        return finish


def apart(count: int, size: int = 24) -> list[Placed]:
    return [(str(index), torch.zeros(size, dtype=torch.uint8)) for index in range(count)]


@pytest.mark.parametrize("count", [0, 1, MAX_AHEAD, 5 * MAX_AHEAD])
def test_order_and_how_many_are_begun(count: int) -> None:
    source = Late()
    found = [(key, int(tensor[0])) for key, tensor in read_ahead(source, apart(count))]
    assert found == [(str(index), index) for index in range(count)]
    assert source.most_open == min(count, MAX_AHEAD)
    assert source.open == []


def test_nothing_is_read_over_what_is_in_use() -> None:
    window = torch.zeros(100, dtype=torch.uint8)
    sizes = [60, 30, 20, 90, 1, 100, 9, 100]
    source, used = Late(), []

    def wanted() -> Iterator[Placed]:
        at = 0
        for index, size in enumerate(sizes, 1):
            at = at if at + size <= len(window) else 0
            yield str(index), window[at : at + size]
            at += size

    def arrived(key: str) -> None:
        used.remove(key)

    for key, tensor in read_ahead(source, wanted(), arrived):
        # All of it is still what was read, although more was begun.
        assert tensor.eq(int(key)).all()
        used.append(key)
        span = {int(each) for each in source.open}
        assert all(sizes[int(each) - 1] + tensor.numel() <= 100 for each in map(str, span))
    assert source.most_open == 2
    assert set(used) <= {"7", "8"}


def test_a_target_that_is_never_written_shows() -> None:
    class Silent:
        def begin(self, key: str, target: torch.Tensor) -> Callable[[], None]:
            return lambda: None

    assert all(is_unwritten(tensor) for _, tensor in read_ahead(Silent(), apart(3)))


@pytest.mark.parametrize("fails", [("3",), ("3", "5")])
def test_the_first_error_is_told_and_nothing_is_left_open(fails: tuple[str, ...]) -> None:
    source, seen = Late(fails), []
    with (
        pytest.raises(ValueError, match=r"^3 is bad$"),
        closing(read_ahead(source, apart(40))) as reads,
    ):
        seen += [key for key, _ in reads]
    assert seen == []
    assert source.open == []


def test_leaving_early_waits_for_what_was_begun() -> None:
    source = Late()
    with closing(read_ahead(source, apart(40))) as reads:
        assert [next(reads)[0] for _ in range(3)] == ["0", "1", "2"]
        assert source.open
    assert source.open == []
