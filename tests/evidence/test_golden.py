"""Evidence of format version 1, written once by the first version and never again."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.evidence.listing import list_records
from harness.evidence.record import load_record, load_verdict
from harness.evidence.statement import encode_statement, record_statement, verdict_statement
from harness.evidence.store import Store
from harness.evidence.verify import verify_store

GOLDEN_SHA256 = "e2e87c72aea4d9d6da7e70cd455223e48b35fdc28c61520e90d5d0de7db925ab"
"""Of the output of ``sha256sum`` over all files, sorted by path."""


@pytest.fixture
def golden(repo_root: Path) -> Store:
    return Store(repo_root / "tests" / "golden" / "1" / "evidence")


@pytest.fixture
def expected(golden: Store) -> dict[str, Any]:
    path = golden.root.with_name("evidence.expected.json")
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return document


def test_the_golden_files_are_the_ones_written_then(golden: Store) -> None:
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(golden.root)}\n"
        for path in sorted(golden.root.rglob("*"))
        if path.is_file()
    ]
    assert len(lines) == 9
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == GOLDEN_SHA256


def test_version_1_is_sound(golden: Store) -> None:
    assert verify_store(golden.root) == []


def test_version_1_is_read_with_the_same_meaning(golden: Store, expected: dict[str, Any]) -> None:
    record = load_record(expected["record_digest"], golden)
    verdict = load_verdict(expected["verdict_digest"], golden)
    rows = {
        table.name if table.realization is None else f"{table.name}/r{table.realization}": table
        for table in record.predicate.tables
    }
    assert {name: record.rows(t.name, t.realization) for name, t in rows.items()} | {
        "differences": verdict.differences()
    } == expected["rows"]
    frame = pd.read_parquet(golden.path("tables", rows["steps/r0"].digest))
    assert frame.to_dict("records") == expected["rows"]["steps/r0"]
    assert (verdict.predicate.status, verdict.predicate.record_digest) == ("failed", record.digest)
    assert [row.status for row in list_records(golden)] == ["failed"]


def test_version_1_is_written_as_it_was(golden: Store, expected: dict[str, Any]) -> None:
    record = load_record(expected["record_digest"], golden)
    verdict = load_verdict(expected["verdict_digest"], golden)
    for kind, digest, statement in (
        ("records", record.digest, record_statement(record.predicate)),
        ("verdicts", verdict.digest, verdict_statement(verdict.predicate)),
    ):
        assert (
            encode_statement(statement)
            == (golden.root / kind / f"{digest.removeprefix('sha256:')}.json").read_bytes()
        )
