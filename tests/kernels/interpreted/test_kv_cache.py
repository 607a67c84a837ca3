import pytest
import torch

from kernels.kv_cache.api import load, store

TRITON = "triton/1"


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 9, 10), (5, 2, 256), (2, 1, 512)])
def test_what_is_stored_is_loaded_and_nothing_else_changes(
    shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    rows, heads, size = shape
    k_cache, v_cache = torch.randn(2, 40, heads, size).to(dtype).unbind(0)
    expected = {name: (k_cache.clone(), v_cache.clone()) for name in (TRITON, "torch-reference/1")}
    k_rows, v_rows = torch.randn(2, rows, heads, size).to(dtype).unbind(0)
    slots = torch.randperm(40)[:rows]
    for name, (k, v) in expected.items():
        store(k_rows, v_rows, k, v, slots, kernel_set=name)
        assert torch.equal(load(k, slots, kernel_set=name), k_rows)
    for one, other in zip(*expected.values(), strict=True):
        assert torch.equal(one, other)


def test_views_of_rows_caches_and_slots(dtype: torch.dtype, same_in_any_order) -> None:
    fused = torch.randn(3, 6, 24).to(dtype)
    caches = torch.zeros(9, 2, 2, 24, dtype=dtype)  # slots, keys or values, heads, elements
    k_cache, v_cache = caches[:, 0, :, :16], caches[:, 1, :, 3:19]
    k_rows, v_rows = fused[:, 2:4, 8:], fused[:, 4:, :16]
    slots = torch.tensor([8, 0, 1, 0, 4])[::2]

    def op() -> tuple[torch.Tensor, torch.Tensor]:
        caches.zero_()
        store(k_rows, v_rows, k_cache, v_cache, slots, kernel_set=TRITON)
        return caches, load(v_cache, slots, kernel_set=TRITON)

    op()
    assert torch.equal(k_cache[slots], k_rows)
    assert torch.equal(v_cache[slots], v_rows)
    assert not caches[[0, 2, 3, 5, 6, 7]].any()
    assert not caches[:, 0, :, 16:].any()
    same_in_any_order(op)


def test_nothing_changes_nothing() -> None:
    cache, none = torch.ones(4, 2, 8), torch.empty(0, dtype=torch.int64)
    store(cache[:0], cache[:0], cache, cache.clone(), none, kernel_set=TRITON)
    assert load(cache, none, kernel_set=TRITON).shape == (0, 2, 8)
    assert torch.equal(cache, torch.ones(4, 2, 8))


def test_refuses_caches_of_scattered_elements() -> None:
    cache, rows = torch.zeros(4, 2, 16)[..., ::2], torch.zeros(1, 2, 8)
    with pytest.raises(ValueError, match="dense heads"):
        store(rows, rows, cache, cache.clone(), torch.tensor([1]), kernel_set=TRITON)
