"""What a difference in numbers decides: the token, by margin against the error.

With an error of at most e in each logit, the tokens that could have been chosen are those whose
reference logit is at least the top one less 2 e: the ambiguity set. Pure functions.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

IDENTICAL = "identical"
AMBIGUOUS = "inside_ambiguity_set"
WRONG = "wrong"
NOT_EVALUATED = "not_evaluated"


def ambiguity_set(reference: NDArray[np.float64], error: float) -> NDArray[np.int64]:
    """Tokens that may be chosen under an error, in ascending order."""
    return np.flatnonzero(reference >= reference.max() - 2 * error)


def decide(
    left_token: int,
    right_token: int,
    *,
    left_logits: NDArray[np.float64] | None,
    right_logits: NDArray[np.float64] | None,
    limit: float | None,
) -> dict[str, Any]:
    """Judge one step's token against the reference's.

    A token that is not the largest of its own logits is wrong, whatever the error. The error is
    the observed one, but never more than the limit: what is beyond the limit excuses nothing.

    Args:
        left_token: The reference's token.
        right_token: The other token.
        left_logits: The reference's logits [V], where they were kept and are finite.
        right_logits: The others.
        limit: The most that one logit may be off, if anything was declared.

    Returns:
        ``outcome``, ``margin`` and ``error``; the latter ``None`` where logits were not kept.
    """
    if left_logits is None or right_logits is None:
        outcome = IDENTICAL if left_token == right_token else NOT_EVALUATED
        return {"outcome": outcome, "margin": None, "error": None}
    error = float(np.abs(left_logits - right_logits).max())
    allowed = error if limit is None else min(error, limit)
    top = np.sort(left_logits)[-2:]
    found = {"margin": float(top[-1] - top[0]), "error": error}
    is_chosen = left_token == int(left_logits.argmax()) and right_token == int(
        right_logits.argmax()
    )
    if not is_chosen:
        outcome = WRONG
    elif left_token == right_token:
        outcome = IDENTICAL
    else:
        outcome = AMBIGUOUS if right_token in ambiguity_set(left_logits, allowed) else WRONG
    return found | {"outcome": outcome}
