"""Stages on several hosts, and by a launcher: as far as one machine can show it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosts import address
from stage_control import assert_equal, checkpoint_of

from harness.plan.load import LoadedPlan
from harness.stages.listener import address_towards, listen

SCRIPT = str(Path(__file__).parent / "hosts.py")


def require_namespaces() -> None:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip")
    tried = subprocess.run(
        ["unshare", "-rn", sys.executable, SCRIPT], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"network namespaces are not to be had here: {tried.stderr.strip()[-200:]}")


def stage_words(plan: LoadedPlan, cache: Path, lead: str) -> list[str]:
    """The command of any stage, but for its number and its store."""
    return ["stage", f"plan={plan.path}", f"cache={cache}", "--json", "--lead", lead]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_hosts"),
    [
        ("tiny_llama", 2),
        pytest.param("tiny_gemma_hybrid", 3, marks=pytest.mark.long),
        pytest.param("tiny_qwen_nvfp4", 2, marks=pytest.mark.long),
    ],
)
def test_hosts_with_addresses_of_their_own_make_one_record(
    staged_plan: Callable[..., LoadedPlan],
    trial_of: Callable[..., Any],
    cache: Path,
    tmp_path: Path,
    repo_root: Path,
    name: str,
    num_hosts: int,
) -> None:
    require_namespaces()
    plan = staged_plan(name, num_hosts, f"realization.nodes={num_hosts}", "workload.repetitions=2")
    words = stage_words(plan, cache, f"{address(0)}:29500")
    commands = [
        [sys.executable, "-m", "harness", *words, f"store={tmp_path / str(n)}", "--number", str(n)]
        for n in range(num_hosts)
    ]
    ended = subprocess.run(
        ["unshare", "-rn", sys.executable, SCRIPT, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
        cwd=repo_root,
    )
    assert ended.returncode == 0, ended.stderr
    hosts = json.loads(ended.stdout)
    assert [host["code"] for host in hosts] == [0] * num_hosts, hosts
    trial = trial_of(plan, tmp_path / "0", 0, hosts[0]["output"])
    assert_equal(trial, checkpoint_of(plan, cache))
    for number, host in enumerate(hosts[1:], 1):
        told = {"stage": number, "record": trial.record.digest, "status": "passed"}
        assert json.loads(host["output"]) == told
    assert address(0) not in json.dumps(trial.record.statement)


@pytest.mark.slow
@pytest.mark.long
def test_a_launcher_numbers_the_stages(
    staged_plan: Callable[..., LoadedPlan],
    trial_of: Callable[..., Any],
    cache: Path,
    tmp_path: Path,
    repo_root: Path,
) -> None:
    plan = staged_plan("tiny_llama", 2, "realization.nodes=2", "workload.repetitions=2")
    with listen() as free:
        words = stage_words(plan, cache, f"127.0.0.1:{free.getsockname()[1]}")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ended = subprocess.run(
        [
            *(*launcher, "--nproc-per-node", "2", "--log-dir", str(tmp_path), "--redirects", "1"),
            *("-m", "harness", *words, f"store={tmp_path / 'store'}", "--number-from", "RANK"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
        cwd=repo_root,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    assert ended.returncode == 0, ended.stderr
    (printed,) = tmp_path.glob("*/attempt_0/0/stdout.log")
    trial = trial_of(plan, tmp_path / "store", 0, printed.read_text())
    assert_equal(trial, checkpoint_of(plan, cache))


def test_a_machine_knows_its_address_towards_another() -> None:
    assert address_towards("127.0.0.1", 1) == "127.0.0.1"
