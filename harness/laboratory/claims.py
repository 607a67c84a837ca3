"""What a study says of its cases, held against the records and tables that they name.

Findings follow from tables; this is about what was done: which plan, where on the axes, with which
fault, and whether every boundary that the arming asks for is there, so that none can be left out.
"""

from collections.abc import Mapping
from typing import Any

from harness.adapters.families import layout_for
from harness.errors import EvidenceError
from harness.evidence.predicates import PLANTED_FAULT
from harness.evidence.record import LoadedRecord, load_record, verdicts_of
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate
from harness.laboratory.trials import CaseTables
from harness.plan.layout import HEAD_BOUNDARIES
from harness.plan.load import parse_plan
from harness.plan.records import Plan
from harness.plan.request import layout_request
from harness.realize.arming import Arming, parse_arming
from harness.realize.schedule import schedule_of

Place = tuple[str, int, int, str]
MAX_LAYERS = 1000


def case_problems(
    store: Store, study: StudyPredicate, number: int, observed: CaseTables
) -> list[str]:
    """What one case of a study says otherwise than its record does.

    Args:
        store: Where the record is.
        study: A localization or an intervention.
        number: Which case.
        observed: Its tables.
    """
    case = study.parameters["cases"][number]
    if case["record"] is None:
        return [] if case["problem"] else [f"case {number} did not run, and does not say why"]
    record = load_record(study.records[case["record"]], store)
    plan = parse_plan(record.plan_bytes(), where=record.digest).plan
    said = {
        "experiment": study.experiment,
        "problem": case["problem"],
        **{f"point {axis}": value for axis, value in case["point"].items()},
    }
    found = {
        "experiment": record.predicate.experiment,
        "problem": None,
        **{f"point {axis}": value for axis, value in _axes(plan).items()},
    }
    if "planted_fault" in study.parameters:
        said["planted_fault"] = study.parameters["planted_fault"]
        found["planted_fault"] = fault_of(record)
    problems = [
        f"says {name} of case {number} is {value!r}, its record says {found[name]!r}"
        for name, value in said.items()
        if name in found and value != found[name]
    ]
    problems += _audit_problems(store, record, case["audit"], f"case {number}")
    return problems + _boundary_problems(study, number, plan, observed)


def replay_problems(store: Store, study: StudyPredicate) -> list[str]:
    """What a replay says otherwise than its two records do."""
    recorded, got = (load_record(digest, store) for digest in study.records)
    problems = []
    if study.experiment != recorded.predicate.experiment:
        problems.append(f"is of {study.experiment!r}, its record of another experiment")
    if fault_of(recorded) != fault_of(got):
        problems.append("its records are of different planted faults")
    return problems + _audit_problems(store, got, study.parameters["audit"], "the replay")


def _audit_problems(store: Store, record: LoadedRecord, said: object, what: str) -> list[str]:
    verdicts = {verdict.predicate.status for verdict in verdicts_of(store, record.digest)}
    if verdicts and said not in verdicts:
        return [f"says the audit of {what} is {said!r}, no verdict does"]
    return []


def fault_of(record: LoadedRecord) -> str | None:
    """The fault that a record says was planted."""
    return next((c.detail for c in record.predicate.claims if c.name == PLANTED_FAULT), None)


def _axes(plan: Plan) -> dict[str, int]:
    """Where a plan lies on the axes of a localization."""
    assert plan.workload is not None
    assert plan.determinism is not None
    return {
        "prompt_rows": len(plan.workload.prompt_token_ids),
        "chunk_rows": plan.workload.chunk_rows,
        "num_threads": plan.determinism.num_threads,
    }


def _boundary_problems(
    study: StudyPredicate, number: int, plan: Plan, observed: CaseTables
) -> list[str]:
    _require_bounded(plan, observed)
    arming = parse_arming(study.parameters["arming"])
    layout = layout_for(plan.adapter_data.family or "")
    problems = []
    expected = None
    # A list of another version cannot be made anew, and is taken as it is.
    if study.parameters.get("boundaries_version") == layout.boundaries_version:
        expected = planned_boundaries(plan, arming)
    for realization, rows in sorted(observed.boundaries.items()):
        kinds = {row["digest"].partition(":")[0] for row in rows}
        if kinds - {arming.digest_kind}:
            problems.append(f"case {number} has digests of another kind than {arming.digest_kind}")
        wanted = None if expected is None else _repeated(expected, arming.repetitions)
        if wanted is not None and {_place(row): None for row in rows}.keys() != wanted:
            problems.append(
                f"process {realization} of case {number} has other boundaries than were armed"
            )
    return problems


def _require_bounded(plan: Plan, observed: CaseTables) -> None:
    """Refuse a plan that asks for more than any run of it could have left.

    Raises:
        EvidenceError: Otherwise; its boundaries are then not listed at all.
    """
    num_steps = plan.workload.decode_steps if plan.workload is not None else 0
    num_layers = plan.adapter_data.spec.end_layer - plan.adapter_data.spec.start_layer
    ran = max((len(rows) for rows in observed.steps.values()), default=0)
    if observed.boundaries and (num_steps > ran or num_layers > MAX_LAYERS):
        raise EvidenceError(
            "a plan asks for more than was run",
            expected=f"at most {ran} steps and {MAX_LAYERS} layers",
            got=f"{num_steps} decode steps, {num_layers} layers",
        )


def planned_boundaries(plan: Plan, arming: Arming) -> list[Place]:
    """Every boundary that one replay digests: phase, step, place in the list, and name."""
    request = layout_request(plan)
    names = layout_for(plan.adapter_data.family or "").boundaries(request.config, request.spec)
    steps = schedule_of(request.workload, request.spec).steps()
    places = [(step.phase, step.step) for step in steps]
    first = places.index((arming.replay_phase, arming.replay_step))
    return [
        (step.phase, step.step, index, name)
        for step in steps[first:]
        if arming.passes_step(step.phase, step.step, step.num_rows)
        for index, name in enumerate(names)
        if arming.passes_boundary(name) and (step.wants_logits or name not in HEAD_BOUNDARIES)
    ]


def _repeated(places: list[Place], repetitions: int) -> set[tuple[int, Place]]:
    return {(number, place) for number in range(repetitions) for place in places}


def _place(row: Mapping[str, Any]) -> tuple[int, Place]:
    return row["repetition"], (row["phase"], row["step"], row["boundary"], row["name"])
