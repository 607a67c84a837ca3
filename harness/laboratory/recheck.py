"""Studies checked anew: what a study says must be what its tables and records give.

The analysis runs again, by the same pure functions, on the rows that the store holds; a finding, a
matrix or a ledger of trials that says anything else is a problem of that study.
"""

from collections.abc import Callable, Mapping
from typing import Any

from harness.canonical import canonical_bytes, parse_json
from harness.errors import ContradictionError, EvidenceError, HarnessError
from harness.evidence.record import LoadedRecord, load_record
from harness.evidence.scan import Problem, one_line, problem
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate, study_predicate
from harness.laboratory.campaign import recheck_campaign, recheck_campaign_run
from harness.laboratory.cases import MAX_CASES
from harness.laboratory.claims import case_problems, fault_of, replay_problems
from harness.laboratory.compare import TABLES, recompute
from harness.laboratory.intervene import arms_of
from harness.laboratory.intervention import CONTROL, arms_in_order, intervention_findings
from harness.laboratory.localization import case_finding, case_matrix, findings
from harness.laboratory.matrix import matrix_rows
from harness.laboratory.record_states import recheck_state
from harness.laboratory.replay import TABLE, recompute_replay
from harness.laboratory.trials import CaseTables, trial_rows
from harness.plan.load import parse_plan
from harness.plan.rules.workload import MAX_REALIZATIONS
from harness.realize.arming import parse_arming

Rows = list[dict[str, Any]]


def recheck_studies(store: Store) -> list[Problem]:
    """Every study of a store that contradicts what it rests on, sorted by path.

    A study that cannot be read is left to the check of the store's integrity.
    """
    problems = []
    for digest in store.digests("studies"):
        try:
            study = study_predicate(store.read_study(digest))
        except HarnessError:
            continue
        path = store.path("studies", digest)
        problems += [problem(path, "broken_reference", text) for text in recheck(store, study)]
    return sorted(problems)


def recheck(store: Store, study: StudyPredicate) -> list[str]:
    """What a study says otherwise than its tables and records do, or why that cannot be told."""
    try:
        return _CHECKS[study.kind](store, study)
    except HarnessError as error:
        return [one_line(error)]
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        return [f"its parameters cannot be read: {error!r}"[:300]]


def uphold_study(store: Store, study: StudyPredicate) -> None:
    """Refuse a study that says anything else than what it rests on.

    Raises:
        ContradictionError: Naming the first thing that is wrong.
    """
    problems = recheck(store, study)
    if problems:
        raise ContradictionError(
            f"the {study.kind} contradicts what it rests on",
            expected="what its tables and records give",
            got=problems[0],
            where=str(store.root),
        )


def case_tables(store: Store, study: StudyPredicate, number: int) -> CaseTables:
    """What was observed of one case of a localization, as the store holds it."""
    arming, case = parse_arming(study.parameters["arming"]), study.parameters["cases"][number]
    index, num_realizations = case["record"], case["num_realizations"]
    if len(study.parameters["cases"]) > MAX_CASES or num_realizations > MAX_REALIZATIONS:
        raise EvidenceError(
            "a study is of more than any could be",
            expected=f"at most {MAX_CASES} cases of {MAX_REALIZATIONS} processes",
            got=f"{len(study.parameters['cases'])} cases, {num_realizations} processes",
        )
    if index is None:
        return CaseTables(num_realizations=num_realizations, repetitions=arming.repetitions)
    record = load_record(study.records[index], store)
    workload = parse_plan(record.plan_bytes(), where=record.digest).plan.workload
    if workload is None or record.predicate.plan.digest != case["plan_digest"]:
        raise EvidenceError(
            "a case is not about its record's plan",
            expected=record.predicate.plan.digest,
            got=str(case["plan_digest"]),
        )
    if workload.fresh_realizations != num_realizations:
        raise EvidenceError(
            f"says that case {number} has {num_realizations} processes",
            expected=f"{workload.fresh_realizations}, as its plan says",
        )
    return CaseTables(
        num_realizations=num_realizations,
        repetitions=arming.repetitions,
        ledger=record.rows("trials"),
        steps=_by_realization(record),
        **{
            name: {
                table.realization: store.read_table_rows(table.written())
                for table in study.tables
                if (table.case, table.name) == (number, name) and table.realization is not None
            }
            for name in ("boundaries", "armed_steps", "replay_states")
        },
    )


