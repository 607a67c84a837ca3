"""Each step of each operation refused, shortened, said to have failed, or overtaken by another."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from harness.errors import NotEvaluableError
from harness.evidence.store import Store
from harness.evidence.verify import verify_store

Helper = Callable[[str], ModuleType]
FAST = ("manifest", "sign")


def cases(*names: str) -> list[object]:
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", cases("manifest", "sign", "logged", "merge", "update"))
@pytest.mark.parametrize("action", ["fail", "fail_from", "fail_after", "short"])
def test_a_failing_step_is_one_error_that_harms_nothing(
    fast_folder: Path, helper: Helper, name: str, action: str
) -> None:
    faults, operations = helper("fault_layer"), helper("fault_operations")
    operation = operations.OPERATIONS[name]
    operation.prepare(fast_folder)
    before = operations.contents(fast_folder / "store")
    for number in range(1, 10_000):
        work = fast_folder / str(number)
        copy(fast_folder, work)
        fault, failed = faults.Fault(number, action), False
        try:
            with faults.layer(fault):
                operation.act(work)
        except NotEvaluableError as error:
            failed = error.got is not None and error.got.startswith("[Errno ")
        if fault.hit is None:
            break
        if action == "short" and fault.hit.kind != "write":
            shutil.rmtree(work)
            continue  # as when it fails
        kinds = operations.check(work / "store", before)
        # What could not be told apart from success, or be undone, is not left half done.
        assert failed or kinds <= ({"extra"} if name == "manifest" else set()), fault.hit
        assert "torn" not in kinds or action == "fail_from"
        operations.check_again(name, work, before, left={"leftover"})
        shutil.rmtree(work)
    assert number > 5


@pytest.mark.parametrize("name", cases("manifest", "sign", "logged", "merge"))
def test_a_write_that_takes_less_than_it_was_given_is_continued(
    fast_folder: Path, helper: Helper, name: str
) -> None:
    faults, operations = helper("fault_layer"), helper("fault_operations")
    operation = operations.OPERATIONS[name]
    operation.prepare(fast_folder)
    before = operations.contents(fast_folder / "store")
    for number in range(1, 10_000):
        work = fast_folder / str(number)
        copy(fast_folder, work)
        fault = faults.Fault(number, "partial")
        with faults.layer(fault):
            operation.act(work)
        assert operations.check(work / "store", before) <= (
            {"extra"} if name == "manifest" else set()
        )
        shutil.rmtree(work)
        if fault.hit is None:
            break


@pytest.mark.parametrize("name", cases("manifest", "sign", "promote"))
def test_a_delayed_step_may_be_overtaken_by_the_same_and_by_readers(
    fast_folder: Path, helper: Helper, name: str
) -> None:
    faults, operations = helper("fault_layer"), helper("fault_operations")
    operation = operations.OPERATIONS[name]
    operation.prepare(fast_folder)
    before = operations.contents(fast_folder / "store")
    for number in range(1, 10_000):
        work = fast_folder / str(number)
        copy(fast_folder, work)

        def meanwhile(work: Path = work) -> None:
            operations.check(work / "store", before)
            operation.act(work)
            operations.check(work / "store", before)

        fault = faults.Fault(number, "meanwhile", meanwhile)
        with faults.layer(fault):
            operation.act(work)
        kinds = operations.check(work / "store", before)
        assert kinds <= ({"extra"} if name == "manifest" else set()), fault.hit
        shutil.rmtree(work)
        if fault.hit is None:
            break


def copy(folder: Path, work: Path) -> None:
    work.mkdir()
    for name in ("store", "source"):
        if (folder / name).is_dir():
            shutil.copytree(folder / name, work / name)


def test_a_failed_write_leaves_no_file_behind(store: Store, helper: Helper) -> None:
    faults = helper("fault_layer")
    store.put_manifest(b"before\n")
    before = sorted((store.root / "manifests").iterdir())
    for number, action in ((1, "fail"), (2, "short"), (3, "fail"), (4, "fail")):
        fault = faults.Fault(number, action)
        with pytest.raises(NotEvaluableError), faults.layer(fault):
            store.put_manifest(b"lost\n")
        assert sorted((store.root / "manifests").iterdir()) == before, fault.hit
    assert {problem.kind for problem in verify_store(store.root)} == {"extra"}
