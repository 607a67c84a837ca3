"""States of a record as a store keeps them: one study each, every one naming the one before.

Knows stores and studies; which state may follow which is :mod:`harness.laboratory.states`'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import EvidenceError, HarnessError, InvalidInputError
from harness.evidence.record import LoadedRecord, load_record, verdicts_of
from harness.evidence.redact import redact_text
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate, study_predicate
from harness.laboratory.states import PERSON, REPLAY, current, require_allowed
from harness.laboratory.writing import draft, finish
from harness.measure.clock import utc_timestamp

KIND = "state"
MAX_REASON_CHARS = 2000


@dataclass(frozen=True, kw_only=True)
class StateEntry:
    """One state that was set."""

    digest: str
    """Of its study."""
    state: str
    actor: str
    reason: str
    evidence: str | None
    """Digest of the study that it follows from; ``None`` when a person decided."""
    previous: str | None


def history(record: LoadedRecord) -> list[StateEntry]:
    """States that were set of a record, oldest first.

    Raises:
        EvidenceError: When they are no one chain: two follow the same one, or one is missing.
    """
    entries = [
        _entry(digest, study)
        for digest, study in _states(record.store)
        if study.records == (record.digest,)
    ]
    following = {entry.previous: entry for entry in entries}
    chain: list[StateEntry] = []
    while (after := following.get(chain[-1].digest if chain else None)) is not None:
        chain.append(after)
    if len(chain) != len(entries):
        raise EvidenceError(
            "the states of a record are not one chain",
            expected=f"{len(entries)} states, each after the one before",
            got=f"{len(chain)} in a row",
            where=str(record.store.path("records", record.digest)),
        )
    return chain


def state_of(record: LoadedRecord) -> str:
    """The state of a record now.

    Raises:
        HarnessError: When its history is broken.
    """
    return current(newest_verdict(record), [(e.actor, e.state) for e in history(record)])


def newest_verdict(record: LoadedRecord) -> str | None:
    """Status of the newest verdict, or ``None``."""
    verdicts = verdicts_of(record.store, record.digest)
    return verdicts[-1].predicate.status if verdicts else None


def set_state(
    record: LoadedRecord,
    state: str,
    *,
    actor: str,
    reason: str,
    evidence: str | None = None,
    command: Sequence[str] = (),
) -> str:
    """Set the state of a record; returns the digest of the study that says so.

    Raises:
        InvalidInputError: When this actor may not set it now, or there is no reason.
    """
    if not reason.strip() or len(reason) > MAX_REASON_CHARS:
        raise InvalidInputError(
            "a state needs a reason", expected=f"1 to {MAX_REASON_CHARS} characters"
        )
    chain = history(record)
    require_allowed(actor, state_of(record), state)
    study = draft(
        kind=KIND,
        experiment=record.predicate.experiment,
        parameters={
            "actor": actor,
            "reason": redact_text(reason),
            "evidence": evidence,
            "previous": chain[-1].digest if chain else None,
        },
        records=(record.digest,),
        command=command,
        started_at=utc_timestamp(),
    )
    return finish(record.store, study, {"state": state})[0]


def recheck_state(store: Store, study: StudyPredicate) -> list[str]:
    """What is wrong with one state that was set: its chain, its actor, or what it follows from."""
    if len(study.records) != 1:
        return [f"is about {len(study.records)} records, expected one"]
    record = load_record(study.records[0], store)
    entry = _entry("", study)
    problems = []
    if study.experiment != record.predicate.experiment:
        problems.append(f"is of {study.experiment!r}, its record of another experiment")
    try:
        state_of(record)
    except HarnessError as error:
        problems.append(str(error).splitlines()[0])
    if entry.actor not in (PERSON, REPLAY):
        problems.append(f"was set by {entry.actor!r}, expected {PERSON} or {REPLAY}")
    if entry.actor == REPLAY:
        problems += _unsupported(store, entry, record)
    return problems


def _unsupported(store: Store, entry: StateEntry, record: LoadedRecord) -> list[str]:
    if entry.evidence is None or not store.has("studies", entry.evidence):
        return ["follows from no replay of this store"]
    replay = study_predicate(store.read_study(entry.evidence))
    if replay.kind != "replay" or replay.records[:1] != (record.digest,):
        return ["follows from something that is no replay of its record"]
    said = replay.findings.get("state")
    return [] if said == entry.state else [f"is {entry.state}, its replay says {said}"]


def _states(store: Store) -> list[tuple[str, StudyPredicate]]:
    found = []
    for digest in store.digests("studies"):
        study = study_predicate(store.read_study(digest))
        if study.kind == KIND:
            found.append((digest, study))
    return found


def _entry(digest: str, study: StudyPredicate) -> StateEntry:
    told: Any = study.parameters
    return StateEntry(
        digest=digest,
        state=str(study.findings.get("state")),
        actor=str(told.get("actor")),
        reason=str(told.get("reason")),
        evidence=told.get("evidence"),
        previous=told.get("previous"),
    )
