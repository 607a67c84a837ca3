"""Signed records of a store, and every way in which a signature does not count."""

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.evidence.log.check import check_against
from harness.evidence.log.checkpoint import make_checkpoint
from harness.evidence.merge import merge
from harness.evidence.record import load_record
from harness.evidence.signing.envelope import Envelope, parse_envelope
from harness.evidence.signing.keys import AllowedKeys, sign
from harness.evidence.signing.records import put_signature, sign_record
from harness.evidence.store import Store
from harness.evidence.verify import verify_store


@pytest.fixture
def record(store: Store, sample: ModuleType) -> str:
    digest: str = sample.put_record(store)
    return digest


@pytest.fixture
def signed(store: Store, record: str, key: Any) -> Path:
    """The signature of the one record of a store."""
    return sign_record(load_record(record, store), key.private)


def found(store: Store, keys: AllowedKeys | None) -> list[tuple[str, str]]:
    problems = verify_store(store.root, keys=keys)
    return [(str(Path(p.path).relative_to(store.root)), p.kind) for p in problems]


def unsigned(record: str) -> tuple[str, str]:
    return (f"records/{record[7:]}.json", "unsigned")


def test_a_signature_lies_beside_the_record(
    store: Store, record: str, signed: Path, key: Any
) -> None:
    data = store.path("records", record).read_bytes()
    assert signed == store.root / "signatures" / f"{record[7:]}.{key.id}.json"
    envelope = parse_envelope(signed.read_bytes(), where="x")
    assert (envelope.payload, envelope.keyid) == (data, key.id)
    assert found(store, None) == []
    assert found(store, key.allowed()) == []


def test_signing_again_changes_nothing(store: Store, record: str, signed: Path, key: Any) -> None:
    before = signed.read_bytes(), signed.stat().st_ino
    assert sign_record(load_record(record, store), key.private) == signed
    assert (signed.read_bytes(), signed.stat().st_ino) == before


def test_every_record_must_be_signed(
    store: Store, record: str, signed: Path, key: Any, sample: ModuleType
) -> None:
    other = sample.put_record(store, salt="b", experiment="b")
    assert found(store, None) == []
    assert found(store, key.allowed()) == [unsigned(other)]


def test_a_stripped_signature_is_named(store: Store, record: str, signed: Path, key: Any) -> None:
    signed.unlink()
    assert found(store, key.allowed()) == [unsigned(record)]
    (problem,) = verify_store(store.root, keys=key.allowed())
    assert problem.message.endswith("it is signed by: none")


def test_the_wrong_key_is_named(
    store: Store, record: str, signed: Path, key: Any, stranger: Any
) -> None:
    assert found(store, stranger.allowed()) == [unsigned(record)]
    (problem,) = verify_store(store.root, keys=stranger.allowed())
    assert problem.message.endswith(f"it is signed by: {key.id}")
    # Besides an allowed one, a strange signature does no harm.
    sign_record(load_record(record, store), stranger.private)
    assert found(store, stranger.allowed()) == []
    assert found(store, key.allowed()) == []


def test_a_strangers_signature_under_our_key_id_is_forged(
    store: Store, record: str, key: Any, stranger: Any
) -> None:
    payload = store.path("records", record).read_bytes()
    envelope = Envelope(payload=payload, keyid=key.id, signature=b"")
    made = sign(envelope.signed_bytes(), stranger.private)
    path = put_signature(store, record, replace(envelope, signature=made.value))
    assert found(store, None) == []
    assert found(store, key.allowed()) == sorted(
        [unsigned(record), (f"signatures/{path.name}", "forged")]
    )


def test_a_signature_of_the_bare_payload_is_forged(store: Store, record: str, key: Any) -> None:
    payload = store.path("records", record).read_bytes()
    made = sign(payload, key.private)
    envelope = Envelope(payload=payload, keyid=made.keyid, signature=made.value)
    path = put_signature(store, record, envelope)
    assert (f"signatures/{path.name}", "forged") in found(store, key.allowed())


def test_a_swapped_payload_is_named(
    store: Store, record: str, signed: Path, key: Any, sample: ModuleType
) -> None:
    other = sample.put_record(store, salt="b", experiment="b")
    swapped = signed.with_name(f"{other[7:]}.{key.id}.json")
    signed.rename(swapped)
    name = f"signatures/{swapped.name}"
    assert found(store, None) == [(name, "broken_reference")]
    assert found(store, key.allowed()) == sorted(
        [unsigned(record), unsigned(other), (name, "broken_reference")]
    )


