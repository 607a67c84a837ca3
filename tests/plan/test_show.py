from plan_sample import corrupted, loaded, native_document

from harness.plan.load import parse_plan
from harness.plan.show import printable, show_plan


def test_a_plan_is_summarized_with_exact_bytes() -> None:
    text = show_plan(loaded(native_document()))
    for part in (
        native_document()["digest"],
        "accelerator0.vram (simulated-vram): 300 persistent, 300 at the peak, capacity 400",
        "node0.ram (system-ram): 0 persistent, 76 at the peak, capacity 1,000",
        "state.cells: mutable_authoritative, owned by mat.cells.resident as state.cells@epoch-1",
        "mat.bank.stage: state.bank as checkpoint-native",
        "76 bytes in node0.ram by checkpoint-to-ram (required transient staging)",
        "no persistent copy of state.bank in node0.ram",
        "3 prompt tokens (1, 2, 3)",
        "memory.unplanned (limit 4096)",
        "does not prove: anything else",
    ):
        assert part in text


def test_the_published_plan_is_summarized(published_bytes: bytes) -> None:
    text = show_plan(parse_plan(published_bytes, where="published"))
    assert "10,391,381,656 persistent" in text
    assert "44,362 of layers [0, 19)" in text


def test_nothing_a_terminal_would_obey_is_printed() -> None:
    evil = "one\x1b[2J\ntwo\u202e\u2028three\x9b"

    def spoil(document: dict[str, object]) -> None:
        document["workload"]["prompt_text"] = evil  # type: ignore[index]
        document["scope"]["proves"] = [evil]  # type: ignore[index]

    plain = show_plan(loaded(native_document()))
    text = show_plan(loaded(corrupted(spoil)))
    assert len(text.splitlines()) == len(plain.splitlines())
    assert all(line.isprintable() for line in text.splitlines())
    assert printable("ä b\t") == "ä b\\t"
