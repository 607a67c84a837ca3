import numpy as np
import pytest

from harness.laboratory.decisions import ambiguity_set, decide

REFERENCE = np.array([0.0, 3.0, 2.5, 1.0])


def outcome(
    left: int, right: int, other: list[float], limit: float | None = None
) -> tuple[str, float, float]:
    found = decide(left, right, left_logits=REFERENCE, right_logits=np.array(other), limit=limit)
    return found["outcome"], found["margin"], found["error"]


def test_equal_tokens_are_identical() -> None:
    assert outcome(1, 1, [0.0, 2.9, 2.5, 1.0]) == ("identical", 0.5, pytest.approx(0.1))


def test_another_token_within_twice_the_error_is_ambiguous() -> None:
    assert outcome(1, 2, [0.0, 2.7, 2.8, 1.0])[0] == "inside_ambiguity_set"


def test_an_error_beyond_the_limit_excuses_no_token() -> None:
    """The margin is 0.5; an error of 0.2 can close no more than 0.4 of it."""
    assert outcome(1, 2, [0.0, 2.7, 2.8, 1.0], limit=0.2)[0] == "wrong"
    assert outcome(1, 2, [0.0, 2.7, 2.8, 1.0], limit=0.26)[0] == "inside_ambiguity_set"


@pytest.mark.parametrize(("left", "right"), [(2, 1), (1, 2), (3, 3)])
def test_a_token_that_its_own_logits_do_not_choose_is_wrong(left: int, right: int) -> None:
    assert outcome(left, right, REFERENCE.tolist())[0] == "wrong"


def test_without_logits_only_equal_tokens_can_be_judged() -> None:
    for right, expected in ((4, "identical"), (5, "not_evaluated")):
        found = decide(4, right, left_logits=None, right_logits=REFERENCE, limit=None)
        assert found == {"outcome": expected, "margin": None, "error": None}


def test_the_ambiguity_set_grows_with_the_error() -> None:
    assert ambiguity_set(REFERENCE, 0.0).tolist() == [1]
    assert ambiguity_set(REFERENCE, 0.25).tolist() == [1, 2]
    assert ambiguity_set(REFERENCE, 1.5).tolist() == [0, 1, 2, 3]
