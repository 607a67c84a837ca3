import hashlib
from pathlib import Path

import pytest

from harness.evidence.damage import describe_damage


@pytest.mark.parametrize("num_before", [0, (1 << 20) - 1, (1 << 20), (2 << 20) - 1])
def test_changed_line_ends_are_found_wherever_a_piece_ends(tmp_path: Path, num_before: int) -> None:
    original = b"x" * num_before + b"\n\rmiddle\n"
    path = tmp_path / "a.jsonl"
    path.write_bytes(original.replace(b"\n", b"\r\n"))
    digest = f"sha256:{hashlib.sha256(original).hexdigest()}"
    kind, message = describe_damage(path, digest, size_bytes=path.stat().st_size)
    assert kind == "crlf"
    assert "-text" in message
    path.write_bytes(original + b"\r")
    assert describe_damage(path, digest, size_bytes=1)[0] != "crlf"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.json", b'{"a": [1, 2', "truncated"),
        ("a.json", b'{"a": "text', "truncated"),
        ("a.json", b'{"a": 1} 2', "modified"),
        ("a.json", b'{"a": \xff', "modified"),
        ("a.json", b"[" * 100_000, "modified"),
        ("a.jsonl", b'{"a":1}\n{"a"', "truncated"),
        ("a.jsonl", b'{"a":2}\n', "modified"),
        ("a.parquet", b"PAR1 half", "truncated"),
        ("a.parquet", b"PAR1 all PAR1", "modified"),
    ],
)
def test_cut_off_files_are_told_from_changed_ones(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    absent = "sha256:" + "0" * 64
    assert describe_damage(path, absent, size_bytes=len(content))[0] == expected


def test_a_declared_size_decides(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 PAR1")
    absent = "sha256:" + "0" * 64
    assert describe_damage(path, absent, size_bytes=9, declared_bytes=10)[0] == "truncated"
    assert describe_damage(path, absent, size_bytes=9, declared_bytes=9)[0] == "modified"
