import gc

import pytest
import torch
from fake_driver import FakeDriver

from harness.errors import ResourceError
from harness.plan.layout import TensorSpec
from harness.state.arena import Memory
from harness.state.backing import MappedBacking
from harness.state.device_blocks import MAX_PINNED_BYTES, DeviceBlocks, PinnedPages

MIB = 1 << 20
SPECS = [
    TensorSpec(name="a", dtype="bfloat16", shape=(3, 5)),
    TensorSpec(name="b", dtype="float32", shape=(7,)),
    TensorSpec(name="none", dtype="float32", shape=(0, 4)),
]


def vram(driver: FakeDriver, capacity_bytes: int = 64 * MIB) -> Memory:
    return Memory(
        resource_id="gpu0.vram",
        kind="accelerator-vram",
        capacity_bytes=capacity_bytes,
        blocks=DeviceBlocks(driver),
    )


def test_an_arena_is_one_block_of_its_own_pool() -> None:
    driver = FakeDriver()
    memory = vram(driver)
    first, second = memory.allocate("x", SPECS), memory.allocate("y", SPECS)
    assert first.requested_bytes == 3 * 5 * 2 + 7 * 4
    assert first.allocated_bytes == second.allocated_bytes == 2 * MIB
    assert memory.allocated_bytes == 4 * MIB
    measured = first.backing.measured()
    assert (measured.requested_bytes, measured.block_bytes) == (128, 512)
    assert measured.segment_bytes == first.allocated_bytes
    assert first.contains(first.tensors["b"].data_ptr())
    assert not first.contains(second.tensors["b"].data_ptr())
    assert not first.tensors["a"].any()


def test_release_is_measured() -> None:
    driver = FakeDriver()
    memory = vram(driver)
    arena = memory.allocate("x", SPECS)
    assert arena.release() == 0
    assert not arena.is_mapped
    assert driver.used_bytes() == memory.allocated_bytes == 0
    assert arena.release() == 0


def test_what_holds_on_keeps_the_block_and_its_bytes_counted() -> None:
    driver = FakeDriver()
    memory = vram(driver)
    arena = memory.allocate("x", SPECS)
    kept = arena.tensors["b"][2:3]
    assert arena.release() == 2 * MIB
    assert arena.is_mapped
    assert memory.allocated_bytes == 2 * MIB
    del kept
    gc.collect()
    assert arena.release() == 0
    assert driver.used_bytes() == 0


def test_segments_that_stay_are_still_held(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    arena = vram(driver).allocate("x", SPECS)
    monkeypatch.setattr(driver, "give_back", lambda: None)
    assert arena.release() == 2 * MIB


def test_exhaustion_takes_nothing() -> None:
    memory = vram(FakeDriver(), capacity_bytes=3 * MIB)
    memory.allocate("x", SPECS)
    with pytest.raises(ResourceError, match="exhausted"):
        memory.allocate("y", SPECS)
    driver = FakeDriver(capacity_bytes=MIB)
    memory = vram(driver)
    with pytest.raises(ResourceError, match="cannot be mapped"):
        memory.allocate("x", SPECS)
    assert memory.allocated_bytes == 0
    assert not memory.arenas


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB),
        (10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB),
    ],
)
def test_what_a_block_will_take_is_what_it_takes(size: int, segment: int) -> None:
    driver = FakeDriver()
    assert DeviceBlocks(driver).rounded(size) == segment
    block = DeviceBlocks(driver).take(size)
    assert driver.used_bytes() == block.measured().segment_bytes == segment


def test_host_blocks_are_pinned_up_to_a_bound() -> None:
    driver = FakeDriver()
    memory = Memory(
        resource_id="ram", kind="system-ram", capacity_bytes=1 << 33, blocks=PinnedPages(driver)
    )
    small = memory.allocate("small", SPECS)
    assert driver.pinned == {small.address: small.allocated_bytes}
    large = TensorSpec(name="large", dtype="uint8", shape=(MAX_PINNED_BYTES + 1,))
    arena = memory.allocate("large", [large])
    assert type(arena.backing) is MappedBacking
    assert len(driver.pinned) == 1
    kept = small.tensors["a"]
    assert small.release() == small.allocated_bytes
    assert not driver.pinned, "what is still mapped is no longer locked"
    del kept
    assert small.release() == arena.release() == 0


def test_no_gpu_is_reached_where_there_is_none() -> None:
    from harness.errors import NotEvaluableError
    from harness.state.driver import CudaDriver

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(NotEvaluableError, match="not visible"):
        CudaDriver("GPU-00000000-0000-0000-0000-000000000000")
