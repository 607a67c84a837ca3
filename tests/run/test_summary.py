from harness.run.summary import MAX_SHOWN_CHARS, shortened, time_per_token_ns


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    assert shortened("a" * MAX_SHOWN_CHARS) == "a" * MAX_SHOWN_CHARS
    text = "begin" + "x" * MAX_SHOWN_CHARS + "end"
    assert shortened(text).startswith("beginx")
    assert shortened(text).endswith("xend")
    assert f"({len(text):,} characters)" in shortened(text)
    assert len(shortened(text)) < MAX_SHOWN_CHARS + 40


def test_making_the_recordings_counts_as_no_token() -> None:
    def step(repetition: int, duration_ns: int, phase: str = "decode") -> dict[str, object]:
        return {"phase": phase, "repetition": repetition, "duration_ns": duration_ns}

    first = [step(0, 9, "prefill"), step(0, 800), step(0, 900)]
    rows = {"step_times": {0: [*first, step(1, 3), step(1, 5)]}}
    assert time_per_token_ns(rows, is_recorded=True) == 4
    assert time_per_token_ns(rows, is_recorded=False) == 402
    assert time_per_token_ns({"step_times": {0: first}}, is_recorded=True) is None
