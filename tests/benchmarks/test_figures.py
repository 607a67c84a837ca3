"""Figures against what was worked out by hand."""

from typing import Any

import pytest

from benchmarks import figures, show
from benchmarks.figures import Model, Round

MODEL = Model(weight_bytes=900, kv_bytes_per_position=10, matrix_elements=50, head_elements=100)


def made(decode: float, prefill: float, tokens: tuple[int, ...] = (1, 2, 3)) -> Round:
    return Round(decode_tok_per_sec=decode, prefill_tok_per_sec=prefill, tokens=tokens)


def answer(**changes: Any) -> dict[str, Any]:
    return {"prefill_s": 0.5, "decode_s": [0.25, 0.5, 0.1], "tokens": [7, 8, 9, 10], **changes}


def test_a_round_is_its_prompt_over_the_prefill_and_one_over_the_median_step() -> None:
    found = figures.round_of(answer(), num_prompt=4, num_steps=3)
    assert found == made(4.0, 8.0, (7, 8, 9, 10))


@pytest.mark.parametrize(
    "changes",
    [
        {"decode_s": [0.25, 0.5]},
        {"decode_s": [0.25, 0.5, 0.0]},
        {"decode_s": [0.25, 0.5, float("nan")]},
        {"decode_s": [0.25, 0.5, "1"]},
        {"decode_s": None},
        {"prefill_s": -1.0},
        {"prefill_s": None},
        {"tokens": [7, 8, 9]},
        {"tokens": [7, 8, 9, "x"]},
        {"different": 2},
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        figures.round_of(answer(**changes), num_prompt=4, num_steps=3)


def test_limits_are_bytes_over_bandwidth_and_operations_over_rate() -> None:
    machine = [
        {
            "read_bytes_per_sec": rate,
            "bfloat16_flop_per_sec": flops,
            "float32_flop_per_sec": 2000.0,
        }
        for rate, flops in ((1000.0, 2000.0), (4000.0, 100.0), (2000.0, 4000.0))
    ]
    found = figures.limits(machine, MODEL, "bfloat16", prompt=8, steps=4)
    # 900 bytes of weights and 10 positions of 10 bytes; 50 x 8 + 100 products of two operations,
    # at the median of 2000, 2000 and 4000.
    assert found == {"decode": 2000 / 1000, "prefill": 8 * 2000 / 1000}


def test_ratios_are_taken_within_rounds() -> None:
    rounds = {
        "ours": [made(10, 1), made(30, 1), made(20, 1)],
        "peer": [made(5, 2, (1, 2, 9)), made(10, 2, (1, 2, 9)), made(40, 2, (1, 2, 9))],
    }
    found = figures.summarize(rounds, "ours", {"decode": 100.0, "prefill": 10.0})
    peer = found["peer"]
    assert peer["decode"]["ours_to_this"] == {"median": 2.0, "low": 0.5, "high": 3.0}
    assert peer["decode"]["tok_per_sec"] == {"median": 10, "low": 5, "high": 40}
    assert peer["decode"]["share_of_limit"] == 0.1
    assert peer["prefill"]["ours_to_this"]["median"] == 0.5
    assert (peer["equal_leading_tokens"], peer["num_tokens"], peer["repeats_equal"]) == (2, 3, True)
    assert found["ours"]["decode"]["ours_to_this"] == {"median": 1.0, "low": 1.0, "high": 1.0}


def test_the_table_names_everyone_and_why_others_are_absent(tmp_path: Any) -> None:
    limit = {"decode": 100.0, "prefill": 10.0}
    rounds = {"harness x": [made(50, 5)], "peer": [made(25, 5, (4, 2, 3))]}
    found = {
        "dtype": "bfloat16",
        "threads": 2,
        "prompt": 8,
        "steps": 2,
        "rounds": 1,
        "ours": "harness x",
        "limits_tok_per_sec": limit,
        "absent": {"other": "its environment cannot be made: no compiler"},
        "contenders": figures.summarize(rounds, "harness x", limit),
    }
    lines = list(show.table(found))
    assert "50%" in lines[2]
    assert lines[3].startswith("peer ")
    assert "2.00 [2.00-2.00]" in lines[3]
    assert lines[3].rstrip().endswith("0/3")
    assert lines[-1] == "other: not measured: its environment cannot be made: no compiler"
    show.picture([found], tmp_path / "bench.svg")
    assert (tmp_path / "bench.svg").read_bytes().startswith(b"<?xml")
