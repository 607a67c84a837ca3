"""Exit codes, help, messages and JSON of every command."""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]

COMMANDS = [
    "run",
    "plan derive",
    "plan freeze",
    "plan check",
    "plan show",
    "plan diff",
    "checkpoint fetch",
    "checkpoint census",
    "checkpoint verify",
    "reconcile",
    "evidence ls",
    "evidence show",
    "evidence verify",
    "evidence promote",
    "evidence diff",
    "doctor",
]
HEAVY = re.compile(r"\|\s+(torch|transformers|triton|numpy|pyarrow|hydra|omegaconf)\s*$", re.M)
TORCH = re.compile(r"\|\s+(torch|transformers|triton)\s*$", re.M)


def one_message(outcome: Any) -> None:
    """A refusal: exit code 2, one message on the error stream, nothing else."""
    assert outcome.code == 2, outcome
    assert outcome.err.startswith("error: "), outcome
    assert outcome.err.count("error: ") == 1, outcome
    assert outcome.out == "", outcome


def quickest(run: Callable[[], int]) -> float:
    durations = []
    for _ in range(3):
        start = time.perf_counter()
        assert run() == 0
        durations.append(time.perf_counter() - start)
    return min(durations)


def test_help_is_fast_and_imports_nothing_heavy(command: Command) -> None:
    assert quickest(lambda: command("--help").code) < 0.3
    outcome = command("--help", options=("-X", "importtime"))
    assert HEAVY.search(outcome.err) is None


def test_help_names_every_command(command: Command) -> None:
    out = command("--help").out
    for word in ("run", "plan", "checkpoint", "reconcile", "evidence", "doctor"):
        assert re.search(rf"^\s+{word}\b", out, re.M), word
    plan = command("plan", "--help").out
    for word in ("derive", "freeze", "check", "show", "diff"):
        assert word in plan
    evidence = command("evidence", "--help").out
    for word in ("ls", "show", "verify", "promote", "diff"):
        assert word in evidence


@pytest.mark.parametrize("words", COMMANDS)
def test_each_command_has_help_and_json(command: Command, words: str) -> None:
    outcome = command(*words.split(), "--help", options=("-X", "importtime"))
    assert outcome.code == 0
    assert outcome.out.startswith("usage: harness ")
    assert "--json" in outcome.out
    assert TORCH.search(outcome.err) is None


def test_reading_commands_import_no_torch(
    command: Command, tmp_path: Path, repo_root: Path, committed: dict[str, Any]
) -> None:
    plan = repo_root / "plans" / "tiny_llama.json"
    record = committed["tiny_llama"][0]
    for arguments in (
        ("plan", "check", "--environment", record, plan),
        ("reconcile", "--store", repo_root / "evidence", plan, record),
    ):
        outcome = command(*arguments, options=("-X", "importtime"))
        assert outcome.code == 0, outcome
        assert TORCH.search(outcome.err) is None


BAD = [
    ["nonsense"],
    ["plan", "nonsense"],
    ["plan", "check"],
    ["plan", "check", "--nonsense", "x"],
    ["run"],
    ["run", "experiment=nonsense"],
    ["run", "nonsense"],
    ["evidence", "show", "--store", "evidence", "ffffffffffff"],
    ["evidence", "show", "--store", "evidence", "not-a-digest"],
    ["evidence", "ls", "--store", "no/such/store"],
    ["evidence", "verify", "no/such/store"],
    ["evidence", "verify", "README.md"],
    ["evidence", "promote", "--store", "no/such/store", "ffff"],
    ["checkpoint", "census", "no/such/folder"],
    ["checkpoint", "verify", "plans/tiny_llama.json", "no/such/folder"],
    ["plan", "diff", "plans/tiny_llama.json", "no/such/plan.json"],
    ["plan", "show", "plans"],
    ["plan", "freeze", "no/such/draft.json", "no/such/folder/plan.json"],
    ["plan", "check", "plans/tiny_llama.json", "--environment", "no/such/file.json"],
    ["plan", "check", "plans/tiny_llama.json", "--environment", "README.md"],
    ["reconcile", "plans/tiny_llama.json", "no/such/record.json"],
    ["reconcile", "plans/tiny_llama.json", "README.md"],
]
FAST = ("check", "census", "reconcile")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            words,
            id=" ".join(words),
            marks=[] if len(words) < 4 and set(words) & set(FAST) else [pytest.mark.slow],
        )
        for words in BAD
    ],
)
def test_bad_input_is_one_message(command: Command, words: list[str]) -> None:
    one_message(command(*words))


