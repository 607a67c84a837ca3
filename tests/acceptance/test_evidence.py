"""Committed evidence, and damage to a copy of it."""

import getpass
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import rfc8785

Command = Callable[..., Any]
Copy = tuple[Path, Path]

COMMON_NAMES = {"root", "runner", "user", "ubuntu", "build", "admin", "localhost"}


def texts(folder: Path) -> list[tuple[str, str]]:
    """All text of a store: file contents, and every value of every table."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            found.append((path.name, json.dumps(table.to_pylist()) + str(table.schema.metadata)))
            found.append((path.name, str(pq.read_metadata(path).metadata)))
        elif path.is_file():
            found.append((path.name, path.read_text()))
    return found


def test_nothing_names_a_person_or_a_machine(repo_root: Path) -> None:
    patterns = [
        re.compile(r"/(home|Users)/[\w.-]+"),
        re.compile(r"(?<![\w.-])/(root|tmp|work|var/folders)/"),
        re.compile(r"\bhf_[A-Za-z0-9]{8,}"),
        re.compile(r"\b(ghp|gho|github_pat|sk)[_-][A-Za-z0-9_]{16,}"),
    ]
    words = {os.uname().nodename, getpass.getuser(), Path.home().name} - COMMON_NAMES
    patterns += [re.compile(rf"\b{re.escape(word)}\b") for word in words if len(word) > 3]
    for folder in ("evidence", "plans"):
        for name, text in texts(repo_root / folder):
            for pattern in patterns:
                assert pattern.search(text) is None, (name, pattern.pattern)


def test_every_file_is_named_by_its_content(repo_root: Path, tools: Any) -> None:
    kinds = {
        "records": ".json",
        "verdicts": ".json",
        "plans": ".json",
        "manifests": ".jsonl",
        "tables": ".parquet",
    }
    store = repo_root / "evidence"
    # The log is appended to, and named by who writes it.
    assert {path.name for path in store.iterdir()} == {*kinds, "log"}
    for kind, suffix in kinds.items():
        files = list((store / kind).iterdir())
        assert files, kind
        for path in files:
            assert path.name == tools.sha256(path.read_bytes()) + suffix


def test_one_record_of_each_shipped_experiment(committed: dict[str, Any]) -> None:
    assert {"tiny_llama", "quickstart"} <= set(committed)


def test_statements_keep_the_format(committed: dict[str, Any], repo_root: Path, tools: Any) -> None:
    store = repo_root / "evidence"
    for path, statement in committed.values():
        data = path.read_bytes()
        assert rfc8785.dumps(statement) == data
        assert len(data) < 64 * 1024
        assert statement["_type"] == "https://in-toto.io/Statement/v1"
        assert statement["predicateType"] == "urn:harness:record:1"
        predicate = statement["predicate"]
        assert predicate["schema"] == "harness.record/1"
        assert predicate["result_digest"] != f"sha256:{path.stem}"
        subjects = {item["name"]: item["digest"]["sha256"] for item in statement["subject"]}
        assert len(subjects) == len(statement["subject"])
        plan = store / "plans" / f"{subjects['plan']}.json"
        assert json.loads(plan.read_bytes())["digest"] == predicate["plan"]["digest"]
        assert predicate["plan"]["file_digest"] == f"sha256:{subjects['plan']}"
        assert (store / "manifests" / f"{predicate['manifest_digest'][7:]}.jsonl").is_file()
        for entry in predicate["tables"]:
            name = f"tables/{entry['name']}"
            if entry["realization"] is not None:
                name += f"/r{entry['realization']}"
            if "stage" in entry:
                name += f"/s{entry['stage']}"
            assert subjects.pop(name) == entry["digest"][7:]
            table = store / "tables" / f"{entry['digest'][7:]}.parquet"
            assert table.stat().st_size == entry["size_bytes"]
            assert tools.sha256(table.read_bytes()) == entry["digest"][7:]
            assert pq.read_metadata(table).num_rows == entry["num_rows"]
        assert set(subjects) == {"plan"}
        labels = {claim["label"] for claim in predicate["claims"]}
        assert labels <= {
            "measured",
            "calculated",
            "estimated",
            "declared",
            "not_evaluated",
            "not_executed",
        }
        executed = [claim for claim in predicate["claims"] if claim["name"].startswith("cuda")]
        assert executed
        assert {claim["label"] for claim in executed} == {"not_executed"}


def test_verdicts_name_plan_record_and_auditor(committed: dict[str, Any], repo_root: Path) -> None:
    verdicts = [
        json.loads(path.read_bytes()) for path in (repo_root / "evidence" / "verdicts").iterdir()
    ]
    for path, statement in committed.values():
        mine = [v for v in verdicts if v["subject"][0]["digest"]["sha256"] == path.stem]
        assert mine
        for verdict in mine:
            predicate = verdict["predicate"]
            assert verdict["predicateType"] == "urn:harness:verdict:1"
            assert predicate["record_digest"] == f"sha256:{path.stem}"
            assert predicate["plan_digest"] == statement["predicate"]["plan"]["digest"]
            assert predicate["result_digest"] == statement["predicate"]["result_digest"]
            assert predicate["auditor"]["version"]
            assert predicate["status"] == "passed"
            table = (
                repo_root
                / "evidence"
                / "tables"
                / f"{predicate['differences']['digest'][7:]}.parquet"
            )
            assert pq.read_metadata(table).num_rows == predicate["differences"]["num_rows"] == 0


def test_steps_and_checkpoints_are_rows(committed: dict[str, Any], repo_root: Path) -> None:
    statement = committed["tiny_llama"][1]

    def rows(name: str) -> list[dict[str, Any]]:
        entry = next(e for e in statement["predicate"]["tables"] if e["name"] == name)
        table = repo_root / "evidence" / "tables" / f"{entry['digest'][7:]}.parquet"
        return list(pq.read_table(table).to_pylist())

    points = [row["point"] for row in rows("checkpoints")]
    assert points == [
        "baseline",
        "after_staging",
        "after_allocation",
        "after_population",
        "after_release",
        "after_decode",
    ]
    for row in rows("checkpoints"):
        parts = row["rss_anon_bytes"] + row["rss_file_bytes"] + row["rss_shmem_bytes"]
        assert row["vm_rss_bytes"] == parts
        assert row["uss_bytes"] > 0
    for row in rows("steps"):
        assert row["plane_digest"].startswith("sha256:")
        assert (row["num_nan"], row["num_inf"]) == (0, 0)
        if row["phase"] == "decode":
            assert row["token"] is not None
            assert row["logits_digest"].startswith("sha256:")
            assert row["margin"] is not None
    for row in rows("sentinels"):
        assert row["canary_count"] > 0
        assert row["count"] == 0
    assert sum(row["bytes"] for row in rows("fetches")) >= 4 * 1024 * 1024


def test_attributes_keep_bytes_exact(repo_root: Path) -> None:
    lines = (repo_root / ".gitattributes").read_text()
    for folder in ("plans", "evidence"):
        assert re.search(rf"^/?{folder}/\S*\s+.*(-text|binary)", lines, re.M), folder


def verify(command: Command, copy: Copy) -> Any:
    return command("evidence", "verify", "--json", copy[0], "--plans", copy[1])


@pytest.fixture
def damaged(repo_root: Path, tmp_path: Path) -> Copy:
    store, plans = tmp_path / "evidence", tmp_path / "plans"
    shutil.copytree(repo_root / "evidence", store)
    shutil.copytree(repo_root / "plans", plans)
    return store, plans


def first(folder: Path, pattern: str = "*") -> Path:
    return min(folder.glob(pattern))


def flip(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-1])
    return path


def gone(path: Path) -> Path:
    path.unlink()
    return path


def moved(path: Path) -> Path:
    path.rename(path.with_name("0" * 64 + path.suffix))
    return path


def added(path: Path, data: bytes = b"extra") -> Path:
    path.write_bytes(data)
    return path


def crlf(path: Path) -> Path:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    return path


def emptied(path: Path) -> Path:
    path.write_bytes(b"")
    return path


DAMAGE: dict[str, Callable[[Path, Path], Path]] = {
    "modified table": lambda store, plans: flip(first(store / "tables")),
    "modified record": lambda store, plans: flip(first(store / "records")),
    "modified verdict": lambda store, plans: flip(first(store / "verdicts")),
    "modified plan": lambda store, plans: flip(first(store / "plans")),
    "modified manifest": lambda store, plans: flip(first(store / "manifests")),
    "truncated table": lambda store, plans: cut(first(store / "tables")),
    "emptied table": lambda store, plans: emptied(first(store / "tables")),
    "truncated record": lambda store, plans: cut(first(store / "records")),
    "missing table": lambda store, plans: gone(first(store / "tables")),
    "missing plan": lambda store, plans: gone(first(store / "plans")),
    "missing manifest": lambda store, plans: gone(first(store / "manifests")),
    "missing record": lambda store, plans: gone(first(store / "records")),
    "renamed table": lambda store, plans: moved(first(store / "tables")),
    "renamed record": lambda store, plans: moved(first(store / "records")),
    "extra file": lambda store, plans: added(store / "tables" / "extra.parquet"),
    "extra file at the top": lambda store, plans: added(store / "notes.txt"),
    "CRLF manifest": lambda store, plans: crlf(first(store / "manifests")),
    "CRLF plan": lambda store, plans: crlf(first(plans, "*.json")),
    "modified frozen plan": lambda store, plans: flip(first(plans, "*.json")),
    "truncated frozen plan": lambda store, plans: cut(first(plans, "*.json")),
    "missing frozen plan": lambda store, plans: gone(first(plans, "*.json")),
    "missing sidecar": lambda store, plans: gone(first(plans, "*.sha256")),
    "broken sidecar": lambda store, plans: added(first(plans, "*.sha256"), b"garbage\n"),
    "sidecar without newline": lambda store, plans: cut(first(plans, "*.sha256")),
    "sidecar of another digest": lambda store, plans: added(
        first(plans, "*.sha256"),
        b"0" * 64 + b"  " + first(plans, "*.sha256").stem.encode() + b"\n",
    ),
    "sidecar of another name": lambda store, plans: added(
        first(plans, "*.sha256"),
        first(plans, "*.sha256").read_bytes().replace(b".json", b".jsox"),
    ),
    "modified frozen manifest": lambda store, plans: flip(first(plans / "manifests")),
}
FAST = {"modified table"}


def test_committed_evidence_is_sound(command: Command, repo_root: Path) -> None:
    outcome = verify(command, (repo_root / "evidence", repo_root / "plans"))
    assert outcome.code == 0, outcome
    assert outcome.json["problems"] == []
    assert {"quickstart", "tiny_llama"} <= {r["experiment"] for r in outcome.json["records"]}
    for record in outcome.json["records"]:
        assert (record["status"], record["changes"]) == ("passed", [])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in DAMAGE]
)
def test_damage_is_found(command: Command, damaged: Copy, name: str) -> None:
    place = DAMAGE[name](*damaged)
    outcome = verify(command, damaged)
    assert outcome.code == 1, outcome
    stem = place.name.removesuffix(".sha256")
    assert stem in outcome.out, (place, outcome)


@pytest.mark.slow
def test_all_damage_is_listed_at_once(command: Command, damaged: Copy) -> None:
    store, plans = damaged
    tables = sorted((store / "tables").iterdir())
    places = [
        flip(tables[0]),
        cut(tables[5]),
        gone(tables[9]),
        added(store / "records" / "extra.json"),
        added(first(plans, "*.sha256"), b"garbage\n"),
    ]
    outcome = verify(command, damaged)
    assert outcome.code == 1
    for place in places:
        assert place.name.removesuffix(".sha256") in outcome.out, place


@pytest.mark.slow
def test_a_forged_verdict_is_found(command: Command, damaged: Copy, tools: Any) -> None:
    store, _ = damaged
    path = first(store / "verdicts")
    verdict = json.loads(path.read_bytes())
    verdict["predicate"]["status"] = "failed"
    path.unlink()
    data = rfc8785.dumps(verdict)
    (store / "verdicts" / f"{tools.sha256(data)}.json").write_bytes(data)
    outcome = verify(command, damaged)
    assert outcome.code == 1, outcome


@pytest.mark.slow
def test_an_unreadable_record_leaves_the_others_audited(command: Command, damaged: Copy) -> None:
    store, _ = damaged
    records = sorted((store / "records").iterdir())
    emptied(records[0])
    outcome = verify(command, damaged)
    assert outcome.code == 1
    others = {record["record"] for record in outcome.json["records"]}
    assert f"sha256:{records[1].stem}" in others


@pytest.mark.slow
def test_promote_copies_all_that_a_record_names(
    command: Command, repo_root: Path, tmp_path: Path, committed: dict[str, Any]
) -> None:
    target = tmp_path / "promoted"
    record = committed["tiny_llama"][0]
    words = ("evidence", "promote", "--json", "--store", repo_root / "evidence", "--to", target)
    outcome = command(*words, record.stem[:12])
    assert outcome.code == 0, outcome
    assert (target / "records" / record.name).read_bytes() == record.read_bytes()
    assert command("evidence", "verify", target).code == 0
    again = command(*words, record.stem)
    assert again.code == 0, again
    assert len(list((target / "records").iterdir())) == 1
