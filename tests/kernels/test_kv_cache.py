import pytest
import torch

from kernels.kv_cache.api import contiguous_start, load, store

SETS = ("torch-cpu/1", "torch-cpu-invariant/1", "torch-reference/1")


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("size", [10, 256])
def test_what_is_stored_is_loaded_and_nothing_else_changes(
    rows: int, size: int, dtype: torch.dtype, kernel_set: str
) -> None:
    k_cache, v_cache = torch.randn(2, 100, 2, size).to(dtype).unbind(0)
    expected_k, expected_v = list(k_cache.clone()), list(v_cache.clone())
    k_rows, v_rows = torch.randn(2, rows, 2, size).to(dtype).unbind(0)
    slots = torch.randperm(100)[:rows]
    store(k_rows, v_rows, k_cache, v_cache, slots, kernel_set=kernel_set)
    for row, slot in enumerate(slots.tolist()):
        expected_k[slot], expected_v[slot] = k_rows[row], v_rows[row]
    assert torch.equal(k_cache, torch.stack(expected_k))
    assert torch.equal(v_cache, torch.stack(expected_v))
    assert torch.equal(load(k_cache, slots, kernel_set=kernel_set), k_rows)
    assert torch.equal(load(v_cache, slots, kernel_set=kernel_set), v_rows)


@pytest.mark.parametrize("kernel_set", SETS)
def test_stores_slices_of_a_larger_result(kernel_set: str) -> None:
    heads = torch.randn(3, 6, 8)
    k_cache, v_cache = torch.zeros(2, 9, 2, 8).unbind(0)
    slots = torch.tensor([8, 1, 4])
    store(heads[:, 2:4], heads[:, 4:], k_cache, v_cache, slots, kernel_set=kernel_set)
    assert torch.equal(k_cache[slots], heads[:, 2:4])
    assert torch.equal(v_cache[slots], heads[:, 4:])


@pytest.mark.parametrize(
    ("slots", "start"),
    [([], None), ([3], 3), ([3, 4, 5], 3), ([3, 5], None), ([3, 3, 5], None), ([5, 4, 3], None)],
)
def test_only_ascending_slots_are_contiguous(slots: list[int], start: int | None) -> None:
    cache = torch.randn(7, 2, 4)
    table = torch.tensor(slots, dtype=torch.int64)
    assert contiguous_start(table) == start
    loaded = load(cache, table)
    assert torch.equal(loaded, cache[table])
    if start is not None:
        assert loaded.data_ptr() == cache[start].data_ptr()  # a view: nothing was copied


def test_refuses_what_does_not_fit() -> None:
    cache, rows = torch.zeros(4, 2, 8), torch.zeros(2, 2, 8)
    slots = torch.tensor([1, 3])
    with pytest.raises(ValueError, match=r"slots in \[0, 4\), got \(1, 4\)"):
        load(cache, slots + torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"slots in \[0, 4\), got \(-1, 1\)"):
        load(cache, slots - 2)
    with pytest.raises(ValueError, match="int64"):
        load(cache, slots.int())
    with pytest.raises(ValueError, match=r"cache \[slots"):
        load(cache[0], slots)
    with pytest.raises(ValueError, match="every slot once"):
        store(rows, rows, cache, cache.clone(), torch.tensor([1, 1]))
    with pytest.raises(ValueError, match=r"k_rows \[2, 2, 8\]"):
        store(rows[:1], rows, cache, cache.clone(), slots)
    with pytest.raises(ValueError, match="v_rows of torch"):
        store(rows, rows.bfloat16(), cache, cache.clone(), slots)
    with pytest.raises(ValueError, match=r"v_cache \[4, 2, 8\]"):
        store(rows, rows, cache, cache[:3], slots)
    assert not cache.any()
