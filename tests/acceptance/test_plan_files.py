"""Plan files: strict reading, and freezing that never changes what is frozen."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


def text_of(repo_root: Path) -> str:
    return (repo_root / "plans" / "tiny_llama.json").read_text()


def once(text: str, old: str, new: str) -> bytes:
    assert text.count(old) >= 1, old
    return text.replace(old, new, 1).encode()


NESTED = b'{"schema":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
BAD: dict[str, Callable[[str], bytes]] = {
    "empty": lambda text: b"",
    "garbage": lambda text: bytes(range(256)) * 4,
    "truncated": lambda text: text.encode()[: len(text) // 2],
    "utf-8 BOM": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "utf-16": lambda text: text.encode("utf-16"),
    "duplicate key": lambda text: once(text, '"schema"', '"plan_version": "x",\n  "schema"'),
    "nested duplicate key": lambda text: once(
        text, '"decode_steps"', '"decode_steps": 8,\n    "decode_steps"'
    ),
    "NaN": lambda text: once(text, '"decode_steps": 8', '"decode_steps": NaN'),
    "Infinity": lambda text: once(text, '"decode_steps": 8', '"decode_steps": Infinity'),
    "overflowing float": lambda text: once(text, '"decode_steps": 8', '"decode_steps": 1e999'),
    "2**53 + 1": lambda text: once(text, '"decode_steps": 8', '"decode_steps": 9007199254740993'),
    "a million digits": lambda text: once(
        text, '"decode_steps": 8', '"decode_steps": ' + "9" * 1_000_000
    ),
    "deep nesting": lambda text: NESTED,
    "65 levels": lambda text: once(text, "{", '{"x": ' + "[" * 70 + "]" * 70 + ","),
    "lone surrogate": lambda text: once(text, '"tiny_llama-1"', '"\\ud800"'),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "two documents": lambda text: (text + text).encode(),
    "a list": lambda text: b"[]\n",
    "a number": lambda text: b"1\n",
    "null": lambda text: b"null\n",
    "no fields": lambda text: b"{}\n",
    "a record": lambda text: b'{"_type":"https://in-toto.io/Statement/v1"}',
    "trailing newline in the digest": lambda text: once(
        text, '"digest": "sha256:', '"digest": "\\nsha256:'
    ),
}


SLOW = {"empty", "a number", "null", "no fields", "a record", "two documents", "65 levels"}
SLOW |= {"nested duplicate key", "Infinity", "overflowing float", "lone surrogate", "utf-16"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in BAD]
)
def test_a_bad_file_is_refused(
    command: Command, repo_root: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(BAD[name](text_of(repo_root)))
    outcome = command("plan", "check", path)
    assert outcome.code == 2, outcome
    assert str(path) in outcome.text
    assert len(outcome.text) < 20_000


@pytest.mark.slow
def test_crlf_is_explained(command: Command, repo_root: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(BAD["CRLF"](text_of(repo_root)))
    outcome = command("plan", "check", path)
    assert "CRLF" in outcome.err
    assert "autocrlf" in outcome.err


@pytest.mark.slow
def test_missing_and_directory(command: Command, tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        outcome = command("plan", "check", path)
        assert outcome.code == 2
        assert str(path) in outcome.err


@pytest.mark.parametrize(
    "field", ["digest", *(pytest.param(n, marks=pytest.mark.slow) for n in ("file", "manifest"))]
)
def test_a_digest_is_matched_whole(
    command: Command, damaged_plan: Callable[..., Path], field: str
) -> None:
    def change(document: dict[str, Any]) -> None:
        if field == "digest":
            document["digest"] += "\n"
        elif field == "file":
            document["checkpoint"]["files"][0]["sha256"] += "\n"
        else:
            document["checkpoint"]["manifest"]["digest"] += "\n"

    outcome = command("plan", "check", "--json", damaged_plan(change, sign=field != "digest"))
    place = {
        "digest": "$.digest",
        "file": "$.checkpoint.files[0].sha256",
        "manifest": "$.checkpoint.manifest.digest",
    }
    assert outcome.code == 2
    assert place[field] in [finding["path"] for finding in outcome.json["findings"]]


@pytest.mark.slow
def test_other_commands_read_as_strictly(command: Command, repo_root: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(BAD["duplicate key"](text_of(repo_root)))
    good = repo_root / "plans" / "tiny_llama.json"
    for words in (
        ("plan", "show", path),
        ("plan", "diff", good, path),
        ("plan", "freeze", path, tmp_path / "frozen.json"),
        ("run", f"plan={path}", f"store={tmp_path / 'store'}"),
        ("checkpoint", "verify", path),
        ("reconcile", path, good),
    ):
        assert command(*words).code == 2, words
    assert not (tmp_path / "frozen.json").exists()
    assert not (tmp_path / "store").exists()


def test_committed_plans_are_what_they_say(repo_root: Path, tools: Any) -> None:
    files = sorted((repo_root / "plans").glob("*.json"))
    assert {"quickstart", "tiny_llama"} <= {file.stem for file in files}
    for file in files:
        data = file.read_bytes()
        sidecar = file.with_name(file.name + ".sha256").read_bytes()
        assert sidecar == f"{tools.sha256(data)}  {file.name}\n".encode()
        document = json.loads(data)
        assert document["schema"] == "harness.plan/1"
        assert tools.sign(document)["digest"] == document["digest"]
        assert tools.plan_bytes(document) == data
        manifest = repo_root / "plans" / "manifests"
        digest = document["checkpoint"]["manifest"]["digest"][7:]
        rows = (manifest / f"{digest}.jsonl").read_bytes()
        assert tools.sha256(rows) == digest
        keys = [json.loads(line)["key"] for line in rows.splitlines()]
        assert keys == sorted(set(keys))
        assert len(keys) == document["checkpoint"]["manifest"]["num_tensors"]


def test_plans_say_what_r1_lacked(tiny_document: dict[str, Any]) -> None:
    plan = tiny_document
    for file in plan["checkpoint"]["files"]:
        assert file["name"]
        assert file["size_bytes"] > 0
        assert file["sha256"].startswith("sha256:")
    for field in (
        "prompt_token_ids",
        "chunk_rows",
        "decode_steps",
        "repetitions",
        "fresh_realizations",
        "sampling",
    ):
        assert field in plan["workload"]
    assert plan["checks"]["acceptance"]
    assert plan["checks"]["telemetry"]
    assert plan["scope"]["proves"]
    assert plan["scope"]["does_not_prove"]
    assert plan["determinism"]["kernel_set"]
    assert "batch_invariant" in plan["determinism"]
    assert plan["timeouts"]
    assert plan["memory_allowances"]
    assert plan["reference_fixture"]


def test_freeze_signs_and_never_changes_a_frozen_plan(
    command: Command, repo_root: Path, tmp_path: Path, tiny_document: dict[str, Any], tools: Any
) -> None:
    shutil.copytree(repo_root / "plans" / "manifests", tmp_path / "manifests")
    draft = tmp_path / "draft.json"
    bare = {key: value for key, value in tiny_document.items() if key != "digest"}
    draft.write_text(json.dumps(bare))
    out = tmp_path / "frozen.json"
    first = command("plan", "freeze", "--json", draft, out)
    assert first.code == 0, first
    frozen, sidecar = out.read_bytes(), out.with_name("frozen.json.sha256").read_bytes()
    assert json.loads(frozen) == tiny_document
    assert sidecar == f"{tools.sha256(frozen)}  frozen.json\n".encode()
    stamp = out.stat().st_mtime_ns

    bare["plan_version"] = "another"
    draft.write_text(json.dumps(bare))
    second = command("plan", "freeze", draft, out)
    assert second.code == 2, second
    assert out.read_bytes() == frozen
    assert out.with_name("frozen.json.sha256").read_bytes() == sidecar
    assert out.stat().st_mtime_ns == stamp
    leftovers = {path.name for path in tmp_path.iterdir()}
    assert leftovers == {"draft.json", "frozen.json", "frozen.json.sha256", "manifests"}


def test_freeze_refuses_a_plan_that_breaks_a_rule(
    command: Command, damaged_plan: Callable[..., Path], tmp_path: Path
) -> None:
    bad = damaged_plan(lambda document: document["authorities"].clear())
    outcome = command("plan", "freeze", bad, tmp_path / "frozen.json")
    assert outcome.code == 2, outcome
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_freeze_leaves_a_sidecar_of_another_plan_alone(
    command: Command, repo_root: Path, tmp_path: Path
) -> None:
    shutil.copytree(repo_root / "plans" / "manifests", tmp_path / "manifests")
    sidecar = tmp_path / "frozen.json.sha256"
    sidecar.write_text("0" * 64 + "  frozen.json\n")
    outcome = command("plan", "freeze", "plans/tiny_llama.json", tmp_path / "frozen.json")
    assert outcome.code == 2, outcome
    assert sidecar.read_text() == "0" * 64 + "  frozen.json\n"


@pytest.mark.slow
def test_derive_is_reproducible_and_checks(command: Command, tmp_path: Path, tools: Any) -> None:
    outputs = []
    for name in ("one", "two"):
        out = tmp_path / f"{name}.json"
        outcome = command(
            "plan",
            "derive",
            "--json",
            "experiment=tiny_llama",
            "workload.decode_steps=3",
            "--out",
            out,
        )
        assert outcome.code == 0, outcome
        outputs.append(out.read_bytes())
        assert command("plan", "check", out).code == 0
    assert outputs[0] == outputs[1]
    document = json.loads(outputs[0])
    assert document["workload"]["decode_steps"] == 3
    assert tools.sign(document)["digest"] == document["digest"]


@pytest.mark.slow
def test_derive_gives_the_committed_plan_again(
    command: Command, repo_root: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tiny_llama.json"
    outcome = command("plan", "derive", "experiment=tiny_llama", "--out", out)
    assert outcome.code == 0, outcome
    assert out.read_bytes() == (repo_root / "plans" / "tiny_llama.json").read_bytes()
