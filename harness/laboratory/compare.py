"""``compare``: two armed trials of two localizations, as one study. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.errors import EvidenceError, InvalidInputError
from harness.evidence.record import load_record
from harness.evidence.store import Store
from harness.evidence.studies import (
    StoredTensors,
    StudyPredicate,
    StudyTable,
    study_predicate,
)
from harness.laboratory.comparison import Comparison, Side, compare_sides
from harness.laboratory.kept import read_kept
from harness.laboratory.writing import draft, finish, put_rows
from harness.measure.clock import utc_timestamp
from harness.plan.limits import limits_of
from harness.plan.load import parse_plan
from harness.plan.records import Plan

KIND = "comparison"
TABLES = ("differing", "metrics", "decisions")
_ARMED = ("boundaries", "armed_steps")


@dataclass(frozen=True, kw_only=True)
class TrialReference:
    """One trial of one case of a localization in a store."""

    study: str
    """Digest of the localization."""
    case: int = 0
    realization: int = 0
    repetition: int = 0


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A trial with everything that a comparison of it rests on."""

    reference: TrialReference
    record: str
    tables: tuple[StudyTable, ...]
    tensors: tuple[StoredTensors, ...]


def compare(
    store: Store,
    left: TrialReference,
    right: TrialReference,
    *,
    command: Sequence[str] = (),
) -> tuple[str, StudyPredicate]:
    """Compare two trials of one store by the limits of their plans; returns the study's digest.

    Raises:
        EvidenceError: When there is no such trial.
    """
    started_at = utc_timestamp()
    sides = [_load(store, reference) for reference in (left, right)]
    study = draft(
        kind=KIND,
        experiment=None,
        parameters={"left": asdict(left), "right": asdict(right)},
        records=[side.record for side in sides],
        tables=[replace(t, case=number) for number, side in enumerate(sides) for t in side.tables],
        tensors=[
            replace(f, case=number) for number, side in enumerate(sides) for f in side.tensors
        ],
        command=command,
        started_at=started_at,
    )
    found = recompute(store, study)
    tables = [put_rows(store, name, getattr(found, name)) for name in TABLES]
    return finish(store, study, found.findings, tables)


def recompute(store: Store, study: StudyPredicate) -> Comparison:
    """What a comparison's tables, tensors and records give.

    Raises:
        EvidenceError: When something of them is missing or damaged.
    """
    (left, one), (right, other) = (_side(store, study, number) for number in (0, 1))
    return compare_sides(left, right, limits_of((one, other)))


def _load(store: Store, reference: TrialReference) -> Loaded:
    study = study_predicate(store.read_study(reference.study))
    cases = study.parameters.get("cases")
    if study.kind != "localization" or not isinstance(cases, list):
        raise InvalidInputError(
            "only trials of a localization can be compared", got=study.kind, where=reference.study
        )
    record = cases[reference.case]["record"] if 0 <= reference.case < len(cases) else None
    wanted = (reference.case, reference.realization)
    tables = [t for t in study.tables if (t.case, t.realization) == wanted and t.name in _ARMED]
    if record is None or len(tables) != len(_ARMED):
        raise EvidenceError(
            "the localization has no such trial",
            expected=f"a case in [0, {len(cases)}) and one of its completed processes",
            got=f"case {reference.case}, process {reference.realization}",
            where=reference.study,
        )
    return Loaded(
        reference=reference,
        record=study.records[record],
        tables=tuple(tables),
        tensors=tuple(f for f in study.tensors if (f.case, f.realization) == wanted),
    )


def _side(store: Store, study: StudyPredicate, number: int) -> tuple[Side, Plan]:
    """One side with its plan, from what the study names; which is what its trial has.

    Raises:
        EvidenceError: When it names anything else.
    """
    reference = TrialReference(**study.parameters["left" if number == 0 else "right"])
    loaded = _load(store, reference)
    named = (
        study.records[number : number + 1],
        {replace(t, case=reference.case) for t in study.tables if t.case == number},
        {replace(f, case=reference.case) for f in study.tensors if f.case == number},
    )
    if named != ((loaded.record,), set(loaded.tables), set(loaded.tensors)):
        raise EvidenceError(
            "a comparison names other evidence than its trial has", where=reference.study
        )
    record = load_record(loaded.record, store)
    plan = parse_plan(record.plan_bytes(), where=record.digest).plan
    workload = plan.workload
    if workload is None:
        raise EvidenceError("a plan without a workload has no trials", where=record.digest)
    rows: dict[str, list[Mapping[str, Any]]] = {
        table.name: [
            row
            for row in store.read_table_rows(table.written())
            if row["repetition"] == reference.repetition
        ]
        for table in study.tables
        if table.case == number and table.name in _ARMED
    }
    if rows.keys() != set(_ARMED) or not rows["boundaries"]:
        raise EvidenceError("a compared trial has no rows", got=str(reference.repetition))
    kinds = {row["digest"].partition(":")[0] for row in rows["boundaries"]}
    key = record.predicate.applicability_key
    unknown = {"applicability_key": f"unknown of side {number}"}
    side = Side(
        conditions={
            **(unknown if key is None else asdict(key)),
            "digest_kind": "+".join(sorted(kinds)),
        },
        prompt=tuple(int(token) for token in workload.prompt_token_ids),
        feeds_own_tokens=workload.decode_token_ids is None,
        boundaries=rows["boundaries"],
        steps=rows["armed_steps"],
        kept=_kept(store, study, number, reference.repetition),
    )
    return side, plan


def _kept(
    store: Store, study: StudyPredicate, number: int, repetition: int
) -> dict[tuple[str, int, str], Any]:
    found = {}
    for file in study.tensors:
        if file.case == number:
            data = store.read("tensors", file.digest)
            for place, tensor in read_kept(data, where=file.digest).items():
                parts = place.split("/", 3)
                if len(parts) != 4 or not parts[2].isdigit():
                    raise EvidenceError("a kept tensor has no place", got=place, where=file.digest)
                if parts[0] == str(repetition):
                    found[parts[1], int(parts[2]), parts[3]] = tensor
    return found