def test_errors_are_json_where_asked(command: Command) -> None:
    outcome = command("plan", "check", "--json", "no/such/plan.json")
    assert outcome.code == 2
    error = outcome.json["error"]
    assert error["exit_code"] == 2
    assert error["problem"]
    assert "no/such/plan.json" in error["where"]


@pytest.mark.slow
def test_results_are_json_where_asked(
    command: Command, repo_root: Path, committed: dict[str, Any]
) -> None:
    tiny, quick = committed["tiny_llama"][0].stem, committed["quickstart"][0].stem
    listed = command("evidence", "ls", "--json", "--store", "evidence")
    assert listed.code == 0
    assert {tiny, quick} <= {record["digest"][7:] for record in listed.json["records"]}
    shown = command("evidence", "show", "--json", "--store", "evidence", tiny[:10])
    assert shown.code == 0
    assert shown.json["record_digest"] == f"sha256:{tiny}"
    assert isinstance(
        command("evidence", "diff", "--json", "--store", "evidence", tiny, quick).json, dict
    )
    plans = ("plans/tiny_llama.json", "plans/tiny_llama_streaming.json")
    different = command("plan", "diff", "--json", *plans)
    assert "$.digest" in [entry["path"] for entry in different.json["differences"]]
    same = command("plan", "diff", "--json", plans[0], plans[0])
    assert (same.code, same.json["differences"]) == (0, [])
    assert command("plan", "show", "--json", plans[0]).json["schema"] == "harness.plan/1"


@pytest.mark.slow
def test_doctor_is_json(command: Command) -> None:
    outcome = command("doctor", "--json")
    assert isinstance(outcome.json["findings"], list)


GOVERNED = [
    "workload.decode_steps=3",
    "determinism.num_threads=1",
    "timeouts.audit_s=1",
    "realization.unplanned_host_bytes=1",
    "device.simulated_vram_bytes=1",
]


def test_governed_fields_are_not_overridden(command: Command) -> None:
    outcome = command("run", "experiment=tiny_llama", *GOVERNED)
    one_message(outcome)
    for override in GOVERNED:
        assert override.split("=")[0] in outcome.err
    assert "harness plan derive experiment=tiny_llama " + " ".join(GOVERNED) in outcome.err
    assert "harness run plan=" in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "override", [*GOVERNED, "workload=quickstart", "model=smollm2_wheel", "device=cpu"]
)
def test_a_governed_field_is_not_overridden(command: Command, override: str) -> None:
    outcome = command("run", "experiment=tiny_llama", override)
    one_message(outcome)
    assert f"harness plan derive experiment=tiny_llama {override}" in outcome.err


@pytest.mark.parametrize("override", ["store=${oc.env:HOME}", "+model._target_=os.system"])
def test_the_composed_experiment_is_guarded(command: Command, override: str) -> None:
    one_message(command("run", "experiment=tiny_llama", override))


@pytest.mark.slow
@pytest.mark.parametrize(
    "override",
    [
        "store='${oc.env:HOME,x}/y'",
        "cache=${oc.decode:1}",
        "+workload.inner.deep._target_=builtins.eval",
        "+nonsense=1",
    ],
)
def test_other_ways_around_are_guarded(command: Command, override: str) -> None:
    one_message(command("run", "experiment=tiny_llama", override))


@pytest.mark.slow
def test_guards_hold_in_files_too(command: Command, repo_root: Path, tmp_path: Path) -> None:
    for line in ("store: ${oc.env:HOME}", "model:\n  _target_: os.system"):
        folder = tmp_path / str(len(line))
        shutil.copytree(repo_root / "experiments", folder)
        file = folder / "experiment" / "tiny_llama.yaml"
        file.write_text(file.read_text() + "\n" + line + "\n")
        one_message(command("run", "--config-dir", folder, "experiment=tiny_llama"))


@pytest.mark.slow
def test_a_pinned_digest_must_match(command: Command, repo_root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "experiments"
    shutil.copytree(repo_root / "experiments", folder)
    file = folder / "experiment" / "tiny_llama.yaml"
    text, count = re.subn(r"sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, file.read_text())
    assert count == 1
    file.write_text(text)
    one_message(command("run", "--config-dir", folder, "experiment=tiny_llama"))
