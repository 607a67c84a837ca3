from typing import Any
from xml.etree import ElementTree

from armed_rows import boundary_rows

from harness.evidence.predicates import SourceIdentity
from harness.evidence.studies import StudyPredicate
from harness.laboratory.localization import findings
from harness.laboratory.matrix import build_matrix
from harness.laboratory.picture import MAX_BLOCKS, MAX_TRIALS, matrix_svg
from harness.laboratory.report import case_lines, notes, page

HOSTILE = '<script>alert("x")</script>&\x1b[31m'


def study(**finding: Any) -> StudyPredicate:
    found = {
        "state": "varying",
        "num_trials": 4,
        "num_completed": 3,
        "num_boundaries": 15,
        "num_varying": 2,
        "earliest": {
            "phase": "prefill",
            "step": 1,
            "boundary": 3,
            "name": "layers.0.q",
            "num_distinct": 2,
            "varies_within_a_process": True,
        },
        "self_proof": "passed",
        "armed_equals_unarmed": "passed",
    }
    case = {"point": {}, "plan_digest": "x", "record": None, "audit": "passed", "problem": HOSTILE}
    return StudyPredicate(
        kind="localization",
        experiment=HOSTILE,
        parameters={"cases": [case], "planted_fault": HOSTILE},
        records=(),
        tables=(),
        tensors=(),
        findings=findings([found | finding]),
        source=SourceIdentity(),
        command=(),
        started_at="2026-01-01T00:00:00Z",
        ended_at="2026-01-01T00:00:00Z",
    )


def test_a_picture_has_a_block_for_each_pattern_and_a_cell_for_each_trial() -> None:
    def last(repetition: int, phase: str, step: int, name: str) -> object:
        return repetition if phase == "decode" and name == "logits" else ""

    matrix = build_matrix({0: boundary_rows(2, value=last), 1: boundary_rows(2)})
    root = ElementTree.fromstring(matrix_svg(matrix))
    blocks = [group for group in root if group.tag.endswith("}g")]
    assert len(blocks) == 2
    colors = [
        [cell.get("fill") for cell in block if cell.tag.endswith("}rect")] for block in blocks
    ]
    assert [len(set(each)) for each in colors] == [1, 3]
    assert all(len(each) == 4 for each in colors)
    title = blocks[1][0].text
    assert title is not None
    assert "decode 0: logits" in title


def test_a_long_matrix_stays_a_small_picture() -> None:
    names = [f"layers.{number}.q" for number in range(2 * MAX_BLOCKS)]

    def odd(repetition: int, phase: str, step: int, name: str) -> object:
        return repetition if int(name.split(".")[1]) % 2 else ""

    rows = boundary_rows(2, value=odd, names=names, steps=[("prefill", 0)])
    picture = matrix_svg(build_matrix({0: rows}))
    assert picture.count("<rect") == 2 * MAX_BLOCKS
    assert f"{MAX_BLOCKS} more boundaries are not drawn" in picture


def test_many_trials_stay_a_small_picture() -> None:
    rows = boundary_rows(3 * MAX_TRIALS, names=["logits"], steps=[("prefill", 0)])
    picture = matrix_svg(build_matrix({0: rows}))
    assert picture.count("<rect") == MAX_TRIALS
    assert f"{2 * MAX_TRIALS} more trials are not drawn" in picture


def test_a_page_is_complete_in_itself_and_escapes_everything() -> None:
    rows = boundary_rows(1, names=[HOSTILE])
    text = page(study(), "sha256:0", [build_matrix({0: rows})])
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "\x1b" not in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "prefill 1: layers.0.q" in text


def test_lines_and_notes_say_what_happened() -> None:
    ((name, state, trials, *_, first, distinct),) = case_lines(study())
    assert (name, state, trials, distinct) == ("as it is", "varying", "3/4", "2")
    assert first == "prefill 1: layers.0.q"
    listed = notes(study(self_proof="failed"))
    assert any("did not run" in note for note in listed)
    assert any("1 trials did not complete" in note for note in listed)
    assert any("proves itself: failed" in note for note in listed)
