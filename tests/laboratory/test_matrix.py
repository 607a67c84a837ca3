import random
from typing import Any

import pytest
from armed_rows import NAMES, STEPS, boundary_rows

from harness.errors import EvidenceError
from harness.laboratory.matrix import build_matrix, matrix_rows


def matrix_of(*processes: list[dict[str, Any]]) -> Any:
    return build_matrix(dict(enumerate(processes)))


def test_equal_trials_vary_nowhere() -> None:
    matrix = matrix_of(boundary_rows(3), boundary_rows(3))
    assert len(matrix.trials) == 6
    assert len(matrix.boundaries) == len(NAMES) * len(STEPS)
    assert matrix.varying() == ()
    assert {row["num_distinct"] for row in matrix_rows(matrix)} == {1}


def test_boundaries_are_in_execution_order_whatever_the_order_of_rows() -> None:
    rows = boundary_rows(2)
    random.Random(5).shuffle(rows)
    matrix = matrix_of(rows)
    expected = [(phase, step, name) for phase, step in STEPS for name in NAMES]
    assert [(b.phase, b.step, b.name) for b in matrix.boundaries] == expected


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", NAMES)
def test_the_first_place_that_differs_is_the_earliest(phase: str, name: str) -> None:
    """One trial differs from a planted boundary on, in every later one as well."""
    order = [(p, s, n) for p, s in STEPS for n in NAMES]
    start = order.index((phase, 0, name))

    def later(repetition: int, *place: Any) -> object:
        return repetition if order.index(place) >= start else ""

    matrix = matrix_of(boundary_rows(2), boundary_rows(2, value=later))
    first = matrix.boundaries[matrix.varying()[0]]
    assert (first.phase, first.step, first.name) == (phase, 0, name)
    assert len(matrix.varying()) == len(order) - start
    assert matrix.varies_within_a_process(matrix.varying()[0])


def test_a_difference_between_processes_alone_is_told_from_one_within() -> None:
    other = boundary_rows(2, value=lambda repetition, phase, step, name: "other")
    matrix = matrix_of(boundary_rows(2), other)
    assert matrix.groups[0] == (0, 0, 1, 1)
    assert matrix.num_distinct(0) == 2
    assert not matrix.varies_within_a_process(0)


def test_another_shape_with_equal_bytes_is_a_difference() -> None:
    rows = boundary_rows(2)
    rows[0]["shape"] = [4, 2]
    assert matrix_of(rows).varying() == (0,)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda rows: rows.pop(), "lacks a boundary"),
        (lambda rows: rows.append(rows[0]), "hit twice"),
        (lambda rows: rows[0].update(phase="warm-up"), "unknown phase"),
    ],
)
def test_trials_that_cannot_be_compared_are_refused(change: Any, text: str) -> None:
    rows = boundary_rows(2)
    change(rows)
    with pytest.raises(EvidenceError, match=text):
        matrix_of(rows)
