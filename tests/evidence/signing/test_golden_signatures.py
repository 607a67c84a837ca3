"""Signatures of format version 1 on the golden record, made by OpenSSL with published keys."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.evidence.signing.keys import allowed_keys
from harness.evidence.store import Store
from harness.evidence.verify import verify_store

GOLDEN_SHA256 = "0b5b7cee96aaf176de117563a41d340ed40bd7a40e61a57064a39e912258ac13"
"""Of the output of ``sha256sum`` over all files, sorted by path."""
FOLDER = Path(__file__).parents[2] / "golden" / "1"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "signatures.expected.json").read_text("utf-8"))
RECORD, ALLOWED, STRANGER = (EXPECTED[name] for name in ("record", "allowed", "stranger"))


@pytest.fixture(autouse=True)
def _needs_keys(key: Any) -> None:
    """Skips where no key can be used."""


@pytest.fixture
def golden(tmp_store: Path) -> Store:
    """The golden evidence without a signature."""
    shutil.copytree(FOLDER / "evidence", tmp_store, dirs_exist_ok=True)
    (tmp_store / "signatures").mkdir()
    return Store(tmp_store)


def kinds(store: Store, key: str) -> list[tuple[str, str]]:
    keys = allowed_keys(FOLDER / "signatures" / "keys" / f"{key}.pem")
    return [(Path(p.path).name, p.kind) for p in verify_store(store.root, keys=keys)]


def add(store: Store, path: Path, key_id: str) -> str:
    name = f"{RECORD}.{key_id}.json"
    shutil.copy(path, store.root / "signatures" / name)
    return name


def test_the_golden_files_are_the_ones_written_then() -> None:
    root = FOLDER / "signatures"
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(root).as_posix()}\n"
        for path in sorted(root.rglob("*"))
        if path.is_file()
    ]
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == GOLDEN_SHA256


def test_version_1_is_valid_for_the_key_that_made_it(golden: Store) -> None:
    unsigned = [(f"{RECORD}.json", "unsigned")]
    assert kinds(golden, "allowed") == unsigned
    add(golden, FOLDER / "signatures" / f"{RECORD}.{ALLOWED}.json", ALLOWED)
    assert kinds(golden, "allowed") == []
    assert kinds(golden, "stranger") == unsigned
    add(golden, FOLDER / "signatures" / f"{RECORD}.{STRANGER}.json", STRANGER)
    assert kinds(golden, "allowed") == kinds(golden, "stranger") == []


@pytest.mark.parametrize("name", EXPECTED["invalid"])
def test_what_is_invalid_is_refused_for_its_reason(golden: Store, name: str) -> None:
    placed = add(golden, FOLDER / "signatures" / "invalid" / name, ALLOWED)
    assert sorted(kinds(golden, "allowed")) == sorted(
        [(placed, EXPECTED["invalid"][name]), (f"{RECORD}.json", "unsigned")]
    )
    # A valid one of somebody else's makes the record signed, and this one no better.
    add(golden, FOLDER / "signatures" / f"{RECORD}.{STRANGER}.json", STRANGER)
    found = kinds(golden, "stranger")
    assert found == ([] if EXPECTED["invalid"][name] == "forged" else [(placed, found[0][1])])
