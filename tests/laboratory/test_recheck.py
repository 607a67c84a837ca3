"""Studies over a committed record, with made-up armed tables: sound ones, and lies."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from honest_studies import localization, put

from harness.canonical import sha256_digest
from harness.cli import main
from harness.errors import EvidenceError, InvalidInputError
from harness.evidence.record import LoadedRecord, load_record
from harness.evidence.statement import record_statement
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate, StudyTable, study_statement
from harness.evidence.verify import verify_store
from harness.laboratory.compare import TrialReference, compare
from harness.laboratory.localization import case_matrix
from harness.laboratory.matrix import matrix_rows
from harness.laboratory.recheck import recheck_studies
from harness.laboratory.trials import trial_rows
from harness.plan.format import plan_digest, plan_file_bytes


@pytest.fixture
def record(evidence: Store) -> LoadedRecord:
    (digest,) = evidence.digests("records")
    return load_record(digest, evidence)


def problems_of(store: Store, study: StudyPredicate) -> list[str]:
    store.put_study(study_statement(study))
    # A table that was replaced stays behind.
    assert {problem.kind for problem in verify_store(store.root)} <= {"extra"}
    return [problem.message for problem in recheck_studies(store)]


def test_an_honest_study_is_upheld(record: LoadedRecord) -> None:
    study, _ = localization(record)
    assert study.findings["cases"][0]["earliest"]["name"] == "logits"
    assert problems_of(record.store, study) == []


def with_finding(study: StudyPredicate, **changes: Any) -> StudyPredicate:
    (case,) = study.findings["cases"]
    return replace(study, findings={**study.findings, "cases": [{**case, **changes}]})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"earliest": None}, "says earliest of case 0"),
        ({"state": "stable"}, "says state of case 0"),
        ({"num_varying": 0}, "says num_varying of case 0"),
        ({"self_proof": "not_evaluated"}, "says self_proof of case 0"),
    ],
)
def test_a_finding_that_contradicts_its_tables_is_found(
    record: LoadedRecord, changes: dict[str, Any], text: str
) -> None:
    study, _ = localization(record)
    (problem,) = problems_of(record.store, with_finding(study, **changes))
    assert text in problem


def test_another_earliest_boundary_is_found_by_the_command(record: LoadedRecord) -> None:
    study, _ = localization(record)
    earliest = study.findings["cases"][0]["earliest"] | {"name": "layers.0.q", "boundary": 2}
    record.store.put_study(study_statement(with_finding(study, earliest=earliest)))
    assert main(["evidence", "verify", str(record.store.root)]) == 1


def replaced(study: StudyPredicate, table: StudyTable) -> StudyPredicate:
    kept = [t for t in study.tables if (t.name, t.realization) != (table.name, table.realization)]
    return replace(study, tables=(*kept, table))


def test_a_matrix_that_its_trials_do_not_give_is_found(record: LoadedRecord) -> None:
    study, case = localization(record)
    rows = matrix_rows(case_matrix(case))
    rows[-1] |= {"num_distinct": 1, "groups": [0, 0, 0, 0]}
    problems = problems_of(record.store, replaced(study, put(record.store, "matrix", rows)))
    assert problems == ["table matrix of case 0 is not what its trials give"]


def test_a_trial_left_out_of_the_ledger_is_found(record: LoadedRecord) -> None:
    study, case = localization(record)
    rows = trial_rows(case)[:-1]
    problems = problems_of(record.store, replaced(study, put(record.store, "case_trials", rows)))
    assert problems == ["table case_trials of case 0 is not what its trials give"]


def test_outputs_that_are_not_the_unarmed_run_s_are_found(record: LoadedRecord) -> None:
    study, case = localization(record)
    rows = [dict(row) for row in case.armed_steps[1]]
    rows[0]["plane_digest"] = rows[1]["plane_digest"]
    problems = problems_of(record.store, replaced(study, put(record.store, "armed_steps", rows, 1)))
    assert "table case_trials of case 0 is not what its trials give" in problems


def test_a_study_of_another_plan_is_found(record: LoadedRecord) -> None:
    study, _ = localization(record)
    case = study.parameters["cases"][0] | {"plan_digest": "sha256:" + "0" * 64}
    (problem,) = problems_of(
        record.store, replace(study, parameters={**study.parameters, "cases": [case]})
    )
    assert "not about its record's plan" in problem


@pytest.mark.parametrize("parameters", [{}, {"arming": {"no": 1}, "cases": [{}]}, {"cases": 5}])
def test_parameters_that_cannot_be_read_are_a_problem_and_no_crash(
    record: LoadedRecord, parameters: dict[str, Any]
) -> None:
    study, _ = localization(record)
    (problem,) = problems_of(record.store, replace(study, parameters=parameters))
    assert problem


def test_a_study_may_only_name_what_the_store_holds(record: LoadedRecord) -> None:
    study, _ = localization(record)
    absent = replace(study.tables[0], digest="sha256:" + "1" * 64)
    with pytest.raises(EvidenceError, match="only name what the store holds"):
        record.store.put_study(study_statement(replace(study, tables=(absent,))))
    with pytest.raises(EvidenceError, match="only name what the store holds"):
        record.store.put_study(study_statement(replace(study, records=("sha256:" + "2" * 64,))))


def test_a_missing_table_of_a_study_is_an_integrity_problem(record: LoadedRecord) -> None:
    study, _ = localization(record)
    record.store.put_study(study_statement(study))
    (table,) = [t for t in study.tables if t.name == "matrix"]
    record.store.path("tables", table.digest).unlink()
    assert [problem.kind for problem in verify_store(record.store.root)] == ["missing"]
    assert recheck_studies(record.store)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "opinion"},
        {"started_at": "yesterday"},
        {"records": ("sha256:zz",)},
        {"schema": "harness.study/2"},
    ],
)
def test_a_study_that_breaks_its_schema_is_refused(
    record: LoadedRecord, change: dict[str, Any]
) -> None:
    study, _ = localization(record)
    with pytest.raises(InvalidInputError):
        study_statement(replace(study, **change))


def test_two_tables_of_one_name_are_refused(record: LoadedRecord) -> None:
    study, _ = localization(record)
    tables: Sequence[StudyTable] = (*study.tables, study.tables[0])
    with pytest.raises(EvidenceError, match="named twice"):
        study_statement(replace(study, tables=tuple(tables)))


def compared(left: LoadedRecord, right: LoadedRecord | None = None) -> StudyPredicate:
    """A comparison of the two processes of an honest localization, or of two localizations."""
    studies = [
        each.store.put_study(study_statement(localization(each)[0]))
        for each in (left, right or left)
    ]
    pair = [
        TrialReference(study=digest, realization=n, repetition=1)
        for n, digest in enumerate(studies)
    ]
    return compare(left.store, *pair)[1]


def with_limits(record: LoadedRecord, *limits: dict[str, Any]) -> LoadedRecord:
    """The record of the same run, had its plan declared these limits of comparisons."""
    store, plan = record.store, json.loads(record.plan_bytes())
    plan["checks"]["comparison"] = list(limits)
    plan["digest"] = plan_digest(plan)
    data = plan_file_bytes(plan)
    store.put_plan(data)
    named = replace(record.predicate.plan, digest=plan["digest"], file_digest=sha256_digest(data))
    statement = record_statement(replace(record.predicate, plan=named))
    return load_record(store.put_record(statement), store)


def a_limit(limit: float, metric: str = "max_abs", kind: str = "acceptance") -> dict[str, Any]:
    return {"kind": kind, "metric": metric, "tensors": "logits", "limit": limit}


def test_a_comparison_is_upheld_and_names_the_first_difference(record: LoadedRecord) -> None:
    study = compared(record)
    exact = study.findings["exact"]
    assert (study.findings["status"], exact["state"]) == ("failed", "different")
    assert exact["first_different"]["name"] == "logits"
    assert verify_store(record.store.root) == []
    assert recheck_studies(record.store) == []


def test_a_comparison_that_says_otherwise_is_found(record: LoadedRecord) -> None:
    study = compared(record)
    lie = replace(study, findings={**study.findings, "status": "passed"})
    record.store.put_study(study_statement(lie))
    (problem,) = recheck_studies(record.store)
    assert "says status is 'passed'" in problem.message


def test_limits_are_those_of_both_plans(record: LoadedRecord) -> None:
    """Whichever is the reference, and each once; no tensor was kept, so none is evaluated."""
    one = with_limits(record, a_limit(0.5), a_limit(3.0, "max_ulp", "telemetry"))
    other = with_limits(record, a_limit(0.5), a_limit(0.1))
    for pair in ((one, other), (other, record)):
        found = compared(*pair).findings
        told = {(each["metric"], each["limit"]) for each in found["limits"]}
        assert len(told) == len(found["limits"])
        assert told == {("max_abs", 0.5)} | ({("max_abs", 0.1)} if other in pair else set()) | (
            {("max_ulp", 3.0)} if one in pair else set()
        )
        assert (found["status"], found["exact"]["state"]) == ("not_evaluated", "different")
    assert compared(record).findings["limits"] == []
    assert recheck_studies(record.store) == []


def test_a_looser_limit_than_the_plan_s_is_found(record: LoadedRecord) -> None:
    study = compared(with_limits(record, a_limit(0.5)))
    looser = [{**study.findings["limits"][0], "limit": 5.0}]
    lie = replace(study, findings={**study.findings, "limits": looser})
    record.store.put_study(study_statement(lie))
    (problem,) = recheck_studies(record.store)
    assert "says limits is" in problem.message


@pytest.mark.parametrize(("side", "realization"), [("left", 1), ("right", 0)])
def test_a_comparison_of_other_trials_than_it_says_is_found(
    record: LoadedRecord, side: str, realization: int
) -> None:
    study = compared(record)
    told = {**study.parameters[side], "realization": realization}
    lie = replace(study, parameters={**study.parameters, side: told})
    record.store.put_study(study_statement(lie))
    (problem,) = recheck_studies(record.store)
    assert "names other evidence than its trial has" in problem.message


@pytest.mark.parametrize("change", [{"case": 1}, {"realization": 2}, {"repetition": 5}])
def test_a_trial_that_is_not_there_cannot_be_compared(
    record: LoadedRecord, change: dict[str, int]
) -> None:
    study, _ = localization(record)
    digest = record.store.put_study(study_statement(study))
    sound = TrialReference(study=digest)
    with pytest.raises(EvidenceError):
        compare(record.store, sound, replace(sound, **change))
