"""A comparison as a table and as a picture. Knows figures only."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_PHASES = ("decode", "prefill")
_OURS, _PEER, _LIMIT = "#2a6f97", "#adb5bd", "#c1121f"


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """One line a contender, and one each for the limits and for what is absent."""
    limit = found["limits_tok_per_sec"]
    yield (
        f"{found['dtype']}, {found['threads']} threads, {found['prompt']} prompt tokens, "
        f"{found['steps']} decode steps, {found['rounds']} rounds; ours is {found['ours']}"
    )
    head = "".join(f" {name + ' tok/s':>22} {'limit':>6} {'ours / this':>18}" for name in _PHASES)
    yield f"{'contender':<44}{head} {'tokens':>8}"
    for name, row in found["contenders"].items():
        cells = ""
        for phase in _PHASES:
            one = row[phase]
            rate, against = one["tok_per_sec"], one["ours_to_this"]
            cells += (
                f" {_range(rate, 1):>22} {one['share_of_limit']:>6.0%} {_range(against, 2):>18}"
            )
        agree = f"{row['equal_leading_tokens']}/{row['num_tokens']}"
        varies = "" if row["repeats_equal"] else "  repeats differ"
        yield f"{name:<44}{cells} {agree:>8}{varies}"
    yield f"limit: decode {limit['decode']:.1f} (memory), prefill {limit['prefill']:.0f} (products)"
    for name, why in sorted(found["absent"].items()):
        yield f"{name}: not measured: {why}"


def _range(values: Mapping[str, float], digits: int) -> str:
    low, high = (f"{values[name]:.{digits}f}" for name in ("low", "high"))
    return f"{values['median']:.{digits}f} [{low}-{high}]"


def picture(comparisons: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Bars of the median rates, their ranges, and the limits as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6 * len(comparisons)), layout="constrained")
    axes = figure.subplots(len(comparisons), len(_PHASES), squeeze=False)
    for row, found in enumerate(comparisons):
        names = list(found["contenders"])[::-1]
        for column, phase in enumerate(_PHASES):
            axis = axes[row][column]
            rates = [found["contenders"][name][phase]["tok_per_sec"] for name in names]
            axis.barh(
                names,
                [rate["median"] for rate in rates],
                xerr=[
                    [rate["median"] - rate["low"] for rate in rates],
                    [rate["high"] - rate["median"] for rate in rates],
                ],
                color=[_OURS if name.startswith("harness") else _PEER for name in names],
            )
            limit = found["limits_tok_per_sec"][phase]
            axis.axvline(limit, color=_LIMIT, linestyle="--")
            axis.set_title(f"{phase}, {found['dtype']}; dashed: the machine's limit", fontsize=9)
            axis.set_xlabel("tokens a second", fontsize=8)
            axis.tick_params(labelsize=8)
            if column:
                axis.set_yticklabels([])
    figure.savefig(path)
