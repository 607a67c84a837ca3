"""What a campaign without a failure shows: how many cases and repeats give which confidence.

Cases are the statistical unit; repeats of one case only make it likelier that a failing one shows.
A defect touches a share of all cases, and shows in a repeat of such a case with some rate:

    a drawn case fails visibly with   d = share * (1 - (1 - rate)^(repeats - 1))
    n cases without a failure have    confidence = 1 - (1 - d)^n

One repeat is what the others are compared with. Exact for independent draws. Pure arithmetic.
"""

import math

from harness.errors import InvalidInputError


def visible_share(share: float, rate: float, repeats: int) -> float:
    """Probability that a drawn case fails visibly.

    Raises:
        InvalidInputError: When a probability is outside (0, 1], or repeats are below two.
    """
    for name, value in (("share", share), ("rate", rate)):
        if not 0 < value <= 1:
            raise InvalidInputError(
                f"{name} is no probability", expected="above 0, at most 1", got=str(value)
            )
    if repeats < 2:
        raise InvalidInputError(
            "one repeat differs from nothing", expected="at least 2 repeats", got=str(repeats)
        )
    return share * -math.expm1((repeats - 1) * _log_of_rest(rate))


def zero_failure_confidence(num_cases: int, share: float, rate: float, repeats: int) -> float:
    """Confidence that fewer than ``share`` of cases are touched, after no failure in so many."""
    return -math.expm1(num_cases * _log_of_rest(visible_share(share, rate, repeats)))


def cases_needed(confidence: float, share: float, rate: float, repeats: int) -> int:
    """The least number of cases that, without a failure, gives a confidence.

    Raises:
        InvalidInputError: When the confidence is outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise InvalidInputError(
            "confidence is not valid", expected="between 0 and 1", got=str(confidence)
        )
    visible = visible_share(share, rate, repeats)
    if visible == 1:
        return 1
    count = max(1, math.ceil(math.log1p(-confidence) / math.log1p(-visible) - 1e-9))
    while zero_failure_confidence(count, share, rate, repeats) < confidence:
        count += 1
    return count


def _log_of_rest(probability: float) -> float:
    return -math.inf if probability == 1 else math.log1p(-probability)
