"""The laboratory's commands on real runs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.evidence.record import load_record
from harness.evidence.store import Store
from harness.evidence.studies import study_predicate
from harness.laboratory.kept import read_kept
from harness.run.processes import child_environment

FRESH = Path(__file__).parent / "fresh_trials.py"
EXPERIMENTS = ("tiny_llama", "tiny_llama_streaming", "tiny_gemma_hybrid", "tiny_qwen_nvfp4")
SMALL = (
    "workload.decode_steps=1",
    "workload.repetitions=1",
    "determinism.num_threads=1",
)


def fresh_trials(how: str, name: str, count: int, folder: Path) -> dict[str, Any]:
    """What so many fresh realizations of an experiment agree in, one run each."""
    done = subprocess.run(
        [sys.executable, str(FRESH), how, name, str(folder), str(count), *SMALL],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(1),
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "count"),
    [("forked", 2), pytest.param("started", 20, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_fresh_realizations_agree_at_every_boundary_and_pass_their_audit(
    name: str, how: str, count: int, tmp_path: Path
) -> None:
    found = fresh_trials(how, name, count, tmp_path)
    assert found["num_trials"] == count
    assert found["varying"] == []
    assert set(found["states"]) == {"stable"}
    assert set(found["unarmed"]) == {"passed"}
    assert set(found["audits"]) == {"passed"}
    assert found["num_boundaries"] > 150


@pytest.mark.slow
def test_a_race_is_localized_and_its_study_is_upheld(
    tmp_path: Path, repo_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One case in two processes, its page, the check of its store, and a comparison in it."""
    store, page = tmp_path / "store", tmp_path / "page.html"
    limit = "{kind:acceptance,metric:max_abs,tensors:logits,limit:0.001}"
    command = ["localize", "experiment=tiny_llama", "fault=reduction_order", *SMALL]
    command.append(f"checks={{comparison:[{limit}]}}")
    places = [f"store={store}", f"cache={tmp_path / 'cache'}"]
    options = ["--prompt-rows", "67", "--processes", "2", "--keep", "logits", "--json"]
    # Plans are frozen beside the configuration, so that is copied.
    shutil.copytree(repo_root / "experiments", tmp_path / "experiments")
    configs = ["--config-dir", str(tmp_path / "experiments"), "--page", str(page)]
    assert main([*command, *places, *options, *configs]) == 1
    found = json.loads(capsys.readouterr().out)
    (case,) = found["findings"]["cases"]
    assert case["earliest"]["name"] == "layers.3.mlp_out"
    assert (case["num_completed"], case["num_trials"]) == (4, 4)
    assert case["self_proof"] == "passed"
    assert "layers.3.mlp_out" in page.read_text()
    study = study_predicate(Store(store).read_study(found["study"]))
    assert len(study.tensors) == 2
    # The record of a run with a planted fault fails its audit as it did; nothing is damaged.
    assert main(["evidence", "verify", str(store)]) == 0
    pair = [found["study"], f"{found['study']}:0:1.1", "--store", str(store)]
    capsys.readouterr()
    assert main(["compare", *pair, "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)["findings"]
    assert compared["exact"]["first_different"]["name"] == "layers.3.mlp_out"
    assert compared["decisions"]["wrong"] == 0
    assert 0 < compared["numbers"]["worst"]["max_abs"] < 1e-3
    # Bits differ, and the limit that the plan declared decides.
    (judged,) = compared["limits"]
    assert (judged["limit"], judged["status"]) == (1e-3, "passed")


@pytest.mark.slow
def test_a_campaign_runs_and_its_record_is_replayed(
    tmp_path: Path,
    repo_root: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, files = tmp_path / "store", {}
    shutil.copytree(repo_root / "experiments", tmp_path / "experiments")
    configs = ["--config-dir", str(tmp_path / "experiments")]
    places = [f"cache={tmp_path / 'cache'}", *SMALL]
    limit = {"kind": "acceptance", "metric": "max_abs", "tensors": "logits", "limit": 0.5}
    for name, document in {
        "manifest": {
            "schema": "harness.campaign/1",
            "name": "one prompt",
            "development": [[11, 48, 85]],
            "processes": 1,
            "repetitions": 2,
            "design": {"share": 0.9, "rate": 0.9, "confidence": 0.8},
            "limits": [limit],
        },
        "holdout": {"schema": "harness.holdout/1", "salt": "s" * 32, "cases": [[7, 1]]},
    }.items():
        files[name] = tmp_path / f"{name}.json"
        files[name].write_text(json.dumps(document))
    given = ["--manifest", str(files["manifest"]), "--holdout", str(files["holdout"])]
    kept = ["--store", str(store), "--json"]

    def run(*command: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main([*command, *kept]) == 0
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    frozen = run("campaign", "freeze", "experiment=tiny_llama", *places, *given, *configs)
    # The cache is no part of what was frozen, and is the user's own where it is run.
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    ran = run("campaign", "run", frozen["campaign"], str(files["manifest"]), *configs)
    assert ran["findings"]["status"] == "stable"
    (record,) = study_predicate(Store(store).read_study(ran["study"])).records
    checks = json.loads(load_record(record, Store(store)).plan_bytes())["checks"]
    assert checks["comparison"] == [limit]
    again = run("replay", record, "--cache", str(tmp_path / "cache"))
    assert again["note"] == "valid"
    assert again["findings"]["counts"]["not_reproduced"] == 0
    assert main(["evidence", "verify", str(store)]) == 0


@pytest.mark.slow
@pytest.mark.long
def test_an_intervention_arms_the_second_chunk_alone_and_keeps_no_more_than_it_may(
    tmp_path: Path, repo_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "store")
    shutil.copytree(repo_root / "experiments", tmp_path / "experiments")
    command = ["intervene", "experiment=reduction_order", "--factor", "order:fault=null", *SMALL]
    command += [f"store={store.root}", f"cache={tmp_path / 'cache'}", "--json"]
    command += ["--config-dir", str(tmp_path / "experiments"), "--pairs", "1"]
    arming = "--repetitions 4 --replay-from prefill:1 --rows 6 --keep logits --keep-max-bytes 3000"
    assert main([*command, *arming.split()]) == 0
    (factor,) = json.loads(capsys.readouterr().out)["findings"]["factors"]
    assert (factor["state"], factor["control"]["num_completed"]) == ("cause", 4)
    assert factor["control"]["first_varying"] == "prefill 1: layers.3.mlp_out"
    (digest,) = store.digests("studies")
    study = study_predicate(store.read_study(digest))
    for case in (0, 1):
        (table,) = [t for t in study.tables if (t.case, t.name) == (case, "boundaries")]
        rows = store.read_table_rows(table.written())
        assert {(row["phase"], row["step"]) for row in rows} == {("prefill", 1)}
        # A row of 512 logits takes 2048 bytes: a second one would be more than 3000.
        assert [row["name"] for row in rows if row["is_kept"]] == ["logits"]
        (file,) = [each for each in study.tensors if each.case == case]
        (tensor,) = read_kept(store.read("tensors", file.digest), where="test").values()
        assert len(tensor.data) == 2048
    assert main(["evidence", "verify", str(store.root)]) == 0
