import hashlib
import os
from pathlib import Path

import pytest

from harness.evidence import scan as module
from harness.evidence.scan import Entry, Problem, hash_all, scan

SIZES = (0, 1, 1000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 20)


def fill(folder: Path) -> dict[str, str]:
    found = {}
    for number, size in enumerate(SIZES):
        data = os.urandom(size)
        (folder / f"{number}").write_bytes(data)
        found[f"{number}"] = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return found


@pytest.mark.parametrize("batch_files", [1, 3, 512])
def test_every_file_is_hashed_once_whatever_its_size(
    batch_files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fill(tmp_path)
    monkeypatch.setattr(module, "_BATCH_FILES", batch_files)
    problems: list[Problem] = []
    found = hash_all(scan(tmp_path, problems, max_bytes=1 << 30), problems)
    assert [file.name for file in found] == sorted(expected)
    assert {file.name: file.digest for file in found} == expected
    assert [file.size_bytes for file in found] == list(SIZES)
    assert problems == []


def test_a_read_that_ends_early_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fill(tmp_path)
    real = os.readv

    def short(descriptor: int, buffers: list[bytearray]) -> int:
        return real(descriptor, [memoryview(buffers[0])[:10]])

    monkeypatch.setattr(os, "readv", short)
    found = hash_all(scan(tmp_path, [], max_bytes=1 << 30), [])
    assert {file.name: file.digest for file in found} == expected


def test_what_became_something_else_since_it_was_listed_is_named(tmp_path: Path) -> None:
    fill(tmp_path)
    entries = scan(tmp_path, [], max_bytes=1 << 30)
    (tmp_path / "1").unlink()
    (tmp_path / "2").unlink()
    (tmp_path / "2").symlink_to("/dev/zero")
    (tmp_path / "3").unlink()
    os.mkfifo(tmp_path / "3")
    problems: list[Problem] = []
    found = hash_all(entries, problems)
    assert {Path(each.path).name: each.kind for each in problems} == dict.fromkeys("123", "unsafe")
    assert len(found) == len(SIZES) - 3
    assert hash_all([Entry(tmp_path, "nothing", 3)], problems) == []
