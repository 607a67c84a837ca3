import json
from pathlib import Path
from typing import Any

import pytest

from harness.canonical import canonical_bytes, sha256_digest
from harness.errors import InvalidInputError
from harness.evidence.log.checkpoint import make_checkpoint, parse_checkpoint, read_checkpoint
from harness.evidence.log.merkle import leaf_hash, tree_head
from harness.evidence.log.shard import read_log, shard_path
from harness.evidence.log.state import log_state
from harness.evidence.store import Store


def test_a_checkpoint_holds_the_heads_of_all_shards(logged: Store) -> None:
    document = json.loads(make_checkpoint(logged.root).encode())
    shards = list(read_log(logged.root))
    assert [head["id"] for head in document["shards"]] == sorted(shard.id for shard in shards)
    names = []
    for head, shard in zip(document["shards"], shards, strict=True):
        lines = shard.path.read_bytes().splitlines()
        assert head["num_leaves"] == len(lines)
        assert head["root"] == f"sha256:{tree_head(leaf_hash(line) for line in lines).hex()}"
        names += head["statements"]
    kinds = ("records", "verdicts")
    expected = [f"{kind}/{d[7:]}.json" for kind in kinds for d in logged.digests(kind)]
    assert sorted(names) == sorted(expected)
    said = document.pop("digest")
    assert said == sha256_digest(canonical_bytes(document))


def test_a_checkpoint_is_read_as_it_was_written(logged: Store, tmp_path: Path) -> None:
    made = make_checkpoint(logged.root)
    (tmp_path / "kept.json").write_bytes(made.encode())
    assert read_checkpoint(tmp_path / "kept.json") == made
    # Its form in JSON does not matter, its content does.
    pretty = json.dumps(made.document(), indent=2).encode()
    assert parse_checkpoint(pretty, where="kept") == made
    state = log_state(logged.root)
    assert state is not None
    num_leaves = sum(len(shard.lines) for shard in read_log(logged.root))
    assert (state.num_shards, state.num_leaves, state.digest) == (2, num_leaves, made.digest)


def test_a_store_without_a_log_has_none(store: Store) -> None:
    assert log_state(store.root) is None
    assert make_checkpoint(store.root).shards == ()
    store.start_log()
    state = log_state(store.root)
    assert state is not None
    assert (state.num_shards, state.num_leaves) == (0, 0)
    assert state.digest == make_checkpoint(store.root).digest
    shard_path(store.root, "0" * 32).mkdir()
    state = log_state(store.root)
    assert state is not None
    assert state.digest is None


def changed(document: dict[str, Any], place: list[Any], value: Any, *, seal: bool) -> bytes:
    target: Any = document
    for name in place[:-1]:
        target = target[name]
    target[place[-1]] = value
    if seal:
        rest = {name: item for name, item in document.items() if name != "digest"}
        document["digest"] = sha256_digest(canonical_bytes(rest))
    return canonical_bytes(document)


@pytest.mark.parametrize(
    ("place", "value", "seal", "message"),
    [
        (["shards", 0, "num_leaves"], 1, False, "the heads give"),
        (["shards", 0, "root"], "sha256:" + "0" * 64, False, "the heads give"),
        (["shards", 0, "statements"], [], False, "the heads give"),
        (["shards", 0, "id"], "f" * 32, True, "not sorted"),
        (["shards", 0, "statements"], ["tables/x"], True, "not names of statements"),
        (["shards", 0, "statements"], ["records/../../x.json"], True, "not names of statements"),
        (["shards", 0, "statements"], ["verdicts/b.json", "records/a.json"], True, "not sorted"),
        (["shards", 0, "statements"], ["records/a.json"] * 2, True, "not sorted"),
        (["shards", 0, "num_leaves"], -1, True, "num_leaves"),
        (["shards", 0, "root"], "0" * 64, True, "root"),
        (["shards", 0, "more"], 1, True, "more"),
        (["shards"], {}, True, "shards"),
        (["schema"], "harness.log-checkpoint/2", True, "schema"),
    ],
)
def test_what_is_no_checkpoint_is_refused(
    logged: Store, place: list[Any], value: Any, seal: bool, message: str
) -> None:
    data = changed(make_checkpoint(logged.root).document(), place, value, seal=seal)
    with pytest.raises(InvalidInputError) as caught:
        parse_checkpoint(data, where="kept")
    assert message in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b"[" * 5000, b"\x80\x04."])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        parse_checkpoint(data, where="kept")
