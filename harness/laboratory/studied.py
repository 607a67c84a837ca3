"""Digest matrices of one record: of its own steps, and of every localization that rests on it.

A study that cannot be read or does not hold together is named; verification says more.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import HarnessError
from harness.evidence.scan import one_line
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate, study_predicate
from harness.laboratory.localization import case_matrix
from harness.laboratory.matrix import Matrix, build_matrix
from harness.laboratory.recheck import case_tables
from harness.laboratory.report import case_name

_LOCALIZATION = "localization"


STEP_OUTPUTS = (("plane_digest", "plane"), ("logits_digest", "logits"))
"""What every record digests of each step, in order: its columns, and their names."""


Place = tuple[int | None, int | None]


def step_matrix(tables: Mapping[Place, Sequence[Mapping[str, Any]]]) -> Matrix:
    """The matrix of a record's own steps, from its tables ``steps`` by realization and stage.

    What a process ran once (the prefill, from whose state every repetition decodes) stands in the
    column of each of its repetitions.

    Raises:
        EvidenceError: When a repetition has a step twice, or lacks one that others have.
    """
    listed: dict[int, list[Mapping[str, Any]]] = {}
    for (realization, stage), rows in tables.items():
        listed.setdefault(realization or 0, []).extend(_outputs(rows, stage))
    return build_matrix(listed)


def _outputs(rows: Sequence[Mapping[str, Any]], stage: int | None) -> Iterator[Mapping[str, Any]]:
    first = len(STEP_OUTPUTS) * (stage or 0)
    prefix = "" if stage is None else f"stage {stage} "
    repetitions = sorted({row["repetition"] for row in rows})
    run_in: dict[str, set[int]] = {}
    for row in rows:
        run_in.setdefault(row["phase"], set()).add(row["repetition"])
    for row in rows:
        is_single = len(run_in[row["phase"]]) == 1
        for repetition in repetitions if is_single else [row["repetition"]]:
            for place, (column, name) in enumerate(STEP_OUTPUTS, start=first):
                if row[column] is not None:
                    output = {"boundary": place, "name": f"{prefix}{name}", "digest": row[column]}
                    yield {**row, **_UNTYPED, **output, "repetition": repetition}


_UNTYPED: Mapping[str, Any] = {"dtype": "", "shape": ()}
"""Of an output whose form the plan decides."""


@dataclass(frozen=True, kw_only=True)
class StudiedCase:
    """One case of a study, about one record."""

    study: str
    name: str
    matrix: Matrix | None
    problem: str | None = None
    """Why there is no matrix."""


def studied_cases(store: Store, record_digest: str) -> Sequence[StudiedCase]:
    """Every case of every localization that is about a record, in order of the studies' digests."""
    found: list[StudiedCase] = []
    for digest in store.digests("studies"):
        try:
            study = study_predicate(store.read_study(digest))
        except HarnessError as error:
            found.append(StudiedCase(study=digest, name="", matrix=None, problem=one_line(error)))
            continue
        if study.kind == _LOCALIZATION and record_digest in study.records:
            found += _cases(store, study, digest, record_digest)
    return found


def _cases(
    store: Store, study: StudyPredicate, digest: str, record_digest: str
) -> Iterator[StudiedCase]:
    try:
        for number, case in enumerate(study.parameters["cases"]):
            index = case["record"]
            if index is not None and study.records[index] == record_digest:
                matrix = case_matrix(case_tables(store, study, number))
                yield StudiedCase(study=digest, name=case_name(case), matrix=matrix)
    except HarnessError as error:
        yield StudiedCase(study=digest, name="", matrix=None, problem=one_line(error))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        problem = f"its parameters cannot be read: {error!r}"[:300]
        yield StudiedCase(study=digest, name="", matrix=None, problem=problem)
