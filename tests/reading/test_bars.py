from xml.etree import ElementTree

import pytest

from harness.reading.bars import MAX_ROWS, Row, bars_svg, largest

HOSTILE = '<script>alert("x")</script>&\x1b[31m'
SVG = "{http://www.w3.org/2000/svg}"


def bars(rows: list[Row], series: tuple[str, ...] = ("a",), **options: float) -> list[float]:
    root = ElementTree.fromstring(bars_svg(rows, series, say=str, **options))
    return [float(bar.get("width", "")) for bar in root.iter(f"{SVG}rect") if bar.get("x") == "170"]


def test_lengths_are_in_proportion_to_the_largest_value() -> None:
    assert bars([Row(label="x", values=(10,)), Row(label="y", values=(5,))]) == [260, 130]
    assert bars([Row(label="x", values=(10, 5))], ("a", "b"), full=20) == [130, 65]


@pytest.mark.parametrize("value", [-5, None, 0])
def test_what_is_no_length_has_none(value: int | None) -> None:
    assert bars([Row(label="x", values=(value,)), Row(label="y", values=(5,))]) == [0, 260]
    assert bars([Row(label="x", values=(value,))]) == [0]


def test_no_bar_leaves_the_picture() -> None:
    assert bars([Row(label="x", values=(2**63,))], full=1) == [260]


def test_every_row_is_said_in_words() -> None:
    rows = [Row(label="memory", values=(None, 7))]
    text = bars_svg(rows, ("planned", "seen"), say=lambda value: f"{value} bytes")
    titles = [each.text for each in ElementTree.fromstring(text).iter(f"{SVG}title")]
    assert titles == ["memory, planned: not measured", "memory, seen: 7 bytes"]


def test_a_long_picture_says_what_it_leaves_out() -> None:
    text = bars_svg([Row(label="x", values=(1,))] * (MAX_ROWS + 3), ("a",), say=str)
    assert text.count("<rect") == MAX_ROWS
    assert "3 more rows are not drawn" in text


def test_text_from_elsewhere_is_escaped() -> None:
    text = bars_svg([Row(label=HOSTILE, values=(1, 2))], (HOSTILE, "b"), say=lambda _: HOSTILE)
    ElementTree.fromstring(text)
    assert "<script" not in text
    assert "\x1b" not in text


def test_the_largest_of_nothing_is_nothing() -> None:
    assert largest([]) == largest([Row(label="x", values=(None,))]) == 0