def _localization(store: Store, study: StudyPredicate) -> list[str]:
    problems, found = [], []
    for number in range(len(study.parameters["cases"])):
        case = case_tables(store, study, number)
        expected = {"matrix": matrix_rows(case_matrix(case)), "case_trials": trial_rows(case)}
        for name, rows in expected.items():
            if study_rows(store, study, number, name) != rows:
                problems.append(f"table {name} of case {number} is not what its trials give")
        problems += case_problems(store, study, number, case)
        found.append(case_finding(case))
    if plain(findings(found)) != study.findings:
        problems.append(_difference(study.findings, plain(findings(found))))
    return problems + recheck_campaign_run(store, study)


def study_rows(store: Store, study: StudyPredicate, case: int | None, name: str) -> Rows:
    """Rows of one table of a study that covers all realizations.

    Raises:
        EvidenceError: When the study does not name it once, or its file is damaged.
    """
    named = [t for t in study.tables if (t.case, t.name, t.realization) == (case, name, None)]
    if len(named) != 1:
        raise EvidenceError(f"the study has no table {name} of case {case}")
    return store.read_table_rows(named[0].written())


def plain(document: Any) -> Any:
    """A document as its canonical bytes are read back."""
    return parse_json(canonical_bytes(document), where="findings")


def _by_realization(record: LoadedRecord) -> dict[int, Rows]:
    return {n: rows for n, rows in record.by_realization("steps").items() if n is not None}


def _difference(said: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The first place at which findings differ, in words."""
    for number, (one, other) in enumerate(zip(said.get("cases", ()), found["cases"], strict=False)):
        for name in sorted({*one, *other}):
            if one.get(name) != other.get(name):
                return (
                    f"says {name} of case {number} is {one.get(name)!r}, "
                    f"its tables give {other.get(name)!r}"
                )
    return f"says {said.get('status')!r}, its tables give {found['status']!r}"


def _intervention(store: Store, study: StudyPredicate) -> list[str]:
    arms = arms_of(study)
    names = [factor["name"] for factor in study.parameters["factors"]]
    problems = []
    if arms != arms_in_order(names, study.parameters["num_pairs"])[: len(arms)]:
        problems.append("its runs are not in the counterbalanced order")
    rows = [case_tables(store, study, number) for number in range(len(arms))]
    for number, case in enumerate(rows):
        problems += case_problems(store, study, number, case)
    problems += _arm_problems(store, study)
    return problems + _otherwise(store, study, {}, intervention_findings(names, arms, rows))


def _arm_problems(store: Store, study: StudyPredicate) -> list[str]:
    """Where the runs of one arm are not runs of one plan, or an arm changes nothing."""
    ran: dict[tuple[str, str], set[tuple[str, str | None]]] = {}
    for case in study.parameters["cases"]:
        if case["record"] is not None:
            fault = fault_of(load_record(study.records[case["record"]], store))
            ran.setdefault((case["factor"], case["arm"]), set()).add((case["plan_digest"], fault))
    problems = [
        f"the {arm} of {factor} is of several plans or faults"
        for (factor, arm), settings in ran.items()
        if len(settings) > 1
    ]
    controls = {one for (_, arm), settings in ran.items() if arm == CONTROL for one in settings}
    if len(controls) > 1:
        problems.append("its controls are not of one plan and fault")
    problems += [
        f"the treatment of {factor} changes nothing"
        for (factor, arm), settings in ran.items()
        if arm != CONTROL and settings <= controls
    ]
    return problems


def _comparison(store: Store, study: StudyPredicate) -> list[str]:
    found = recompute(store, study)
    rows = {name: getattr(found, name) for name in TABLES}
    return _otherwise(store, study, rows, found.findings)


def _replay(store: Store, study: StudyPredicate) -> list[str]:
    rows, found = recompute_replay(store, study)
    problems = replay_problems(store, study)
    return problems + _otherwise(store, study, {TABLE: rows}, found)


def _otherwise(
    store: Store, study: StudyPredicate, rows: Mapping[str, Rows], found: Mapping[str, Any]
) -> list[str]:
    """Where a study's tables or findings are not those that were computed again."""
    problems = [
        f"table {name} is not what its records give"
        for name, expected in rows.items()
        if study_rows(store, study, None, name) != expected
    ]
    computed = plain(found)
    problems += [
        f"says {name} is {study.findings.get(name)!r}, its records give {computed.get(name)!r}"
        for name in sorted({*study.findings, *computed})
        if study.findings.get(name) != computed.get(name)
    ]
    return problems


_CHECKS: Mapping[str, Callable[[Store, StudyPredicate], list[str]]] = {
    "localization": _localization,
    "campaign": recheck_campaign,
    "comparison": _comparison,
    "intervention": _intervention,
    "replay": _replay,
    "state": recheck_state,
}
