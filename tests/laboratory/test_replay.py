"""Replays of a committed record, and the states that follow; no process is started."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_runs import altered

from harness.cli import main
from harness.errors import EvidenceError, InvalidInputError
from harness.evidence.record import LoadedRecord, load_record
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate, study_predicate, study_statement
from harness.laboratory.recheck import recheck, recheck_studies
from harness.laboratory.record_states import history, set_state, state_of
from harness.laboratory.replay import replay, write_plan
from harness.laboratory.states import (
    MAY_SET,
    PERSON,
    REPLAY,
    STATES,
    current,
    require_allowed,
)
from harness.measure.environment import DeviceRequest
from harness.plan.load import load_plan
from harness.run.progress import Progress
from harness.run.request import RunRequest
from harness.run.supervisor import Completed, check

Rows = list[dict[str, Any]]
LATER = "2027-01-01T00:00:00Z"


@pytest.fixture
def record(evidence: Store) -> LoadedRecord:
    (digest,) = evidence.digests("records")
    return load_record(digest, evidence)


def unchanged(rows: Rows) -> None:
    del rows


def replayed(record: LoadedRecord, got: str) -> tuple[str, StudyPredicate]:
    """A replay whose run ends as an existing record."""
    seen: list[RunRequest] = []

    def run(request: RunRequest, progress: Progress) -> Completed:
        del progress
        seen.append(request)
        # The plan that it is given is one that a supervisor takes.
        check(request)
        return cast(Completed, SimpleNamespace(record=got, verdict={"status": "passed"}))

    base = RunRequest(
        experiment="none",
        plan_path=Path("none"),
        plan_digest=None,
        store=Path("none"),
        cache=Path("none"),
        device=DeviceRequest(kind="cpu"),
    )
    with Progress() as progress:
        found = replay(record, base, progress, run=run)
    (request,) = seen
    assert request.plan_digest == record.predicate.plan.digest
    assert request.store == record.store.root
    return found


def test_a_record_that_repeats_itself_is_reproduced(record: LoadedRecord) -> None:
    _, study = replayed(record, altered(record, "steps", unchanged, started_at=LATER))
    counts = study.findings["counts"]
    assert counts["not_reproduced"] == counts["inapplicable"] == 0
    num_steps = sum(len(rows) for rows in record.by_realization("steps").values())
    # Plane, logits and token of each step, and every other digest.
    assert counts["reproduced"] > 3 * num_steps
    assert study.findings["state"] == "valid"
    assert recheck_studies(record.store) == []


@pytest.mark.parametrize(
    ("table", "column"),
    [("steps", "plane_digest"), ("states", "digest"), ("tensors", "digest"), ("fetches", "digest")],
)
def test_one_other_digest_is_found_and_named(record: LoadedRecord, table: str, column: str) -> None:
    def change(rows: Rows) -> None:
        rows[3][column] = "sha256:" + "0" * 64

    _, study = replayed(record, altered(record, table, change))
    assert study.findings["counts"]["not_reproduced"] == 1
    first = study.findings["first_not_reproduced"]
    assert (first["table"], first["realization"], first["column"]) == (table, 1, column)
    assert study.findings["state"] == "degraded"
    assert recheck_studies(record.store) == []


def test_another_token_and_a_missing_row_are_found(record: LoadedRecord) -> None:
    def token(rows: Rows) -> None:
        rows[-1]["token"] += 1

    _, study = replayed(record, altered(record, "steps", token))
    assert study.findings["first_not_reproduced"]["column"] == "token"

    def shorter(rows: Rows) -> None:
        rows.pop()

    _, study = replayed(record, altered(record, "steps", shorter))
    assert study.findings["counts"]["not_reproduced"] == 3


def test_other_code_makes_a_record_stale(record: LoadedRecord) -> None:
    source = replace(record.predicate.source, package_digest="sha256:" + "1" * 64)

    def change(rows: Rows) -> None:
        rows[0]["plane_digest"] = "sha256:" + "0" * 64

    _, study = replayed(record, altered(record, "steps", change, source=source))
    assert study.findings["state"] == "stale"
    _, study = replayed(record, altered(record, "steps", unchanged, source=source))
    assert study.findings["state"] == "valid"


def test_under_another_key_numbers_say_nothing_and_stored_bytes_do(record: LoadedRecord) -> None:
    key = record.predicate.applicability_key
    assert key is not None
    other = replace(key, num_threads=key.num_threads + 1, instruction_set="another")

    def change(rows: Rows) -> None:
        rows[0]["plane_digest"] = "sha256:" + "0" * 64

    got = altered(record, "steps", change, applicability_key=other)
    _, study = replayed(record, got)
    assert study.findings["inapplicable_fields"] == ["instruction_set", "num_threads"]
    num_fetches = sum(len(rows) for rows in record.by_realization("fetches").values())
    assert study.findings["counts"]["reproduced"] == num_fetches
    assert study.findings["counts"]["not_reproduced"] == 0
    assert study.findings["state"] == "inapplicable"

    def read(rows: Rows) -> None:
        rows[0]["digest"] = "sha256:" + "0" * 64

    got = altered(record, "fetches", read, applicability_key=other)
    assert replayed(record, got)[1].findings["state"] == "degraded"


def test_a_replay_that_was_killed_shows_nothing(record: LoadedRecord) -> None:
    def killed(rows: Rows) -> None:
        rows[1] |= {"outcome": "killed", "signal": "SIGKILL", "exit_code": None}

    got = altered(record, "trials", killed, realization=None)
    _, study = replayed(record, got)
    assert (study.findings["is_whole"], study.findings["state"]) == (False, None)


def test_a_replay_that_says_otherwise_is_found(record: LoadedRecord) -> None:
    def change(rows: Rows) -> None:
        rows[0]["plane_digest"] = "sha256:" + "0" * 64

    _, study = replayed(record, altered(record, "steps", change))
    lie = replace(study, findings={**study.findings, "state": "valid"})
    record.store.put_study(study_statement(lie))
    (problem,) = recheck_studies(record.store)
    assert "says state is 'valid'" in problem.message


def test_a_replay_that_lies_about_what_was_done_is_found(record: LoadedRecord) -> None:
    store = record.store
    _, study = replayed(record, altered(record, "steps", unchanged, started_at=LATER))
    assert recheck(store, study) == []
    lies = {
        # Of a record with itself, nothing was run again.
        "records": replace(study, records=(record.digest, record.digest)),
        "one record": replace(study, records=study.records[:1]),
        "experiment": replace(study, experiment="quickstart"),
        "reproduced": replace(study, findings={**study.findings, "is_whole": False}),
        "no table": replace(study, tables=()),
        "no audit": replace(study, parameters={}),
    }
    assert [name for name, lie in lies.items() if not recheck(store, lie)] == []


def test_the_plan_of_a_record_can_be_written_out(record: LoadedRecord, tmp_path: Path) -> None:
    path = write_plan(record, tmp_path / "out")
    assert load_plan(path).plan.digest == record.predicate.plan.digest


# States ----------------------------------------------------------------------------------------


def test_who_may_set_which() -> None:
    running = {"valid", "stale", "inapplicable", "degraded"}
    allowed = {
        (actor, before, after)
        for actor in (REPLAY, PERSON, "auditor")
        for before in (*STATES, "not_audited")
        for after in STATES
        if after in MAY_SET[actor].get(before, ())
    }
    assert allowed == {
        *((REPLAY, before, after) for before in running for after in running),
        *((PERSON, before, after) for before in running for after in ("suspended", "invalid")),
        (PERSON, "suspended", "valid"),
        (PERSON, "suspended", "invalid"),
    }
    with pytest.raises(InvalidInputError, match="replay may not set"):
        require_allowed(REPLAY, "suspended", "valid")


@pytest.mark.parametrize(
    ("verdict", "steps", "expected"),
    [
        ("passed", [], "valid"),
        ("failed", [], "invalid"),
        ("not_evaluated", [], "not_audited"),
        (None, [], "not_audited"),
        ("passed", [(REPLAY, "degraded"), (REPLAY, "valid")], "valid"),
        ("passed", [(PERSON, "suspended")], "suspended"),
        ("passed", [(PERSON, "suspended"), (PERSON, "valid"), (REPLAY, "stale")], "stale"),
        ("passed", [(PERSON, "invalid")], "invalid"),
        # A verdict of today takes the ground away from what was set before.
        ("failed", [(REPLAY, "degraded"), (REPLAY, "valid")], "invalid"),
    ],
)
def test_the_state_after_a_history(
    verdict: str | None, steps: list[tuple[str, str]], expected: str
) -> None:
    assert current(verdict, steps) == expected


def test_an_invalid_record_stays_invalid() -> None:
    with pytest.raises(InvalidInputError, match="may not set"):
        current("passed", [(PERSON, "invalid"), (PERSON, "suspended")])


def test_states_are_a_chain_that_a_store_keeps(record: LoadedRecord) -> None:
    assert (state_of(record), history(record)) == ("valid", [])
    set_state(record, "suspended", actor=PERSON, reason="the fan was loud")
    set_state(record, "valid", actor=PERSON, reason="it was the neighbour's")
    assert [entry.state for entry in history(record)] == ["suspended", "valid"]
    assert state_of(record) == "valid"
    assert recheck_studies(record.store) == []
    with pytest.raises(InvalidInputError, match="needs a reason"):
        set_state(record, "suspended", actor=PERSON, reason=" ")


def test_two_states_after_the_same_one_are_no_chain(record: LoadedRecord) -> None:
    digest = set_state(record, "suspended", actor=PERSON, reason="doubt")
    told = study_predicate(record.store.read_study(digest))
    other = replace(told, findings={"state": "invalid"})
    record.store.put_study(study_statement(other))
    with pytest.raises(EvidenceError, match="not one chain"):
        state_of(record)
    assert len(recheck_studies(record.store)) == 2


def test_a_state_by_replay_needs_a_replay_that_says_so(record: LoadedRecord) -> None:
    digest, study = replayed(record, altered(record, "steps", unchanged, started_at=LATER))
    assert study.findings["state"] == "valid"
    set_state(record, "stale", actor=REPLAY, reason="replay", evidence=digest)
    (problem,) = recheck_studies(record.store)
    assert "is stale, its replay says valid" in problem.message


def test_the_command_sets_and_shows(
    record: LoadedRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    place = [record.digest, "--store", str(record.store.root)]
    assert main(["state", *place]) == 0
    assert main(["state", *place, "--set", "suspended", "--reason", "a doubt"]) == 1
    assert "person: a doubt" in capsys.readouterr().out
    assert main(["state", *place, "--set", "invalid", "--reason", "worse"]) == 1
    assert main(["state", *place, "--set", "valid", "--reason", "better"]) == 2
