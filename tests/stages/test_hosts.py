"""Stages on several hosts, and by a launcher: as far as one machine can show it."""

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stage_control import Control
from two_hosts import FIRST, SECOND

from harness.errors import InvalidInputError
from harness.run.stage_job import StageJob, placed, write_stage_job
from harness.stages.listener import listen

SCRIPT = str(Path(__file__).parent / "two_hosts.py")
LONG = [pytest.mark.slow, pytest.mark.long]


def free_port() -> int:
    with listen() as listener:
        return int(listener.getsockname()[1])


def job_of(ready: Any, out: Path, **changes: Any) -> StageJob:
    job = StageJob(
        plan=str(ready.path),
        checkpoint=str(ready.checkpoint),
        out=str(out),
        stage=0,
        cuts=(2,),
        nonce=secrets.token_hex(16),
        port=29500,
        lead_host="127.0.0.1",
        own_host="127.0.0.1",
        timeout_s=20.0,
        start_timeout_s=60.0,
        is_armed=True,
    )
    return replace(job, **changes)


def assert_reports(ready: Any, out: Path) -> None:
    """What two stages report is what one process gives."""
    control = Control(ready.plan, ready.checkpoint, (2,))
    first, last = (
        json.loads((out / f"stage-{number}" / "stage.json").read_text()) for number in (0, 1)
    )
    assert [(s["plane"], s["logits"], s["token"]) for s in last["steps"]] == control.steps
    assert [s["token"] for s in first["steps"]] == [token for _, _, token in control.steps]


def require_namespaces() -> None:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip")
    tried = subprocess.run(
        ["unshare", "-rn", sys.executable, SCRIPT], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"network namespaces are not to be had here: {tried.stderr.strip()[-200:]}")


@pytest.mark.slow
def test_two_hosts_with_addresses_of_their_own(
    prepared: Callable[[str], Any], tmp_path: Path
) -> None:
    require_namespaces()
    ready = prepared("tiny_llama")
    first = job_of(ready, tmp_path / "stage-0", lead_host=FIRST, own_host=FIRST)
    jobs = (first, replace(first, out=str(tmp_path / "stage-1"), stage=1, own_host=SECOND))
    for job in jobs:
        write_stage_job(tmp_path / f"{job.stage}.json", job)
    ended = subprocess.run(
        ["unshare", "-rn", sys.executable, SCRIPT, *(str(tmp_path / f"{n}.json") for n in (0, 1))],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert ended.returncode == 0, ended.stderr
    assert [each["code"] for each in json.loads(ended.stdout)] == [0, 0], ended.stdout
    assert_reports(ready, tmp_path)


@pytest.mark.slow
@pytest.mark.long
def test_a_launcher_numbers_the_stages(prepared: Callable[[str], Any], tmp_path: Path) -> None:
    ready = prepared("tiny_llama")
    write_stage_job(tmp_path / "job.json", job_of(ready, tmp_path, port=free_port()))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ended = subprocess.run(
        [
            *launcher,
            *("--nproc-per-node", "2", "-m", "harness.run.stage"),
            *("--job", str(tmp_path / "job.json"), "--stage-from", "RANK"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    assert ended.returncode == 0, ended.stderr
    assert_reports(ready, tmp_path)


def test_a_stage_takes_the_number_that_a_launcher_gives() -> None:
    job = StageJob(
        plan="plan.json",
        checkpoint="checkpoint",
        out="out",
        stage=0,
        cuts=(2, 3),
        nonce="0" * 32,
        port=1,
        lead_host="192.0.2.1",
        own_host="192.0.2.1",
        timeout_s=1.0,
        start_timeout_s=1.0,
    )
    assert placed(job, None, None, {}) == job
    third = placed(job, "RANK", "192.0.2.3", {"RANK": "2"})
    assert (third.stage, third.out, third.own_host) == (2, "out/stage-2", "192.0.2.3")
    for text in ("3", "-1", "", "two", "1.0", "²"):
        with pytest.raises(InvalidInputError, match="no number of a stage"):
            placed(job, "RANK", None, {"RANK": text})
    with pytest.raises(InvalidInputError, match="no number of a stage"):
        placed(job, "RANK", None, {})
