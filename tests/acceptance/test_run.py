"""Real runs of the smallest experiment, end to end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import rfc8785

pytestmark = pytest.mark.slow

Command = Callable[..., Any]
NUM_RUNS = 2
SECRET = "hf_acceptance0secret0token0value"


@dataclass
class Runs:
    """Simultaneous runs of one plan into one store."""

    store: Path
    results: list[dict[str, Any]]
    codes: list[int]
    errors: list[str]

    @property
    def records(self) -> list[Path]:
        return [Path(result["record"]) for result in self.results]

    @property
    def statements(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_bytes()) for path in self.records]


@pytest.fixture(scope="module")
def runs(
    repo_root: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Runs:
    store = tmp_path_factory.mktemp("runs") / "store"
    words = [sys.executable, "-m", "harness", "run", "--json", "experiment=tiny_llama"]
    started = [
        subprocess.Popen(
            [*words, f"store={store}"],
            cwd=repo_root,
            env={**environment, "HF_TOKEN": SECRET, "HOME": str(store.parent)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(NUM_RUNS)
    ]
    ended = [process.communicate(timeout=500) for process in started]
    return Runs(
        store=store,
        results=[json.loads(out) for out, _ in ended],
        codes=[process.returncode for process in started],
        errors=[err for _, err in ended],
    )


def test_simultaneous_runs_pass_and_do_not_collide(runs: Runs) -> None:
    assert runs.codes == [0] * NUM_RUNS, runs.errors
    assert [result["status"] for result in runs.results] == ["passed"] * NUM_RUNS
    assert len(set(runs.records)) == NUM_RUNS
    assert sorted(runs.records) == sorted((runs.store / "records").iterdir())
    assert all("Traceback" not in error for error in runs.errors)
    assert all("\x1b[" not in error for error in runs.errors)


def test_the_summary_says_what_happened(runs: Runs) -> None:
    for result in runs.results:
        assert result["exit_code"] == 0
        assert result["ttft_ns"] > 0
        assert result["tpot_ns"] > 0
        assert len(result["tokens"]) == 9
        for memory in result["memories"]:
            assert memory["planned_bytes"] == memory["observed_bytes"] > 0


def test_records_are_content_addressed(runs: Runs, tools: Any) -> None:
    for path in runs.store.rglob("*"):
        if path.is_file():
            assert path.stem == tools.sha256(path.read_bytes()), path
    for path, statement in zip(runs.records, runs.statements, strict=True):
        data = path.read_bytes()
        assert rfc8785.dumps(statement) == data
        assert len(data) < 64 * 1024
        assert statement["_type"] == "https://in-toto.io/Statement/v1"
        assert statement["predicateType"] == "urn:harness:record:1"


def test_tables_match_digests_and_row_counts(runs: Runs) -> None:
    for statement in runs.statements:
        subjects = {item["name"]: item["digest"]["sha256"] for item in statement["subject"]}
        for entry in statement["predicate"]["tables"]:
            path = runs.store / "tables" / f"{entry['digest'][7:]}.parquet"
            assert pq.read_metadata(path).num_rows == entry["num_rows"]
            assert path.stat().st_size == entry["size_bytes"]
            name = f"tables/{entry['name']}"
            if entry["realization"] is not None:
                name += f"/r{entry['realization']}"
            assert subjects[name] == path.stem


def test_results_repeat_and_records_differ(runs: Runs, committed: dict[str, Any]) -> None:
    predicates = [statement["predicate"] for statement in runs.statements]
    assert len({predicate["result_digest"] for predicate in predicates}) == 1
    assert len({path.stem for path in runs.records}) == NUM_RUNS
    assert len({tuple(result["tokens"]) for result in runs.results}) == 1
    old = committed["tiny_llama"][1]["predicate"]
    if old["applicability_key"] == predicates[0]["applicability_key"]:
        assert old["result_digest"] == predicates[0]["result_digest"]


def test_nothing_partial_is_left(runs: Runs) -> None:
    names = {path.name for path in runs.store.iterdir()}
    assert {"records", "verdicts", "tables", "plans", "manifests"} <= names
    for folder in ("records", "verdicts", "tables", "plans", "manifests"):
        for path in (runs.store / folder).iterdir():
            assert len(path.stem) == 64, path


def test_the_store_verifies(command: Command, runs: Runs) -> None:
    outcome = command("evidence", "verify", "--json", runs.store)
    assert outcome.code == 0, outcome
    assert len(outcome.json["records"]) == NUM_RUNS
    listed = command("evidence", "ls", "--json", "--store", runs.store)
    assert len(listed.json["records"]) == NUM_RUNS
    for record in runs.records:
        audited = command(
            "reconcile", "--json", "--store", runs.store, "plans/tiny_llama.json", record
        )
        assert (audited.code, audited.json["differences"]) == (0, [])


def test_records_name_no_place_and_no_secret(
    runs: Runs, cache_folder: Path, repo_root: Path
) -> None:
    words = [SECRET, str(cache_folder), str(repo_root), str(runs.store.parent)]
    words += [str(Path.home()) + "/"]
    nodename = os.uname().nodename
    if len(nodename) > 3 and nodename != "localhost":
        words.append(nodename)
    for path in runs.store.rglob("*"):
        if path.suffix == ".parquet":
            text = json.dumps(pq.read_table(path).to_pylist())
        elif path.is_file():
            text = path.read_text()
        else:
            continue
        for word in words:
            assert word not in text, (path, word)


def test_promotion(command: Command, runs: Runs, tmp_path: Path) -> None:
    record = runs.records[0]
    target = tmp_path / "promoted"
    outcome = command(
        "evidence", "promote", "--store", runs.store, "--to", target, record.stem[:16]
    )
    assert outcome.code == 0, outcome
    assert [path.name for path in (target / "records").iterdir()] == [record.name]
    assert command("evidence", "verify", target).code == 0


def test_differences_of_two_runs_are_json(command: Command, runs: Runs) -> None:
    one, other = runs.records[:2]
    outcome = command("evidence", "diff", "--json", "--store", runs.store, one.stem, other.stem)
    assert outcome.code in (0, 1)
    assert outcome.json["comparable"] is True


def test_a_plan_of_its_own_runs_without_the_experiment(
    command: Command, runs: Runs, tmp_path: Path
) -> None:
    """Derive, run by path: a run that depends on the plan file alone; then the checkpoint."""
    plan = tmp_path / "short.json"
    outcome = command(
        "plan",
        "derive",
        "experiment=tiny_llama",
        "workload.decode_steps=2",
        "workload.repetitions=1",
        "workload.fresh_realizations=1",
        "--out",
        plan,
    )
    assert outcome.code == 0, outcome
    outcome = command("run", "--json", f"plan={plan}", f"store={tmp_path / 'store'}")
    assert outcome.code == 0, outcome
    assert len(outcome.json["tokens"]) == 3
    assert command("checkpoint", "verify", "--json", plan).code == 0


@pytest.mark.long
def test_streaming_passes_with_the_same_tokens(
    command: Command, runs: Runs, tmp_path: Path
) -> None:
    outcome = command(
        "run", "--json", "experiment=tiny_llama_streaming", f"store={tmp_path / 'store'}"
    )
    assert outcome.code == 0, outcome
    assert outcome.json["tokens"] == runs.results[0]["tokens"]


def short_plan(command: Command, path: Path, *overrides: str) -> Path:
    outcome = command(
        "plan",
        "derive",
        "experiment=tiny_llama",
        "workload.decode_steps=1",
        "workload.repetitions=1",
        "workload.fresh_realizations=1",
        *overrides,
        "--out",
        path,
    )
    assert outcome.code == 0, outcome
    return path


@pytest.mark.long
def test_a_multirun_goes_on_after_failures(command: Command, runs: Runs, tmp_path: Path) -> None:
    """The first job runs into its time limit, the second breaks an acceptance check."""
    late = short_plan(command, tmp_path / "late.json", "timeouts.realization_s=1")
    good = short_plan(command, tmp_path / "good.json")
    tight = short_plan(command, tmp_path / "tight.json", "realization.unplanned_host_bytes=1")
    store = tmp_path / "store"
    outcome = command(
        "run", "--multirun", "--json", f"plan={late},{tight},{good}", f"store={store}"
    )
    assert outcome.code == 1, outcome
    assert isinstance(outcome.json, dict)
    found = {}
    for path in (store / "records").iterdir():
        record = json.loads(path.read_bytes())["predicate"]
        found[record["plan"]["digest"]] = path
    digests = {plan.stem: json.loads(plan.read_bytes())["digest"] for plan in (late, good, tight)}
    assert {digests["good"], digests["tight"]} <= set(found)
    verdicts = {}
    for path in (store / "verdicts").iterdir():
        predicate = json.loads(path.read_bytes())["predicate"]
        verdicts[predicate["plan_digest"]] = predicate["status"]
    assert verdicts[digests["good"]] == "passed"
    assert verdicts[digests["tight"]] == "failed"
    assert verdicts.get(digests["late"]) != "passed"
    assert "late" in outcome.out or digests["late"][7:19] in outcome.out


def children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the job through /proc")
def test_a_killed_job_ends_nothing_else(
    command: Command,
    runs: Runs,
    repo_root: Path,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    one = short_plan(command, tmp_path / "one.json")
    two = short_plan(command, tmp_path / "two.json", "workload.decode_steps=2")
    store = tmp_path / "store"
    words = [sys.executable, "-m", "harness", "run", "--multirun", f"plan={one},{two}"]
    process = subprocess.Popen(
        [*words, f"store={store}"],
        cwd=repo_root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    deadline = time.monotonic() + 60
    jobs: list[int] = []
    while not jobs and time.monotonic() < deadline:
        time.sleep(0.02)
        jobs = children(process.pid)
    assert len(jobs) == 1
    os.kill(jobs[0], signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1, out
    assert "Traceback" not in out
    assert "SIGKILL" in out or "killed" in out or "signal 9" in out
    records = [json.loads(path.read_bytes()) for path in (store / "records").iterdir()]
    digest = json.loads(two.read_bytes())["digest"]
    assert digest in [record["predicate"]["plan"]["digest"] for record in records]


def test_a_multirun_with_a_bad_job_starts_none(command: Command, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    good = Path("plans") / "tiny_llama.json"
    outcome = command("run", "--multirun", f"plan={good},{bad}", f"store={tmp_path / 'store'}")
    assert outcome.code == 2, outcome
    assert not (tmp_path / "store" / "records").exists()


def test_a_damaged_checkpoint_is_refused(
    command: Command, runs: Runs, cache_folder: Path, tmp_path: Path
) -> None:
    fetched = command("checkpoint", "fetch", "experiment=tiny_llama")
    assert fetched.code == 0, fetched
    folder = tmp_path / "checkpoint"
    shutil.copytree(fetched.out.strip().splitlines()[-1], folder)
    plan = "plans/tiny_llama.json"
    assert command("checkpoint", "verify", plan, folder).code == 0
    weights = folder / "model.safetensors"
    weights.chmod(0o644)
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    outcome = command("checkpoint", "verify", "--json", plan, folder)
    assert outcome.code in (1, 2), outcome
    assert "model.safetensors" in outcome.out
