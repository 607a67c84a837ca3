import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import EvidenceError
from harness.evidence.plans_folder import verify_plans

MANIFEST = b'{"key":"a"}\n{"key":"b"}\n'
MANIFEST_HEX = hashlib.sha256(MANIFEST).hexdigest()
MANIFEST_NAME = f"manifests/{MANIFEST_HEX}.jsonl"


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    """Two frozen plans, one of which names a manifest."""
    folder = tmp_path / "plans"
    (folder / "manifests").mkdir(parents=True)
    (folder / MANIFEST_NAME).write_bytes(MANIFEST)
    named = {"checkpoint": {"manifest": {"digest": f"sha256:{MANIFEST_HEX}"}}}
    for name, document in (("tiny.json", named), ("old.json", {"schema": "older"})):
        data = (json.dumps(document, indent=2) + "\n").encode()
        (folder / name).write_bytes(data)
        line = f"{hashlib.sha256(data).hexdigest()}  {name}\n"
        (folder / f"{name}.sha256").write_text(line)
    assert verify_plans(folder) == []
    return folder


def found(folder: Path) -> list[tuple[str, str]]:
    return [(str(Path(p.path).relative_to(folder)), p.kind) for p in verify_plans(folder)]


def to_crlf(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda f: (f / "tiny.json.sha256").unlink(), [("tiny.json.sha256", "missing")]),
        (lambda f: (f / "old.json").unlink(), [("old.json", "missing")]),
        (lambda f: to_crlf(f / "tiny.json"), [("tiny.json", "crlf")]),
        (lambda f: to_crlf(f / "tiny.json.sha256"), [("tiny.json.sha256", "crlf")]),
        (
            lambda f: to_crlf(f / MANIFEST_NAME),
            [(MANIFEST_NAME, "crlf"), ("tiny.json", "broken_reference")],
        ),
        (
            lambda f: (f / "old.json").write_text('{"a": "newer"}\n'),
            [("old.json", "modified")],
        ),
        (
            lambda f: (f / "old.json").write_bytes((f / "old.json").read_bytes()[:9]),
            [("old.json", "invalid"), ("old.json", "truncated")],
        ),
        (lambda f: (f / "old.json.sha256").write_text("x"), [("old.json.sha256", "invalid")]),
        (
            lambda f: (f / "old.json.sha256").write_bytes(
                (f / "old.json.sha256").read_bytes() + b"\n"
            ),
            [("old.json.sha256", "invalid")],
        ),
        (
            lambda f: (f / "old.json.sha256").write_bytes(b"0" * 9000),
            [("old.json.sha256", "invalid")],
        ),
        (
            lambda f: (f / "old.json.sha256").write_text(
                (f / "old.json.sha256").read_text().replace("old.json", "new.json")
            ),
            [("old.json.sha256", "broken_reference")],
        ),
        (
            lambda f: (f / MANIFEST_NAME).unlink(),
            [("tiny.json", "broken_reference")],
        ),
        (
            lambda f: (f / MANIFEST_NAME).rename(f / "manifests" / "m.jsonl"),
            [("manifests/m.jsonl", "extra"), ("tiny.json", "broken_reference")],
        ),
        (
            lambda f: (f / MANIFEST_NAME).write_bytes(MANIFEST[:-3]),
            [(MANIFEST_NAME, "truncated"), ("tiny.json", "broken_reference")],
        ),
        (lambda f: (f / "README.md").write_text("x"), [("README.md", "extra")]),
        (lambda f: (f / "deep").mkdir(), [("deep", "extra")]),
        (
            lambda f: (f / "manifests" / (hashlib.sha256(b"").hexdigest() + ".jsonl")).touch(),
            [(f"manifests/{hashlib.sha256(b'').hexdigest()}.jsonl", "extra")],
        ),
        (
            lambda f: (f / ".old.json.4194305.0a0b0c0d.tmp").touch(),
            [(".old.json.4194305.0a0b0c0d.tmp", "leftover")],
        ),
    ],
)
def test_every_problem_is_found(
    plans: Path, change: Callable[[Path], object], expected: list[tuple[str, str]]
) -> None:
    change(plans)
    assert found(plans) == sorted(expected)


def test_links_are_not_followed(plans: Path, tmp_path: Path) -> None:
    (plans / "old.json").rename(tmp_path / "old.json")
    (plans / "old.json").symlink_to(tmp_path / "old.json")
    assert ("old.json", "unsafe") in found(plans)


def test_a_folder_without_manifests(plans: Path) -> None:
    (plans / "tiny.json").unlink()
    (plans / "tiny.json.sha256").unlink()
    (plans / MANIFEST_NAME).unlink()
    (plans / "manifests").rmdir()
    assert found(plans) == []


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no folder of plans"):
        verify_plans(tmp_path / "nothing")
