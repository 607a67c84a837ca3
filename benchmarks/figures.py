"""Figures of a comparison from what each round measured: medians, and ratios with their spread.

A ratio is taken within each round, so that a slow minute of the machine falls on both sides of it.
Plain numbers in and out; knows no process and no picture.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

PHASES = ("decode", "prefill")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A median, and the smallest and largest value beside it."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one contender did in one round."""

    decode_tok_per_sec: float
    prefill_tok_per_sec: float
    tokens: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Model:
    """What one step of the model has to move and to multiply."""

    weight_bytes: int
    """Weights that a decode step reads, in the dtype of the run."""
    kv_bytes_per_position: int
    matrix_elements: int
    """Elements of all matrices but the head: each is multiplied once a prompt row."""
    head_elements: int
    """Of the head's, which multiplies the last row only."""


def spread(values: Sequence[float]) -> Spread:
    """Median, least and largest of at least one value."""
    return Spread(median=statistics.median(values), low=min(values), high=max(values))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Of two series of one round each, round by round."""
    return spread([one / other for one, other in zip(ours, theirs, strict=True)])


def round_of(answer: Mapping[str, Any], num_prompt: int, num_steps: int) -> Round:
    """A worker's answer, looked at before it is believed.

    Raises:
        ValueError: When it is not the time and the tokens of what was asked for.
    """
    prefill, decode, tokens = (answer.get(name) for name in ("prefill_s", "decode_s", "tokens"))
    if not (isinstance(decode, list) and isinstance(tokens, list)):
        raise ValueError("no lists of seconds and tokens")
    if (len(decode), len(tokens)) != (num_steps, num_steps + 1):
        raise ValueError(f"{len(decode)} steps and {len(tokens)} tokens, {num_steps} were asked")
    if not all(type(value) is float and 0 < value < 3600 for value in [prefill, *decode]):
        raise ValueError("a step's time is no number of seconds")
    if not all(type(token) is int for token in tokens):
        raise ValueError("a token is no number")
    if answer.get("different"):
        raise ValueError(f"a sentinel found {answer['different']} elements that differ")
    return Round(
        decode_tok_per_sec=1 / statistics.median(decode),
        prefill_tok_per_sec=num_prompt / float(prefill),
        tokens=tuple(tokens),
    )


def limits(
    machine: Sequence[Mapping[str, float]], model: Model, dtype: str, prompt: int, steps: int
) -> dict[str, float]:
    """Tokens a second at which memory (decode) or arithmetic (prefill) would be used fully."""
    positions = prompt + steps / 2
    moved = model.weight_bytes + model.kv_bytes_per_position * positions
    multiplied = 2 * (model.matrix_elements * prompt + model.head_elements)
    read = statistics.median(each["read_bytes_per_sec"] for each in machine)
    # What is kept in bfloat16 may be multiplied in float32, where that is faster.
    kinds = {f"{dtype}_flop_per_sec", "float32_flop_per_sec"}
    product = statistics.median(max(each[kind] for kind in kinds) for each in machine)
    return {"decode": read / moved, "prefill": prompt * product / multiplied}


def summarize(
    rounds: Mapping[str, Sequence[Round]], ours: str, limit: Mapping[str, float]
) -> dict[str, Any]:
    """Each contender's rates, its shares of the limits, and ours against it.

    Args:
        rounds: By contender, equally many each.
        ours: The contender that the others are compared with.
        limit: Tokens a second by phase.
    """
    rows = {}
    for name, series in rounds.items():
        row: dict[str, Any] = {
            "equal_leading_tokens": equal_leading(rounds[ours][0].tokens, series[0].tokens),
            "num_tokens": len(series[0].tokens),
            "repeats_equal": len({each.tokens for each in series}) == 1,
        }
        for phase in PHASES:
            rates, mine = (
                [getattr(each, f"{phase}_tok_per_sec") for each in rounds[which]]
                for which in (name, ours)
            )
            row[phase] = {
                "tok_per_sec": asdict(spread(rates)),
                "share_of_limit": statistics.median(rates) / limit[phase],
                "ours_to_this": asdict(ratio(mine, rates)),
            }
        rows[name] = row
    return rows


def equal_leading(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens are equal before the first that is not."""
    pairs = list(zip(one, other, strict=False))
    return next((index for index, (a, b) in enumerate(pairs) if a != b), len(pairs))
