"""``harness evidence log`` and ``harness evidence merge``: a store's history."""

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from harness.canonical import file_digest, read_bounded, write_durable
from harness.cli.output import print_json, print_lines
from harness.cli.records import find_record, open_store
from harness.errors import ContradictionError, ExitCode, InvalidInputError
from harness.evidence.files import writing
from harness.evidence.log.check import check_against
from harness.evidence.log.checkpoint import Checkpoint, make_checkpoint, read_checkpoint
from harness.evidence.log.consistency import (
    prove_consistency,
    read_consistency,
    verify_consistency_proof,
)
from harness.evidence.log.proof import prove as make_proof
from harness.evidence.log.proof import read_proof
from harness.evidence.log.proof import verify_proof as check_proof
from harness.evidence.log.shard import has_log
from harness.evidence.log.update import update_log
from harness.evidence.merge import merge as merge_stores
from harness.evidence.statement import MAX_STATEMENT_BYTES
from harness.evidence.store import Store


def update(options: Namespace) -> int:
    """Begin a log, or append to it what no shard names yet."""
    done = update_log(open_store(options.store))
    return _say(
        options,
        {"store": str(options.store), **asdict(done)},
        [
            *(f"mended  shard {shard}" for shard in done.mended),
            f"{options.store}: {len(done.appended)} files appended to the log",
        ],
    )


def checkpoint(options: Namespace) -> int:
    """Print, or write to a file, the heads of all shards."""
    store = open_store(options.store)
    if not has_log(store.root):
        raise InvalidInputError(
            "the store keeps no log",
            where=str(options.store),
            hint="begin one with `harness evidence log update`",
        )
    made = make_checkpoint(store.root)
    if options.out is None:
        return _say(options, made.document(), [made.encode().decode().rstrip("\n")])
    _write_new(options.out, made.encode())
    figures = {"digest": made.digest, "num_leaves": made.num_leaves}
    lines = [
        f"checkpoint  {options.out}",
        f"digest      {made.digest}",
        f"holds       {made.num_leaves} leaves of {len(made.shards)} shards",
        "keep it where nobody who can change the store could change it",
    ]
    return _say(options, {"path": str(options.out), **figures}, lines)


def check(options: Namespace) -> int:
    """Name all that was removed or replaced since a checkpoint; exit 1 when there is any."""
    known = read_checkpoint(options.checkpoint)
    problems = check_against(options.store, known)
    document = {"checkpoint": known.digest, "problems": [asdict(each) for each in problems]}
    lines = [
        *map(str, problems),
        f"{len(problems)} problems, {known.num_leaves} leaves bound by {known.digest}",
    ]
    _say(options, document, lines)
    return int(ExitCode.FAILED if problems else ExitCode.PASSED)


def prove(options: Namespace) -> int:
    """Prove that a record is among the leaves of a checkpoint, or of the log as it is now."""
    record = find_record(options.record, options.store)
    root = record.store.root
    given = options.checkpoint
    known = make_checkpoint(root) if given is None else read_checkpoint(given)
    name = record.store.path("records", record.digest).relative_to(root).as_posix()
    proof = make_proof(root, name, known)
    if options.out is None:
        return _say(options, json.loads(proof.encode()), [proof.encode().decode().rstrip("\n")])
    _write_new(options.out, proof.encode())
    place = f"leaf {proof.leaf_index} of {proof.num_leaves} in shard {proof.shard}"
    return _say(options, {"path": str(options.out)}, [f"proof  {options.out}", f"of     {place}"])


def verify_proof(options: Namespace) -> int:
    """Check a proof against a checkpoint, and a record's file against the proof."""
    proof, known = read_proof(options.proof), read_checkpoint(options.checkpoint)
    check_proof(proof, known)
    if options.record is not None:
        data = read_bounded(options.record, max_bytes=MAX_STATEMENT_BYTES)
        got = (len(data), file_digest(options.record))
        if got != (proof.leaf.size_bytes, proof.leaf.digest):
            raise ContradictionError(
                "the proof is about another file",
                expected=f"{proof.leaf.size_bytes} bytes with {proof.leaf.digest}",
                got=f"{got[0]} bytes with {got[1]}",
                where=str(options.record),
            )
    leaf = asdict(proof.leaf)
    text = f"{leaf['name']} ({leaf['size_bytes']} bytes, {leaf['digest']}) is in the log"
    return _say(options, {"checkpoint": known.digest, "leaf": leaf}, [f"{text} of {known.digest}"])


def consistency(options: Namespace) -> int:
    """Prove that a later checkpoint of a store extends an older one; exit 1 when it does not."""
    old, new = read_checkpoint(options.old), read_checkpoint(options.new)
    proof = prove_consistency(open_store(options.store).root, old, new)
    if options.out is None:
        return _say(options, proof.document(), [proof.encode().decode().rstrip("\n")])
    _write_new(options.out, proof.encode())
    return _say(options, {"path": str(options.out)}, [f"proof  {options.out}", _extends(old, new)])


def verify_consistency(options: Namespace) -> int:
    """Check such a proof without the store."""
    proof = read_consistency(options.proof)
    old, new = read_checkpoint(options.old), read_checkpoint(options.new)
    verify_consistency_proof(proof, old, new)
    return _say(options, {"old": old.digest, "new": new.digest}, [_extends(old, new)])


def _extends(old: Checkpoint, new: Checkpoint) -> str:
    return f"{new.digest} ({new.num_leaves} leaves) extends {old.digest} ({old.num_leaves} leaves)"


def merge(options: Namespace) -> int:
    """Copy all evidence of another store, and the shards of its log."""
    done = merge_stores(open_store(options.other), Store(options.store))
    text = f"{len(done.files)} files and {len(done.shards)} shards copied into {options.store}"
    return _say(options, {"to": str(options.store), **asdict(done)}, [text])


def _say(options: Namespace, document: object, lines: Sequence[str]) -> int:
    if options.json:
        print_json(document)
    else:
        print_lines(lines)
    return int(ExitCode.PASSED)


def _write_new(path: Path, data: bytes) -> None:
    with writing(path):
        write_durable(path, data)
