"""The commands around a store's history and signatures, as a person uses them."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main

Run = Callable[..., tuple[int, str, str]]
SOUND = 2
"""The golden record names a plan that is too small to be audited; nothing else is wrong with it."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process: exit code, standard output, standard error."""

    def command(*arguments: str | Path) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.fixture
def store(repo_root: Path, tmp_path: Path) -> Path:
    """A copy of the golden evidence, without a log."""
    return shutil.copytree(repo_root / "tests/golden/1/evidence", tmp_path / "evidence")


@pytest.fixture
def record(store: Path) -> Path:
    (path,) = (store / "records").iterdir()
    return path


@pytest.fixture
def checkpoint(run: Run, store: Path, tmp_path: Path) -> Path:
    """Of the store, which has a log from then on."""
    assert run("evidence", "log", "update", store)[0] == 0
    path = tmp_path / "kept.json"
    code, out, _ = run("evidence", "log", "checkpoint", store, "--out", path)
    assert code == 0
    assert json.loads(path.read_bytes())["digest"] in out
    return path


def test_verification_says_whether_there_is_a_log(run: Run, store: Path) -> None:
    out = run("evidence", "verify", store)[1]
    assert "no log: nothing here would show that a record was removed" in out
    assert json.loads(run("evidence", "verify", store, "--json")[1])["log"] is None
    code, out, err = run("evidence", "log", "checkpoint", store)
    assert (code, out) == (2, "")
    assert "the store keeps no log" in err
    assert "9 files appended" in run("evidence", "log", "update", store)[1]
    assert "0 files appended" in run("evidence", "log", "update", store)[1]
    document = json.loads(run("evidence", "log", "checkpoint", store, "--json")[1])
    out = run("evidence", "verify", store)[1]
    assert f"log: leaves 9, shards 1, checkpoint {document['digest']}" in out
    found = json.loads(run("evidence", "verify", store, "--json")[1])
    assert found["problems"] == []
    assert found["log"] == {"digest": document["digest"], "num_leaves": 9, "num_shards": 1}
    assert run("evidence", "log", "checkpoint", store)[1].strip() == (
        json.dumps(document, sort_keys=True, separators=(",", ":"))
    )


def test_a_removed_record_is_found_and_named(
    run: Run, store: Path, record: Path, checkpoint: Path
) -> None:
    code, out, _ = run("evidence", "log", "check", store, "--checkpoint", checkpoint)
    assert (code, out.splitlines()[0].split(",")[0]) == (0, "0 problems")
    # With all that it names, its verdict, and every trace in the log.
    for folder in ("records", "verdicts", "tables", "plans", "manifests", "log"):
        shutil.rmtree(store / folder)
    assert run("evidence", "log", "update", store)[0] == 0
    assert run("evidence", "verify", store)[0] == 0
    code, out, _ = run("evidence", "log", "check", store, "--checkpoint", checkpoint)
    assert code == 1
    lines = [line for line in out.splitlines() if record.name in line]
    assert lines == [f"{record}: is missing, and the checkpoint binds it [missing]"]
    code, out, _ = run("evidence", "log", "check", store, "--checkpoint", checkpoint, "--json")
    assert (code, len(json.loads(out)["problems"])) == (1, 3)


def test_a_proof_needs_no_store(
    run: Run, store: Path, record: Path, checkpoint: Path, tmp_path: Path
) -> None:
    proof = tmp_path / "proof.json"
    arguments = ("--checkpoint", checkpoint, "--out", proof)
    assert run("evidence", "log", "prove", record, *arguments)[0] == 0
    alone = tmp_path / "record.json"
    record.rename(alone)
    shutil.rmtree(store)
    verify = ("evidence", "log", "verify-proof", proof, "--checkpoint", checkpoint)
    code, out, _ = run(*verify, "--record", alone)
    assert code == 0
    assert record.name in out
    assert json.loads(run(*verify, "--json")[1])["leaf"]["size_bytes"] == alone.stat().st_size
    alone.write_bytes(alone.read_bytes() + b"\n")
    code, out, err = run(*verify, "--record", alone)
    assert (code, out) == (1, "")
    assert "another file" in err
    proof.write_bytes(proof.read_bytes().replace(b'"leaf_index":', b'"leaf_index":1'))
    assert run(*verify)[0] == 1


