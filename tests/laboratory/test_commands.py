"""The laboratory's commands on real runs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.evidence.store import Store
from harness.evidence.studies import study_predicate
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
    [("forked", 3), pytest.param("started", 20, marks=pytest.mark.long)],
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