def test_a_payload_put_into_another_records_envelope_is_forged(
    store: Store, record: str, signed: Path, key: Any, sample: ModuleType
) -> None:
    other = sample.put_record(store, salt="b", experiment="b")
    envelope = parse_envelope(signed.read_bytes(), where="x")
    payload = store.path("records", other).read_bytes()
    path = put_signature(store, other, replace(envelope, payload=payload))
    assert (f"signatures/{path.name}", "forged") in found(store, key.allowed())


def test_a_record_changed_after_it_was_signed_is_named(
    store: Store, record: str, signed: Path, key: Any
) -> None:
    path = store.path("records", record)
    path.write_bytes(path.read_bytes().replace(b"tiny", b"TINY"))
    kinds = {name: kind for name, kind in found(store, key.allowed()) if kind != "extra"}
    assert kinds == {
        f"records/{path.name}": "modified",
        f"signatures/{signed.name}": "broken_reference",
    }


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda data: b"", "invalid"),
        (lambda data: data[:-10], "invalid"),
        (lambda data: data.replace(b'"sig"', b'"gis"'), "invalid"),
        (lambda data: data.replace(b"in-toto", b"in-tutu"), "invalid"),
        (lambda data: b'{"payload":"","payloadType":"x","signatures":[]}', "invalid"),
        (lambda data: data + b" " * 200_000, "unsafe"),
    ],
)
def test_a_malformed_envelope_is_named(
    store: Store, record: str, signed: Path, key: Any, change: Any, kind: str
) -> None:
    signed.write_bytes(change(signed.read_bytes()))
    name = f"signatures/{signed.name}"
    assert found(store, None) == [(name, kind)]
    assert found(store, key.allowed()) == sorted([(name, kind), unsigned(record)])


def test_a_key_inside_an_envelope_is_never_trusted(
    store: Store, record: str, signed: Path, stranger: Any
) -> None:
    document = json.loads(signed.read_bytes())
    document["signatures"][0]["cert"] = stranger.public.read_text()
    signed.write_text(json.dumps(document))
    assert (f"signatures/{signed.name}", "invalid") in found(store, stranger.allowed())


def test_a_key_id_that_differs_from_the_name_is_named(
    store: Store, record: str, signed: Path, key: Any, stranger: Any
) -> None:
    renamed = signed.with_name(f"{record[7:]}.{stranger.id}.json")
    signed.rename(renamed)
    assert found(store, None) == [(f"signatures/{renamed.name}", "renamed")]


def test_foreign_files_links_and_folders_among_the_signatures(
    store: Store, record: str, signed: Path, tmp_path: Path
) -> None:
    folder = signed.parent
    (folder / "notes.txt").write_bytes(b"x")
    (folder / "deep").mkdir()
    absent = folder / f"{'0' * 64}.{'1' * 64}.json"
    absent.write_bytes(signed.read_bytes())
    link = folder / f"{record[7:]}.{'2' * 64}.json"
    link.symlink_to(signed)
    assert found(store, None) == sorted(
        [
            ("signatures/notes.txt", "extra"),
            ("signatures/deep", "extra"),
            (f"signatures/{absent.name}", "broken_reference"),
            (f"signatures/{link.name}", "unsafe"),
        ]
    )
    folder.rename(tmp_path / "aside")
    folder.symlink_to(tmp_path / "aside")
    assert found(store, None) == [("signatures", "unsafe")]


def test_a_signature_is_logged_and_its_removal_found(
    store: Store, key: Any, sample: ModuleType
) -> None:
    store.start_log()
    record = load_record(sample.put_record(store), store)
    path = sign_record(record, key.private)
    sign_record(record, key.private)
    checkpoint = make_checkpoint(store.root)
    (head,) = checkpoint.shards
    assert head.statements == (f"records/{record.digest[7:]}.json", f"signatures/{path.name}")
    assert found(store, key.allowed()) == []
    path.unlink()
    assert (f"signatures/{path.name}", "missing") in found(store, None)
    problems = check_against(store.root, checkpoint)
    assert [(Path(p.path).name, p.kind) for p in problems] == [(path.name, "missing")]


def test_signatures_are_merged(store: Store, signed: Path, key: Any, tmp_path: Path) -> None:
    target = Store(tmp_path / "target")
    target.start_log()
    done = merge(store, target)
    assert f"signatures/{signed.name}" in done.files
    assert found(target, key.allowed()) == []
