import pytest
import torch

from kernels.fingerprint.api import fingerprint
from kernels.fingerprint.reference import TILE_WORDS

TRITON, REFERENCE = "triton/1", "torch-reference/1"


@pytest.mark.parametrize(
    "size",
    [0, 1, 3, 63, 65, 615, TILE_WORDS, 8 * TILE_WORDS - 1, 8 * TILE_WORDS, 8 * TILE_WORDS + 1],
)
def test_equals_reference(size: int, dtype: torch.dtype) -> None:
    x = torch.randn(size).to(dtype)
    expected = fingerprint(x, kernel_set=REFERENCE)
    assert fingerprint(x, kernel_set=TRITON) == expected
    assert fingerprint(x) == expected
    every_second = torch.stack((x, x), dim=1)[:, 1]
    assert fingerprint(every_second, kernel_set=TRITON) == expected
    assert fingerprint(torch.cat((x[:1], x))[x[:1].numel() :], kernel_set=TRITON) == expected


@pytest.mark.parametrize("kernel_set", [TRITON, "torch-cpu/1"])
def test_every_bit_place_and_length_counts(kernel_set: str) -> None:
    x = torch.zeros(3 * TILE_WORDS, dtype=torch.int32)
    seen = {fingerprint(x, kernel_set=kernel_set), fingerprint(x[:-1], kernel_set=kernel_set)}
    places = (0, TILE_WORDS // 2, TILE_WORDS, 3 * TILE_WORDS - 1)
    for place in places:
        for bit in (1, -(2**31)):
            changed = x.clone()
            changed[place] = bit
            seen.add(fingerprint(changed, kernel_set=kernel_set))
    assert len(seen) == 2 + 2 * len(places)


def test_any_order_of_programs(program_order) -> None:
    x = torch.randint(0, 256, (9 * 4 * TILE_WORDS + 5,), dtype=torch.uint8)
    expected = fingerprint(x)
    for order in ("reversed", "shuffled"):
        with program_order(order):
            assert fingerprint(x, kernel_set=TRITON) == expected
