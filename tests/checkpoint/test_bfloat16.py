import numpy as np
import pytest

from harness.checkpoint.bfloat16 import to_bfloat16

torch = pytest.importorskip("torch")


def oracle(values: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> "np.ndarray":
    return torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view("uint16")


def test_all_finite_ties_and_neighbours() -> None:
    # Every upper half, with the lower halves where rounding can go wrong.
    upper = np.arange(1 << 16, dtype="uint32") << 16
    for lower in (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = (upper | np.uint32(lower)).view("float32")
        values = values[~np.isnan(values)]
        assert np.array_equal(to_bfloat16(values), oracle(values))


def test_nan_stays_nan() -> None:
    for bits in (0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000):
        pattern = to_bfloat16(np.array([bits], dtype="uint32").view("float32"))
        assert pattern[0] & 0x7FFF > 0x7F80


def test_shape_and_strides() -> None:
    values = np.arange(24, dtype="float32").reshape(4, 6)[:, ::2] / 7
    assert np.array_equal(to_bfloat16(values), oracle(np.ascontiguousarray(values)))
