"""Numbers against oracles that are written in plain Python, or counted step by step."""

import math
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from harness.errors import CheckpointError, NotEvaluableError
from harness.laboratory.kept import KeptTensor, read_kept
from harness.laboratory.metrics import METRICS, metrics, nearest_rank, top_indices


def kept(values: Any, dtype: torch.dtype = torch.float32) -> KeptTensor:
    tensor = torch.tensor(values, dtype=dtype)
    return read_kept(save({"t": tensor}), where="test")["t"]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8]
)
def test_kept_values_are_those_that_were_written(dtype: torch.dtype) -> None:
    values = [0, 1, 2, 3, 250, 7]
    tensor = torch.tensor(values).to(dtype).view(2, 3)
    found = read_kept(save({"a/b": tensor}), where="test")["a/b"]
    assert (found.dtype, found.shape) == (str(dtype).removeprefix("torch."), (2, 3))
    assert found.values.tolist() == tensor.double().flatten().tolist()
    assert found.data == tensor.contiguous().view(torch.uint8).numpy().tobytes()


def test_bytes_that_are_no_safetensors_file_are_refused() -> None:
    whole = save({"t": torch.zeros(4)})
    for data in (b"", b"{}", whole[:-1], whole + b"x"):
        with pytest.raises(CheckpointError):
            read_kept(data, where="test")
    with pytest.raises(NotEvaluableError, match="float8"):
        read_kept(save({"t": torch.zeros(4).to(torch.float8_e4m3fn)}), where="test")


def test_equal_tensors_differ_in_nothing() -> None:
    found = metrics(kept([1.0, -2.0, 0.0]), kept([1.0, -2.0, 0.0]))
    assert found["num_different"] == 0
    assert [found[name] for name in METRICS] == [0, 0, 0, 0, 0, 1]


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(floats, floats), min_size=1, max_size=40))
def test_numbers_agree_with_exact_arithmetic(pairs: list[tuple[float, float]]) -> None:
    left, right = kept([a for a, _ in pairs]), kept([b for _, b in pairs])
    found = metrics(left, right, top_k=5)
    gaps = [abs(Fraction(a) - Fraction(b)) for a, b in pairs]
    assert found["max_abs"] == float(max(gaps))
    mean = sum(float(gap) ** 2 for gap in gaps) / len(gaps)
    assert math.isclose(found["rms"], math.sqrt(mean), rel_tol=1e-12, abs_tol=0.0)
    ranked = sorted(float(gap) for gap in gaps)
    assert found["p99_abs"] == ranked[math.ceil(Fraction(99, 100) * len(ranked)) - 1]
    order = sorted(range(len(pairs)), key=lambda i: (-pairs[i][0], i))[:5]
    other = sorted(range(len(pairs)), key=lambda i: (-pairs[i][1], i))[:5]
    assert found["top_k_overlap"] == len(set(order) & set(other)) / len(order)
    assert found["top_k_max_abs"] == float(max(gaps[i] for i in order))
    bits = [struct.pack("<f", a) != struct.pack("<f", b) for a, b in pairs]
    assert found["num_different"] == sum(bits)


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (99, 99), (100, 99), (101, 100), (200, 198)])
def test_the_nearest_rank_is_a_value_that_was_there(count: int, rank: int) -> None:
    values = np.random.default_rng(0).permutation(np.arange(1.0, count + 1))
    assert nearest_rank(values, 0.99) == rank


def test_top_indices_take_the_lowest_among_equals() -> None:
    assert top_indices(np.array([1.0, 3.0, 3.0, 2.0, 3.0]), 2).tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("start", [0.0, 1.0, -1.0, 0.99, -1e-3, 1e-30])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_ulps_are_counted_in_steps_between_neighbours(
    dtype: torch.dtype, start: float, steps: int
) -> None:
    first = torch.tensor([start], dtype=dtype)
    last = first.clone()
    for _ in range(steps):
        last = torch.nextafter(last, torch.tensor([torch.inf], dtype=dtype))
    one = read_kept(save({"t": first}), where="test")["t"]
    two = read_kept(save({"t": last}), where="test")["t"]
    assert metrics(one, two)["max_ulp"] == metrics(two, one)["max_ulp"] == steps


def test_the_two_zeros_differ_in_bits_and_in_no_number() -> None:
    found = metrics(kept([0.0]), kept([-0.0]))
    assert (found["num_different"], found["max_abs"], found["max_ulp"]) == (1, 0.0, 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_closes_the_gate_before_any_number(value: float) -> None:
    found = metrics(kept([1.0, 2.0]), kept([1.0, value]))
    assert not found["is_finite"]
    assert [found[name] for name in METRICS] == [None] * 6
    # The same bits on both sides are no difference.
    same = metrics(kept([1.0, value]), kept([1.0, value]))
    assert same["is_finite"]
    assert same["max_abs"] == 0.0


def test_tensors_of_other_shapes_are_not_compared() -> None:
    with pytest.raises(ValueError, match="float32"):
        metrics(kept([1.0]), kept([1.0, 2.0]))
