"""Unsynced steps lost, kept in part, or kept in another order than they were taken in."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from harness.evidence.log.shard import Leaf, read_log
from harness.evidence.log.writer import ShardWriter, start_log
from harness.evidence.store import Store

Helper = Callable[[str], ModuleType]
Promise = Callable[[str], None]
Act = Callable[[Path, Promise], None]
Check = Callable[[Path, set[str], int], None]


def survey(helper: Helper, folder: Path, act: Act, check: Check) -> int:
    """Act on a new store, and check every state that a loss of power may leave behind.

    Args:
        helper: Imports the fault layer.
        folder: Where the states are laid out.
        act: What is done to ``root``; it promises each name that was said to be kept.
        check: Given the store's folder as it was found, what was promised, and a running number.

    Returns:
        The number of distinct states.
    """
    faults, power = helper("fault_layer"), helper("power_loss")
    disk = power.Disk(folder / "disk")
    disk.root.mkdir()
    disk.note()
    with faults.layer(disk):
        act(disk.root / "runs" / "store", disk.promise)
    found: dict[object, set[str]] = {}
    for moment in disk.moments:
        for state in moment.states():
            found.setdefault(tuple(sorted(state.items())), set()).update(moment.promises)
    for number, (state, promises) in enumerate(found.items()):
        power.write_state(dict(state), folder / str(number))  # type: ignore[call-overload]
        check(folder / str(number) / "runs" / "store", promises, number)
        shutil.rmtree(folder / str(number))
    return len(found)


def test_a_written_file_outlives_a_loss_of_power(
    fast_folder: Path, helper: Helper, sample: ModuleType
) -> None:
    operations = helper("fault_operations")
    kinds = set()

    def act(root: Path, promise: Promise) -> None:
        digest = Store(root).put_manifest(sample.MANIFEST)
        promise(f"manifests/{digest[7:]}.jsonl")

    def check(root: Path, promised: set[str], number: int) -> None:
        assert all((root / name).is_file() for name in promised)
        kinds.update(operations.check(root, {}) if root.is_dir() else ())
        act(root, lambda name: None)
        assert operations.check(root, {}) <= {"extra"}

    # Temporary files belong to this process, which still runs.
    assert survey(helper, fast_folder, act, check) >= 10
    assert kinds == {"extra"}


def test_appended_leaves_outlive_a_loss_of_power(fast_folder: Path, helper: Helper) -> None:
    leaves = [
        Leaf(name=f"plans/{number:064x}.json", size_bytes=1, digest=f"sha256:{number:064x}")
        for number in range(5)
    ]
    lengths = set()

    def act(root: Path, promise: Promise) -> None:
        start_log(root)
        writer = ShardWriter()
        for first, last in ((0, 1), (1, 3), (3, 5)):
            writer.append(root, leaves[first:last])
            promise(str(last))

    def check(root: Path, promised: set[str], number: int) -> None:
        shards = list(read_log(root))
        num_kept = max((int(name) for name in promised), default=0)
        assert len(shards) <= 1
        lines = [line for shard in shards for line in shard.lines if line.strip(b"\0")]
        assert lines[:num_kept] == [leaf.encode() for leaf in leaves[:num_kept]]
        assert lines == [leaf.encode() for leaf in leaves[: len(lines)]]
        lengths.add(len(lines))

    assert survey(helper, fast_folder, act, check) >= 14
    assert lengths == {0, 1, 2, 3, 4, 5}


@pytest.mark.slow
@pytest.mark.parametrize("logged", [False, True])
def test_a_record_outlives_a_loss_of_power(
    fast_folder: Path, helper: Helper, sample: ModuleType, logged: bool
) -> None:
    operations = helper("fault_operations")
    kinds = set()

    def act(root: Path, promise: Promise) -> None:
        store = Store(root)
        if logged:
            store.start_log()
        record = sample.put_record(store)
        promise(f"records/{record[7:]}.json")
        verdict = sample.put_verdict(store, record)
        promise(f"verdicts/{verdict[7:]}.json")

    def check(root: Path, promised: set[str], number: int) -> None:
        for name in promised:
            assert (root / name).is_file()
        found = operations.check(root, {}) if root.is_dir() else set()
        if len(promised) == 2:
            assert found == set()
        kinds.update(found)
        if number % 10 == 0:
            act(root, lambda name: None)
            assert operations.check(root, {}) <= {"torn"}

    assert survey(helper, fast_folder, act, check) > 60
    assert kinds == {"extra"} | ({"unlogged", "torn"} if logged else set())
