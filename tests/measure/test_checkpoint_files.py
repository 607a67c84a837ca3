import mmap
import os
from pathlib import Path

import pytest

from harness.errors import InvalidInputError
from harness.measure import checkpoint_files, proc
from harness.measure.checkpoint_files import CheckpointFiles


def own(files: CheckpointFiles) -> tuple[tuple[str, ...], tuple[str, ...]]:
    pid = os.getpid()
    return (
        files.among_descriptors(proc.read_descriptors(pid)),
        files.among_mappings(proc.read_maps(pid)),
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    (folder / "part").mkdir(parents=True)
    (folder / "a.safetensors").write_bytes(b"a" * 8192)
    (folder / "part" / "b.safetensors").write_bytes(b"b" * 8192)
    (tmp_path / "checkpoint-other").write_bytes(b"c" * 8192)
    return folder


def test_open_and_mapped_files_are_named_below_the_root(root: Path) -> None:
    files = CheckpointFiles(root)
    assert own(files) == ((), ())
    with (root / "a.safetensors").open("rb") as first, (root / "a.safetensors").open("rb"):
        assert own(files) == (("a.safetensors", "a.safetensors"), ())
        mapping = mmap.mmap(first.fileno(), 0, prot=mmap.PROT_READ)
    # A mapping holds a descriptor of its own.
    with (root / "part" / "b.safetensors").open("rb"):
        assert own(files)[0] == ("a.safetensors", "part/b.safetensors")
        assert own(files)[1] == ("a.safetensors",)
    mapping.close()
    assert own(files) == ((), ())


def test_file_beside_the_root_with_its_name_as_prefix_is_not_of_it(root: Path) -> None:
    files = CheckpointFiles(root)
    with root.with_name("checkpoint-other").open("rb"):
        assert own(files) == ((), ())


def test_file_that_came_later_was_deleted_or_replaced(root: Path) -> None:
    files = CheckpointFiles(root)
    with (root / "new").open("wb"), (root / "a.safetensors").open("rb"):
        (root / "a.safetensors").unlink()
        assert own(files)[0] == ("a.safetensors", "new")
        (root / "a.safetensors").write_bytes(b"z")
        with (root / "a.safetensors").open("rb"):
            assert own(files)[0] == ("a.safetensors", "a.safetensors", "new")


def test_link_to_or_from_elsewhere_is_found(root: Path, tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    blob.write_bytes(b"d" * 8192)
    (root / "linked.safetensors").symlink_to(blob)
    (root / "dangling").symlink_to(tmp_path / "nothing")
    os.link(root / "a.safetensors", tmp_path / "hard")
    (tmp_path / "way").symlink_to(root)
    files = CheckpointFiles(tmp_path / "way")
    with blob.open("rb") as first, (tmp_path / "hard").open("rb") as second:
        assert own(files)[0] == ("a.safetensors", "linked.safetensors")
        with mmap.mmap(second.fileno(), 0, prot=mmap.PROT_READ) as mapping:
            # Where the kernel's mapping shows another device than stat, only the path is known.
            assert own(files)[1] in (("a.safetensors",), ())
            assert len(mapping) == 8192
        with mmap.mmap(first.fileno(), 0, prot=mmap.PROT_READ):
            assert own(files)[1] == ("linked.safetensors",)


def test_one_file_as_root(root: Path) -> None:
    files = CheckpointFiles(root / "a.safetensors")
    with (root / "a.safetensors").open("rb"), (root / "part" / "b.safetensors").open("rb"):
        assert own(files)[0] == ("a.safetensors",)


def test_missing_root_and_too_many_files(root: Path, monkeypatch) -> None:
    with pytest.raises(InvalidInputError, match="no checkpoint there"):
        CheckpointFiles(root / "missing")
    monkeypatch.setattr(checkpoint_files, "MAX_CHECKPOINT_FILES", 1)
    with pytest.raises(InvalidInputError, match="too many files"):
        CheckpointFiles(root)
