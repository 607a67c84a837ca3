from typing import Any

import pytest

from harness.errors import InvalidInputError
from harness.realize.arming import Arming, parse_arming

ARMINGS = [
    Arming(),
    Arming(repetitions=3, replay_phase="decode", replay_step=2, keep=("logits", "layers.*.q")),
    Arming(phases=("prefill",), steps=(1, 2), layers=(0,), num_rows=(3,), digest_kind="xxh3-128"),
]


@pytest.mark.parametrize("arming", ARMINGS)
def test_an_arming_survives_its_document(arming: Arming) -> None:
    assert parse_arming(arming.document()) == arming


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"repetitions": 0}, "repetitions"),
        ({"repetitions": True}, "repetitions"),
        ({"replay_phase": "warm-up"}, "replay_phase"),
        ({"replay_step": -1}, "replay_step"),
        ({"phases": ["warm-up"]}, "phases"),
        ({"steps": ["1"]}, "steps"),
        ({"layers": []}, "layers"),
        ({"layers": 3}, "layers"),
        ({"num_rows": [1.5]}, "num_rows"),
        ({"digest_kind": "md5"}, "digest_kind"),
        ({"keep": [1]}, "keep"),
        ({"keep_max_bytes": 1 << 40}, "keep_max_bytes"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_what_is_not_valid_is_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        parse_arming(values)


def test_filters_let_pass_what_they_name() -> None:
    arming = ARMINGS[2]
    assert arming.passes_step("prefill", 1, 3)
    assert not arming.passes_step("decode", 1, 3)
    assert not arming.passes_step("prefill", 0, 3)
    assert not arming.passes_step("prefill", 1, 64)
    assert arming.passes_boundary("layers.0.q")
    assert not arming.passes_boundary("layers.10.q")
    assert not arming.passes_boundary("logits")
    assert Arming().passes_boundary("logits")
    assert ARMINGS[1].keeps("layers.11.q")
    assert not ARMINGS[1].keeps("layers.11.k")