def test_a_proof_is_made_by_digest_and_printed(run: Run, store: Path, record: Path) -> None:
    prove = ("evidence", "log", "prove", record.stem[:12], "--store", store)
    code, out, err = run(*prove)
    assert (code, out) == (2, "")
    assert "harness evidence log update" in err
    run("evidence", "log", "update", store)
    code, out, _ = run(*prove)
    assert code == 0
    assert json.loads(out) == json.loads(run(*prove, "--json")[1])


def test_a_kept_file_is_not_overwritten(run: Run, store: Path, checkpoint: Path) -> None:
    before = checkpoint.read_bytes()
    code, _, _ = run("evidence", "log", "checkpoint", store, "--out", checkpoint)
    assert code == 0  # the same bytes
    (store / "log" / ("0" * 32 + ".jsonl")).write_bytes(b"")
    code, _, err = run("evidence", "log", "checkpoint", store, "--out", checkpoint)
    assert code == 2
    assert "something else" in err
    assert checkpoint.read_bytes() == before


def test_stores_are_merged(run: Run, store: Path, checkpoint: Path, tmp_path: Path) -> None:
    target = tmp_path / "merged"
    code, out, _ = run("evidence", "merge", store, target)
    assert code == 0
    assert "9 files and 1 shards" in out
    assert run("evidence", "verify", target)[0] == SOUND
    assert run("evidence", "log", "check", target, "--checkpoint", checkpoint)[0] == 0
    assert json.loads(run("evidence", "merge", store, target, "--json")[1])["files"] == []
    code, _, err = run("evidence", "merge", tmp_path / "nothing", target)
    assert code == 2
    assert "no evidence store" in err


def test_records_are_signed_and_verified(
    run: Run, store: Path, record: Path, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed")
    private, public = tmp_path / "private.pem", tmp_path / "keys" / "ours.pem"
    code, out, _ = run("evidence", "keygen", private, public, "--json")
    assert code == 0
    keyid = json.loads(out)["keyid"]
    verify = ("evidence", "verify", store, "--keys", public.parent)
    code, out, _ = run(*verify)
    assert code == 1
    assert "[unsigned]" in out
    code, out, _ = run("evidence", "sign", record, "--key", private)
    assert code == 0
    assert f"{record.stem}.{keyid}.json" in out
    code, out, _ = run(*verify)
    assert code == SOUND
    assert "signatures: every record must carry one by an allowed key (keys: 1)" in out
    assert json.loads(run(*verify, "--json")[1])["num_keys"] == 1
    code, _, err = run("evidence", "keygen", private, tmp_path / "other.pem")
    assert code == 2
    assert "never overwritten" in err


def test_signing_without_cryptography_is_exit_3(
    run: Run, store: Path, record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    key = tmp_path / "key.pem"
    key.write_text("-----BEGIN PUBLIC KEY-----\nMCow\n-----END PUBLIC KEY-----\n")
    for arguments in (
        ("evidence", "verify", store, "--keys", key),
        ("evidence", "sign", record, "--key", key),
        ("evidence", "keygen", tmp_path / "a", tmp_path / "b"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (3, "")
        assert "inference-harness[signatures]" in err
    assert run("evidence", "verify", store)[0] == SOUND


@pytest.mark.parametrize(
    "command",
    [
        "evidence log update PATH",
        "evidence log checkpoint PATH",
        "evidence log check PATH --checkpoint FILE",
        "evidence log check STORE --checkpoint PATH",
        "evidence log prove 0123abcd --store PATH",
        "evidence log verify-proof PATH --checkpoint FILE",
        "evidence log verify-proof FILE --checkpoint PATH",
        "evidence merge PATH OUT",
        "evidence sign 0123abcd --store PATH --key FILE",
        "evidence verify STORE --keys PATH",
    ],
)
@pytest.mark.parametrize("what", ["missing", "garbage"])
def test_a_bad_path_is_one_message(
    run: Run, store: Path, tmp_path: Path, command: str, what: str
) -> None:
    if "--keys" in command:
        pytest.importorskip("cryptography", reason="cryptography is not installed")
    bad = tmp_path / "bad"
    if what == "garbage":
        bad.write_bytes(b"\x80\x04garbage")
    words = {"PATH": bad, "FILE": bad, "STORE": store, "OUT": tmp_path / "out"}
    code, out, err = run(*(words.get(word, word) for word in command.split()))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "bug" not in err
    assert not (tmp_path / "out").exists()
