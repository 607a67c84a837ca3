from typing import Any

from harness.laboratory.overhead import digest_shares


def test_shares_are_of_the_unarmed_step_of_the_same_place() -> None:
    def row(phase: str, step: int, **times: int) -> dict[str, Any]:
        return {"repetition": 0, "phase": phase, "step": step, **times}

    unarmed = [
        row("prefill", 0, duration_ns=1000),
        row("decode", 0, duration_ns=100),
        row("decode", 0, duration_ns=300),
        row("decode", 0, duration_ns=200),
        row("decode", 1, duration_ns=400),
    ]
    armed = [
        row("prefill", 0, duration_ns=9, digest_ns=250),
        row("decode", 0, duration_ns=9, digest_ns=20),
        row("decode", 1, duration_ns=9, digest_ns=80),
        row("decode", 7, duration_ns=9, digest_ns=80),
    ]
    assert digest_shares(armed, unarmed) == {"prefill": 0.25, "decode": 0.15000000000000002}
    assert digest_shares([], unarmed) == {}
