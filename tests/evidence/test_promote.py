from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from harness.canonical import canonical_bytes
from harness.errors import ContradictionError, EvidenceError
from harness.evidence.log.shard import read_log
from harness.evidence.promote import promote
from harness.evidence.record import LoadedVerdict, load_record
from harness.evidence.redact import Identity
from harness.evidence.store import Store
from harness.evidence.verify import verify_store

NOBODY = Identity(home="/nonexistent", user="", hosts=())


@pytest.fixture
def target(tmp_path: Path) -> Store:
    return Store(tmp_path / "promoted")


def contents(store: Store) -> dict[str, bytes]:
    return {
        str(path.relative_to(store.root)): path.read_bytes()
        for path in store.root.rglob("*")
        if path.is_file()
    }


def test_one_record_is_copied_with_all_it_names_and_nothing_else(
    store: Store, target: Store, sample: ModuleType
) -> None:
    record, other = sample.put_record(store), sample.put_record(store, salt="other")
    verdicts = {sample.put_verdict(store, record, failed=failed) for failed in (True, False)}
    sample.put_verdict(store, other)
    done = promote(load_record(record, store), target, identity=NOBODY)
    assert done.record_digest == record
    assert set(done.verdict_digests) == verdicts
    assert target.digests("records") == [record]
    assert set(target.digests("verdicts")) == verdicts
    assert verify_store(target.root) == []
    copied = {name: data for name, data in contents(target).items() if "log/" not in name}
    assert copied.items() <= contents(store).items()
    logged = {leaf.name for shard in read_log(target.root) for leaf in shard.leaves() if leaf}
    assert logged == copied.keys()


def test_promoting_again_changes_nothing(store: Store, target: Store, sample: ModuleType) -> None:
    record = sample.put_record(store)
    sample.put_verdict(store, record)
    first = promote(load_record(record, store), target, identity=NOBODY)
    before = contents(target)
    assert promote(load_record(record, store), target, identity=NOBODY) == first
    assert contents(target) == before
    # A later verdict follows.
    later = sample.put_verdict(store, record, failed=True)
    assert later in promote(load_record(record, store), target, identity=NOBODY).verdict_digests
    assert verify_store(target.root) == []


@pytest.mark.parametrize("kind", ["tables", "plans", "manifests", "verdicts"])
@pytest.mark.parametrize("how", ["missing", "modified"])
def test_a_damaged_source_is_refused_before_anything_is_written(
    store: Store, target: Store, sample: ModuleType, kind: str, how: str
) -> None:
    record = sample.put_record(store)
    sample.put_verdict(store, record)
    for path in (store.root / kind).iterdir():
        if how == "modified":
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        elif kind != "verdicts":
            path.unlink()
    if (kind, how) == ("verdicts", "missing"):
        promote(load_record(record, store), target, identity=NOBODY)
        return
    with pytest.raises(EvidenceError):
        promote(load_record(record, store), target, identity=NOBODY)
    assert not target.root.exists()


def test_private_text_is_refused_naming_every_place(
    store: Store, target: Store, sample: ModuleType
) -> None:
    identity = Identity(home="/srv/accounts/account7", user="account7", hosts=("machine7",))
    record = sample.put_record(
        store,
        message="cannot open /home/someone/model.safetensors",
        command=("harness", "run", "store=/srv/accounts/account7/runs"),
    )
    with pytest.raises(EvidenceError) as caught:
        promote(load_record(record, store), target, identity=identity)
    assert caught.value.got == "record.predicate.command[2]; table trials[0].message"
    assert "someone" not in str(caught.value)
    assert "account7" not in str(caught.value)
    assert not target.root.exists()


def put_with(
    store: Store, sample: ModuleType, plan: dict[str, object], manifest: bytes | None = None
) -> str:
    """A record of another plan document and manifest."""
    data = canonical_bytes(plan)
    base = sample.predicate(store, []).plan
    changes = {"plan": replace(base, file_digest=store.put_plan(data))}
    if manifest is not None:
        changes["manifest_digest"] = store.put_manifest(manifest)
    return sample.put_record(store, **changes)


def test_private_text_of_the_plan_and_the_manifest_is_refused(
    store: Store, target: Store, sample: ModuleType
) -> None:
    plan = {
        **sample.PLAN,
        "checkpoint": {"source": {"kind": "directory", "path": "/home/someone/models/tiny"}},
        "workload": {"prompt_text": "a letter to someone@example.org", "prompt_token_ids": [1]},
        "adapter_data": {"config": {"layers of /home/someone": 1}},
    }
    manifest = b'{"key":"a.weight"}\n{"file":"/home/someone/b.bin","key":"b.weight"}\n'
    record = put_with(store, sample, plan, manifest)
    with pytest.raises(EvidenceError) as caught:
        promote(load_record(record, store), target, identity=NOBODY)
    assert caught.value.got == (
        "manifest line 2.file; plan.adapter_data.config (the name of field 0); "
        "plan.checkpoint.source.path; plan.workload.prompt_text"
    )
    assert "someone" not in str(caught.value)
    assert not target.root.exists()


def test_a_manifest_that_cannot_be_parsed_is_searched_as_text(
    store: Store, target: Store, sample: ModuleType
) -> None:
    record = put_with(store, sample, sample.PLAN, b"not JSON: /home/someone/b.bin\n")
    with pytest.raises(EvidenceError) as caught:
        promote(load_record(record, store), target, identity=NOBODY)
    assert caught.value.got == "manifest line 1"


def test_a_plan_without_private_text_is_promoted(
    store: Store, target: Store, sample: ModuleType
) -> None:
    plan = {
        **sample.PLAN,
        "checkpoint": {"source": {"kind": "directory", "path": "/mnt/models/tiny"}},
        "workload": {"prompt_text": "Write a letter to the harbour master."},
    }
    promote(load_record(put_with(store, sample, plan), store), target, identity=NOBODY)
    assert len(target.digests("records")) == 1


def test_what_is_not_approved_is_not_written(
    store: Store, target: Store, sample: ModuleType
) -> None:
    record = load_record(sample.put_record(store), store)
    verdict = sample.put_verdict(store, record.digest)
    seen = []

    def refuse(verdicts: Sequence[LoadedVerdict]) -> None:
        seen.extend(verdict.digest for verdict in verdicts)
        raise ContradictionError("no")

    with pytest.raises(ContradictionError):
        promote(record, target, identity=NOBODY, approve=refuse)
    assert seen == [verdict]
    assert not target.root.exists()
    promote(record, target, identity=NOBODY, approve=lambda verdicts: None)
    assert target.digests("records") == [record.digest]
