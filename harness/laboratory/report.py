"""A localization for a person: lines and a table for a terminal, and one self-contained HTML page.

Everything that came from a file or a model is escaped. Knows findings and matrices; judges nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.evidence.studies import StudyPredicate
from harness.laboratory.localization import boundary_of
from harness.laboratory.matrix import Matrix
from harness.laboratory.picture import matrix_svg, shown

COLUMNS = ("case", "state", "trials", "boundaries", "varying", "first varying", "distinct")
_STYLE = (
    "body{font-family:sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse}"
    "td,th{border:1px solid #bbb;padding:.25em .6em;text-align:left}svg{margin:.6em 0}"
)


def case_lines(study: StudyPredicate) -> list[tuple[str, ...]]:
    """One line of :data:`COLUMNS` for each case."""
    lines: list[tuple[str, ...]] = []
    pairs = zip(study.parameters["cases"], study.findings["cases"], strict=True)
    for case, found in pairs:
        earliest = found["earliest"]
        lines.append(
            (
                case_name(case),
                str(found["state"]),
                f"{found['num_completed']}/{found['num_trials']}",
                str(found["num_boundaries"]),
                str(found["num_varying"]),
                "-" if earliest is None else boundary_of(earliest).label,
                "-" if earliest is None else str(earliest["num_distinct"]),
            )
        )
    return lines


def case_name(case: Mapping[str, Any]) -> str:
    """A case's point on the axes, in words."""
    return ", ".join(f"{key}={value}" for key, value in case["point"].items()) or "as it is"


def notes(study: StudyPredicate) -> list[str]:
    """What a reader has to know of each case beyond its line."""
    found = []
    pairs = zip(study.parameters["cases"], study.findings["cases"], strict=True)
    for case, finding in pairs:
        name = case_name(case)
        if case["problem"] is not None:
            found.append(f"{name}: did not run: {case['problem'].splitlines()[0]}")
        for field, text in (
            ("self_proof", "exact-state replay proves itself"),
            ("armed_equals_unarmed", "armed runs equal unarmed ones"),
        ):
            if finding[field] != "passed":
                found.append(f"{name}: {text}: {finding[field]}")
        if finding["num_completed"] < finding["num_trials"]:
            lost = finding["num_trials"] - finding["num_completed"]
            found.append(f"{name}: {lost} trials did not complete; the ledger says how each ended")
        if case["audit"] != "passed":
            found.append(f"{name}: the audit of its record: {case['audit']}")
    return found


def page(study: StudyPredicate, digest: str, matrices: Sequence[Matrix]) -> str:
    """The HTML page of one localization."""
    title = f"Localization of {study.experiment}"
    rows = "".join(_row("td", line) for line in case_lines(study))
    listed = "".join(f"<li>{shown(note)}</li>" for note in notes(study))
    fault = study.parameters["planted_fault"]
    planted = "" if fault is None else f"<p>Planted fault: {shown(fault)}</p>"
    pictures = "".join(
        f"<h2>{shown(case_name(case))}</h2>{matrix_svg(matrix)}"
        for case, matrix in zip(study.parameters["cases"], matrices, strict=True)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{shown(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{shown(title)}</h1><p>{shown(study.findings['status'])}</p>{planted}"
        f"<p>Study {shown(digest)}</p>"
        f"<table>{_row('th', COLUMNS)}{rows}</table><ul>{listed}</ul>"
        "<p>Each column is one trial, <i>process.replay</i>; each row is a run of boundaries with "
        "one pattern, in execution order. Cells of one color in a row had equal bits. The first "
        "row of several colors is where a difference is first seen; its cause lies between there "
        "and the boundary before.</p>"
        f"{pictures}</body></html>\n"
    )


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{shown(cell)}</{tag}>" for cell in cells) + "</tr>"
