"""What can be done to a store, each from a sound state that it must not harm.

``prepare(folder)`` makes ``folder/store``, and ``folder/source`` where another store takes part;
``act(folder)`` changes the first. Doing it twice is doing it once. Also run in child processes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sample

from harness.evidence.log.update import update_log
from harness.evidence.merge import merge
from harness.evidence.promote import promote
from harness.evidence.record import load_record
from harness.evidence.redact import Identity
from harness.evidence.signing.envelope import Envelope
from harness.evidence.signing.records import put_signature
from harness.evidence.store import Store
from harness.evidence.verify import verify_store

NOBODY = Identity(home="/nonexistent", user="", hosts=())


@dataclass(frozen=True)
class Operation:
    prepare: Callable[[Path], object]
    act: Callable[[Path], object]


def store(folder: Path) -> Store:
    return Store(folder / "store")


def source(folder: Path) -> Store:
    return Store(folder / "source")


def put(target: Store, name: str) -> str:
    """A record of its own, and a verdict on it."""
    record = sample.put_record(target, salt=name, experiment=name)
    sample.put_verdict(target, record)
    return record


def nothing(folder: Path) -> None:
    (folder / "store").mkdir()


def one_record(folder: Path) -> None:
    put(store(folder), "before")


def logged(folder: Path) -> None:
    store(folder).start_log()
    one_record(folder)


def two_stores(folder: Path) -> None:
    logged(folder)
    source(folder).start_log()
    put(source(folder), "after")


def put_after(folder: Path) -> None:
    put(store(folder), "after")


def promote_after(folder: Path) -> None:
    (digest,) = source(folder).digests("records")
    promote(load_record(digest, source(folder)), store(folder), identity=NOBODY)


def sign(folder: Path) -> None:
    record = store(folder).digests("records")[0]
    payload = store(folder).read("records", record)
    envelope = Envelope(payload=payload, keyid="ab" * 32, signature=bytes(64))
    put_signature(store(folder), record, envelope)


OPERATIONS = {
    "manifest": Operation(nothing, lambda folder: store(folder).put_manifest(sample.MANIFEST)),
    "record": Operation(one_record, put_after),
    "logged": Operation(logged, put_after),
    "promote": Operation(two_stores, promote_after),
    "sign": Operation(logged, sign),
    "merge": Operation(two_stores, lambda folder: merge(source(folder), store(folder))),
    "update": Operation(one_record, lambda folder: update_log(store(folder))),
}


HARMLESS = frozenset({"leftover", "extra", "unlogged", "torn"})
"""Kinds of problems that an interrupted writer may leave: what is incomplete, and named so."""


def contents(root: Path) -> dict[str, bytes]:
    """Every file of a store that a reader may look at, by name."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.name.endswith(".tmp")
    }


def check(root: Path, before: dict[str, bytes]) -> set[str]:
    """Nothing earlier is lost, and what is incomplete is named; returns the kinds of problems."""
    now = contents(root)
    for name, data in before.items():
        whole = now[name][: len(data)] if name.startswith("log/") else now[name]
        assert whole == data, name
    problems = verify_store(root)
    assert {problem.kind for problem in problems} <= HARMLESS, problems
    return {problem.kind for problem in problems}


def check_again(name: str, folder: Path, before: dict[str, bytes], *, left: set[str]) -> None:
    """The next run of the operation completes it, and an update mends what is left of the log.

    Args:
        name: The operation's.
        folder: Where it works.
        before: The store's files before anything went wrong.
        left: Kinds of problems that only a person may end.
    """
    root = folder / "store"
    OPERATIONS[name].act(folder)
    unnamed = {"extra"} if name == "manifest" else set()
    kinds = check(root, before)
    assert kinds <= left | unnamed | {"torn"}, kinds
    if "torn" in kinds:
        update_log(Store(root))
        assert check(root, before) <= left | unnamed
