"""The one table that a check prints last, from what it found. Measures nothing."""

from collections.abc import Iterator, Mapping
from typing import Any

Found = Mapping[str, Any]


def lines(found: Found) -> Iterator[str]:
    """The table; what is wrong ends in WRONG."""
    yield from _kernels(found["kernels"])
    yield from _invariance(found["invariance"])
    yield from _models(found["models"])
    for row in found["audited"]:
        ok = "" if row["exit_code"] == 0 else "  WRONG"
        yield f"{row['experiment']:<28} exit code {row['exit_code']}: {row['text']}{ok}"
    yield from (f"{problem}  WRONG" for problem in found["problems"])
    yield from (f"not executed: {each}" for each in found["not_executed"])
    limits = found["limits"]
    yield (
        f"{found['device']}: copy {limits['copy_bytes_per_sec'] / 1e9:.1f} GB/s, bfloat16 products "
        f"{limits['matrix_flop_per_sec'] / 1e12:.2f} Tflop/s; torch {found['torch']}, "
        f"set {found['kernel_set']}; {found['seconds']:.0f} s in all"
    )


def num_wrong(found: Found) -> int:
    """How many rows found something wrong."""
    wrong = [not row["is_correct"] or row["num_different"] > 0 for row in found["kernels"]]
    wrong += [not row[name] for row in found["models"] for name in _EQUAL]
    wrong += [row["exit_code"] != 0 for row in found["audited"]]
    return sum(wrong) + len(found["problems"])


_EQUAL = {"graph_equals_eager": "graph = eager", "chunks_equal": "chunks = whole"}
"""What is equal bit for bit in each family, and how the table says it."""


def _kernels(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        f"{'kernel':<28} {'error':>9} {'repeats differ':>15} {'us':>10} {'of limit':>9} "
        f"{'us called':>10}"
    )
    for row in rows:
        ok = "" if row["is_correct"] and not row["num_different"] else "  WRONG"
        yield (
            f"{row['name']:<28} {row['error']:>9.1e} "
            f"{row['num_different']:>8}/{row['num_repeats']:<6} "
            f"{row['seconds'] * 1e6:>10.1f} {row['share_of_limit']:>9.1%} "
            f"{row['called_s'] * 1e6:>10.1f}{ok}"
        )


def _invariance(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield f"{'batch invariance costs':<28} {'us':>10} {'us ordinary':>12} {'cost':>8}"
    for row in rows:
        one, other = row["invariant_s"], row["ordinary_s"]
        yield f"{row['name']:<28} {one * 1e6:>10.1f} {other * 1e6:>12.1f} {_more(one, other):>8}"


def _models(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        f"{'decode, tok/s':<14} {'eager':>8} {'graph':>8} {'sentinels':>16} "
        f"{'ordinary products':>18} {'transformers':>13} {'prefill ms':>11} {'ordinary':>9}"
    )
    for row in rows:
        peer = row["transformers_s"]
        other = f"{1 / peer:.1f}" if peer else "not executed"
        guarded, ordinary = row["guarded_s"], row["ordinary_replayed_s"]
        equal = (name if row[field] else f"not {name}  WRONG" for field, name in _EQUAL.items())
        yield (
            f"{row['family']:<14} {1 / row['eager_s']:>8.1f} {1 / row['replayed_s']:>8.1f} "
            f"{1 / guarded:>8.1f} {_more(guarded, row['replayed_s']):>7} "
            f"{1 / ordinary:>9.1f} {_more(row['replayed_s'], ordinary):>8} {other:>13} "
            f"{row['prefill_s'] * 1e3:>11.2f} {row['ordinary_prefill_s'] * 1e3:>9.2f}"
            f"  {', '.join(equal)}"
        )


def _more(one: float, other: float) -> str:
    """How much more time one takes than another."""
    return f"{one / other - 1:+.0%}"
