"""Studies that become public: with all that they rest on, and nothing that they contradict."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from honest_studies import localized

from harness.cli import main
from harness.errors import EvidenceError
from harness.evidence.promote_study import lineage, promote_studies
from harness.evidence.record import LoadedRecord, load_record
from harness.evidence.redact import Identity
from harness.evidence.store import Store
from harness.evidence.studies import study_predicate, study_statement
from harness.evidence.verify import verify_store
from harness.laboratory.campaign import freeze_campaign, open_holdout, with_openings
from harness.laboratory.compare import TrialReference, compare
from harness.laboratory.corpora import Holdout, Manifest
from harness.laboratory.recheck import recheck_studies
from harness.laboratory.record_states import set_state, state_of
from harness.laboratory.states import PERSON

NOBODY = Identity(home="/nonexistent", user="", hosts=())


@pytest.fixture
def record(evidence: Store) -> LoadedRecord:
    (digest,) = evidence.digests("records")
    return load_record(digest, evidence)


@pytest.fixture
def target(tmp_path: Path) -> Store:
    return Store(tmp_path / "target")


def promoted(source: Store, digest: str, target: Store) -> set[str]:
    """Promote one study; what the target holds is sound and is what the studies say."""
    done = promote_studies(source, lineage(source, digest), target, identity=NOBODY)
    assert verify_store(target.root) == []
    assert recheck_studies(target) == []
    return set(done.study_digests)


def test_a_comparison_takes_its_localization_along(record: LoadedRecord, target: Store) -> None:
    store, study = record.store, localized(record)
    pair = [TrialReference(study=study, realization=n) for n in (0, 1)]
    compared, _ = compare(store, *pair)
    assert promoted(store, compared, target) == {study, compared}
    assert target.digests("records") == [record.digest]
    assert target.digests("verdicts") == store.digests("verdicts")
    before = sorted(path.name for path in target.root.rglob("*"))
    promoted(store, compared, target)
    assert sorted(path.name for path in target.root.rglob("*")) == before


def test_a_state_takes_those_before_it_along(record: LoadedRecord, target: Store) -> None:
    first = set_state(record, "suspended", actor=PERSON, reason="a doubt")
    second = set_state(record, "valid", actor=PERSON, reason="it was unfounded")
    assert lineage(record.store, second) == [first, second]
    assert promoted(record.store, second, target) == {first, second}


def test_a_record_takes_its_states_along(record: LoadedRecord, target: Store) -> None:
    set_state(record, "suspended", actor=PERSON, reason="a doubt")
    place = ["--store", str(record.store.root), "--to", str(target.root)]
    assert main(["evidence", "promote", record.digest, *place]) == 0
    assert state_of(load_record(record.digest, target)) == "suspended"


def test_a_campaign_s_run_takes_campaign_and_opening_along(evidence: Store, target: Store) -> None:
    manifest = Manifest(
        name="one",
        development=((1, 2),),
        processes=1,
        repetitions=2,
        design={"share": 1.0, "rate": 1.0, "confidence": 0.9},
        limits=(),
    )
    holdout = Holdout(cases=((3, 4),), digest="sha256:" + "0" * 64)
    campaign, _ = freeze_campaign(evidence, manifest, holdout, "one")
    opened, _ = open_holdout(evidence, campaign, holdout)
    assert lineage(evidence, opened) == [campaign, opened]
    assert with_openings(evidence, lineage(evidence, campaign)) == [campaign, opened]
    assert promoted(evidence, opened, target) == {campaign, opened}


def test_the_command_promotes_a_study_and_refuses_one_that_lies(
    record: LoadedRecord, target: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store, study = record.store, localized(record)
    place = ["--store", str(store.root), "--to", str(target.root)]
    told = study_predicate(store.read_study(study))
    lie = store.put_study(study_statement(replace(told, findings={"status": "stable"})))
    assert main(["evidence", "promote", lie, *place]) == 1
    assert "contradicts what it rests on" in capsys.readouterr().err
    assert not target.root.exists()
    assert main(["evidence", "promote", study[7:30], *place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["study_digests"] == [study]
    assert main(["evidence", "promote", "0" * 12, *place]) == 2
    assert target.digests("studies") == [study]


def test_private_text_of_a_study_is_refused(record: LoadedRecord, target: Store) -> None:
    told = study_predicate(record.store.read_study(localized(record)))
    private = {
        "command": ("harness", "localize", "store=/home/someone/runs"),
        "parameters": {"note": "token hf_" + "a" * 34},
    }
    digest = record.store.put_study(study_statement(replace(told, **private)))
    with pytest.raises(EvidenceError, match="must not become public") as caught:
        promote_studies(record.store, [digest], target, identity=NOBODY)
    assert "study.predicate.command[2]" in str(caught.value)
    assert "study.predicate.parameters.note" in str(caught.value)
    assert not target.root.exists()


def test_a_damaged_table_of_a_study_is_refused(record: LoadedRecord, target: Store) -> None:
    store, study = record.store, localized(record)
    (table,) = [t for t in study_predicate(store.read_study(study)).tables if t.name == "matrix"]
    path = store.path("tables", table.digest)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(EvidenceError, match="changed"):
        promote_studies(store, [study], target, identity=NOBODY)
    assert not target.root.exists()
