import os
from pathlib import Path

import numpy as np
import pytest

from harness.checkpoint.reader import BoundedReader, ReadEntry, SourceAccessError
from harness.plan.records import Scope
from harness.realize.seal import watch
from harness.realize.sentinels import Sentinel, check
from harness.run.guards import OpenedFiles, plan_accesses, source_accesses


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text("{}")
    return path


def counts(sentinel: Sentinel) -> tuple[int, int]:
    (row,) = check([sentinel], "after_decode")
    return int(str(row["canary_count"])), int(str(row["count"]))


def test_opens_count_only_while_armed_and_under_any_name(file: Path) -> None:
    files = OpenedFiles([file])
    link = file.with_name("another")
    os.link(file, link)
    symlink = file.with_name("third")
    symlink.symlink_to(file)
    file.read_bytes()
    assert files.num_opens == 0
    with files.armed():
        file.read_bytes()
        os.close(os.open(link, os.O_RDONLY))
        symlink.open().close()
        np.fromfile(file, dtype=np.uint8)
        file.parent.joinpath("other").write_text("x")
    assert files.num_opens == 4
    file.read_bytes()
    assert files.num_opens == 4


def test_plan_accesses(file: Path) -> None:
    watched, seal = watch(Scope(proves=("a",), does_not_prove=()))
    files = OpenedFiles([file])
    sentinel = plan_accesses(seal, lambda: watched.proves, files)
    assert counts(sentinel) == (2, 0)
    seal.close()
    assert watched.proves
    with files.armed():
        file.read_bytes()
    assert counts(sentinel) == (2, 2)


def test_source_accesses(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "model.safetensors"
    save_file({"a": np.ones(4, dtype=np.float32)}, path)
    entry = ReadEntry(
        key="a", file=path.name, dtype="float32", shape=(4,), num_bytes=16, sha256=None
    )
    reader = BoundedReader(tmp_path, [entry])
    reader.seal()
    files = OpenedFiles([path])
    sentinel = source_accesses(reader, "a", lambda: memoryview(bytearray(16)), files)
    assert counts(sentinel) == (2, 0)
    with pytest.raises(SourceAccessError):
        reader.read_into("a", memoryview(bytearray(16)))
    assert counts(sentinel) == (2, 1)
    with files.armed():
        path.read_bytes()
    assert counts(sentinel) == (2, 2)
