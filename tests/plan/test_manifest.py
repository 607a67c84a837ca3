import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_sample import entries, manifest

from harness.canonical import sha256_digest
from harness.errors import InvalidInputError, PlanError
from harness.plan.manifest import (
    load_manifest,
    manifest_bytes,
    manifest_path,
    parse_manifest,
)
from harness.plan.records import ManifestReference


def reference(data: bytes) -> ManifestReference:
    return ManifestReference(
        digest=sha256_digest(data), num_tensors=2, source_bytes=76, expected_bytes=140
    )


def test_entries_are_written_canonically_and_read_back() -> None:
    assert manifest_bytes(reversed(entries())) == manifest()
    assert parse_manifest(manifest(), where="test") == tuple(entries())
    assert parse_manifest(b"", where="test") == ()


def test_digests_survive() -> None:
    digest = sha256_digest(b"tensor")
    row = replace(entries()[0], sha256=digest, digest_source="measured")
    assert parse_manifest(manifest_bytes([row]), where="test") == (row,)


def test_names_beyond_ascii_are_read_back() -> None:
    row = replace(entries()[0], key="bänk.\U0001f600")
    assert parse_manifest(manifest_bytes([row]), where="test") == (row,)


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(
        json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n" for row in rows
    )


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in manifest().splitlines()]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda row: row.update(extra=1), "fields"),
        (lambda row: row.pop("sha256"), "fields"),
        (lambda row: row.update(key=""), "key"),
        (lambda row: row.update(file=3), "file"),
        (lambda row: row.update(logical_state_id=None), "logical_state_id"),
        (lambda row: row.update(dtype="BF16"), "dtype"),
        (lambda row: row.update(dtype=["bfloat16"]), "dtype"),
        (lambda row: row.update(shape=[4, -8]), "shape"),
        (lambda row: row.update(shape=[4, 8.5]), "shape"),
        (lambda row: row.update(shape="48"), "shape"),
        (lambda row: row.update(shape=[True, 32]), "shape"),
        (lambda row: row.update(source_bytes=65), "size of dtype and shape"),
        (lambda row: row.update(expected_bytes=-1), "byte counts"),
        (lambda row: row.update(expected_bytes=1.5), "byte counts"),
        (lambda row: row.update(digest_source="guessed"), "digest_source"),
        (lambda row: row.update(digest_source="measured"), "null exactly"),
        (lambda row: row.update(sha256="sha256:" + "0" * 64), "null exactly"),
        (lambda row: row.update(sha256="0" * 64, digest_source="declared"), "SHA-256"),
        (
            lambda row: row.update(sha256="sha256:" + "0" * 64 + "\n", digest_source="declared"),
            "SHA-256",
        ),
        (
            lambda row: row.update(sha256="xxh3-128:" + "0" * 32, digest_source="declared"),
            "SHA-256",
        ),
    ],
)
def test_a_bad_row_is_named(change: Callable[[dict[str, Any]], object], says: str) -> None:
    good, bad = rows()
    bad.update(dtype="bfloat16", shape=[4, 8], source_bytes=64)
    change(bad)
    with pytest.raises(PlanError) as caught:
        parse_manifest(lines(good, bad), where="test")
    (finding,) = caught.value.findings
    assert str(finding).startswith("line 2: ")
    assert says in str(finding)


def test_every_bad_row_is_listed() -> None:
    first, second = rows()
    first["dtype"], second["dtype"] = "x", "y"
    with pytest.raises(PlanError) as caught:
        parse_manifest(lines(first, second), where="test")
    assert len(caught.value.findings) == 2


def test_order_and_uniqueness_are_required() -> None:
    first, second = rows()
    for order, says in (((second, first), "not sorted"), ((first, first), "duplicate key")):
        with pytest.raises(PlanError, match="line 2") as caught:
            parse_manifest(lines(*order), where="test")
        assert says in str(caught.value)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.removesuffix(b"\n"),
        lambda data: data + b"\n",
        lambda data: data.replace(b":", b": ", 1),
        lambda data: data.replace(b"\n", b",", 1),
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.replace(b'"shape":[3]', b'"shape":[3.0]'),
        lambda data: data.replace(b'"bank.b"', b'"bank.\\u0062"'),
        lambda data: b"[" + data + b"]",
        lambda data: data.replace(b'"shape":[3]', b'"shape":[3],"shape":[3]'),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: b"1\n",
    ],
)
def test_bytes_that_are_not_canonical_are_refused(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(InvalidInputError):
        parse_manifest(spoil(manifest()), where="test")


def test_a_manifest_is_loaded_by_its_digest(tmp_path: Path) -> None:
    wanted = reference(manifest())
    path = manifest_path(tmp_path, wanted)
    assert path == tmp_path / "manifests" / f"{wanted.digest.removeprefix('sha256:')}.jsonl"
    path.parent.mkdir()
    path.write_bytes(manifest())
    assert load_manifest(tmp_path, wanted) == tuple(entries())
    path.write_bytes(manifest().replace(b"128", b"129"))
    with pytest.raises(PlanError, match="do not match"):
        load_manifest(tmp_path, wanted)
    path.write_bytes(manifest().replace(b"\n", b"\r\n"))
    with pytest.raises(PlanError, match="autocrlf"):
        load_manifest(tmp_path, wanted)
    path.unlink()
    with pytest.raises(InvalidInputError, match="not a file"):
        load_manifest(tmp_path, wanted)
