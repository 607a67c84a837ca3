from harness.run.summary import MAX_SHOWN_CHARS, shortened


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    assert shortened("a" * MAX_SHOWN_CHARS) == "a" * MAX_SHOWN_CHARS
    text = "begin" + "x" * MAX_SHOWN_CHARS + "end"
    assert shortened(text).startswith("beginx")
    assert shortened(text).endswith("xend")
    assert f"({len(text):,} characters)" in shortened(text)
    assert len(shortened(text)) < MAX_SHOWN_CHARS + 40
