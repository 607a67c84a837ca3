import numpy as np
import pytest
import torch

from harness.errors import ExitCode
from harness.state.errors import CapacityError, DamagedStateError
from harness.state.geometry import allocator_tensors
from harness.state.pages import PagePool


def make_pool(num_pages: int = 6) -> tuple[PagePool, dict[str, torch.Tensor]]:
    tensors = {
        spec.name: torch.zeros(spec.shape, dtype=torch.int64)
        for spec in allocator_tensors("p", num_pages)
    }
    return PagePool("p", tensors), tensors


def take(pool: PagePool, count: int) -> list[int]:
    return pool.allocate_pages(count).tolist()


def give(pool: PagePool, *pages: int) -> int:
    return pool.free_pages(np.array(pages, dtype=np.int64))


def owned(tensors: dict[str, torch.Tensor]) -> tuple[int, int]:
    """Live and available pages, counted in the tensors."""
    return int(tensors["p.live"].sum()), int((tensors["p.free_list"] > 0).sum())


def test_starts_with_every_page_but_the_first() -> None:
    pool, tensors = make_pool()
    assert tensors["p.free_list"].tolist() == [1, 2, 3, 4, 5]
    assert not tensors["p.live"].any()
    assert take(pool, 5) == [1, 2, 3, 4, 5]


def test_first_freed_is_first_handed_out() -> None:
    pool, _ = make_pool()
    take(pool, 4)
    give(pool, 3, 1)
    assert take(pool, 3) == [5, 3, 1]
    give(pool, 2, 5)
    give(pool, 4)
    assert take(pool, 3) == [2, 5, 4]


def test_exhaustion_is_found_before_anything_is_taken() -> None:
    pool, tensors = make_pool()
    take(pool, 3)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    with pytest.raises(CapacityError, match="exhausted") as error:
        pool.allocate_pages(3)
    assert error.value.exit_code is ExitCode.NOT_EVALUABLE
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())
    assert take(pool, 2) == [4, 5]
    assert take(pool, 0) == []
    with pytest.raises(CapacityError):
        pool.allocate_pages(1)


def test_freeing_what_is_not_live_does_nothing() -> None:
    pool, tensors = make_pool()
    take(pool, 2)
    assert give(pool, 2) == 1
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    for pages in ((2,), (0,), (4, 0, 2), (-1, 6, 99), ()):
        assert give(pool, *pages) == 0
        assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())
    assert give(pool, 1, 1, 2, 1) == 1
    assert owned(tensors) == (0, 5)


def test_live_and_available_are_all_pages_but_one_at_every_moment() -> None:
    pool, tensors = make_pool(9)
    generator = np.random.default_rng(0)
    held: list[int] = []
    for _ in range(300):
        if generator.random() < 0.5:
            count = int(generator.integers(0, pool.num_available + 1))
            held += take(pool, count)
        else:
            some = generator.permutation(9)[: int(generator.integers(0, 9))].tolist()
            give(pool, *some)
            held = [page for page in held if page not in some]
        live, available = owned(tensors)
        assert (live, available) == (len(held), pool.num_available)
        assert live + available == 8
        assert 0 not in held
        assert len(set(held)) == len(held)


def test_the_tensors_are_the_whole_state() -> None:
    pool, tensors = make_pool()
    take(pool, 4)
    give(pool, 2, 3)
    saved = {name: tensor.clone() for name, tensor in tensors.items()}
    first = [take(pool, 2), give(pool, 1), take(pool, 2)]
    after = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, tensor in saved.items():
        tensors[name].copy_(tensor)
    pool.read_back()
    assert pool.num_available == 3
    assert [take(pool, 2), give(pool, 1), take(pool, 2)] == first
    assert all(torch.equal(tensor, after[name]) for name, tensor in tensors.items())


def test_rebuilding_after_zeroing_makes_it_new() -> None:
    pool, tensors = make_pool()
    _, new = make_pool()
    for _ in range(2):
        take(pool, 4)
        give(pool, 2)
        for tensor in tensors.values():
            tensor.zero_()
        for _ in range(2):
            pool.rebuild()
            assert all(torch.equal(tensor, new[name]) for name, tensor in tensors.items())
        assert pool.num_available == 5


@pytest.mark.parametrize("entry", [0, -1, 6, 5])
def test_a_page_that_cannot_be_free_is_never_handed_out(entry: int) -> None:
    pool, tensors = make_pool()
    take(pool, 1)
    tensors["p.live"][5] = 1
    tensors["p.free_list"][2] = entry
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    with pytest.raises(DamagedStateError, match="damaged"):
        pool.allocate_pages(2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())
    assert take(pool, 1) == [2]


@pytest.mark.parametrize("head", [-1, 5])
def test_a_restored_head_outside_the_list_is_refused(head: int) -> None:
    pool, tensors = make_pool()
    tensors["p.free_head"].fill_(head)
    with pytest.raises(DamagedStateError, match="head"):
        pool.read_back()
