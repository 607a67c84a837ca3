"""A chain in which one stage goes wrong ends in bounded time, says which and why, leaves nobody."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stage_processes import processes_of

from harness.errors import InvalidInputError, NotEvaluableError
from harness.run.chain import ChainRequest, run_chain
from harness.run.child import PEER_LOST
from harness.run.stage_job import StageJob, read_stage_job, write_stage_job
from harness.stages.listener import listen

JOB = StageJob(
    plan="plan.json",
    checkpoint="checkpoint",
    out="out",
    stage=1,
    cuts=(2,),
    nonce="0" * 32,
    port=29500,
    lead_host="127.0.0.1",
    own_host="127.0.0.1",
    timeout_s=2.0,
    start_timeout_s=60.5,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cuts", "faulty", "fault", "reason"),
    [
        ((2,), 1, "killed-in-load", "killed by SIGKILL"),
        ((2,), 1, "killed-in-prefill", "killed by SIGKILL"),
        ((2,), 0, "killed-in-decode", "killed by SIGKILL"),
        # Whole runs in stages hang in CI as well.
        pytest.param((2, 3), 1, "hangs-in-decode", "had not ended", marks=pytest.mark.long),
    ],
)
def test_a_lost_stage_ends_the_chain_and_is_named(
    run_stages: Callable[..., Any],
    tmp_path: Path,
    cuts: tuple[int, ...],
    faulty: int,
    fault: str,
    reason: str,
) -> None:
    # A lost connection is noticed at once; only what hangs has to be waited for.
    timeout_s = 3 if "hangs" in fault else 20
    outcome = run_stages("tiny_llama", cuts, {faulty: (fault,)}, timeout_s=timeout_s)
    assert outcome.fault is not None
    assert (outcome.fault.stage, outcome.reports) == (faulty, ())
    assert reason in outcome.fault.reason
    # Long before the bound of the whole run, which is what ends a chain otherwise.
    assert outcome.outcomes[faulty].duration_ns < 60e9
    others = [each for n, each in enumerate(outcome.outcomes) if n != faulty]
    # Each other stage noticed by itself, and says whom it lost.
    assert [each.exit_code for each in others] == [PEER_LOST] * len(others)
    assert all("did not" in (each.message or "") for each in others)
    assert processes_of(tmp_path) == []
    assert not list(tmp_path.glob("chain/*/stage.json"))


@pytest.mark.slow
def test_stages_of_other_kinds_are_refused_before_anything_is_loaded(
    run_stages: Callable[..., Any], tmp_path: Path, repo_root: Path
) -> None:
    lines: list[str] = []
    faults = {
        1: ("other-plan", str(repo_root / "plans" / "tiny_llama_streaming.json")),
        2: ("other-version",),
        3: ("other-dtype",),
    }
    outcome = run_stages(
        "tiny_llama", (1, 2, 3), faults, on_line=lambda _, line: lines.append(line)
    )
    assert outcome.fault is not None
    for named in (
        "stage 1: plan_digest: expected sha256:",
        "stage 2: version of harness: expected sha256:",
        "stage 3: dtype: expected float32, got bfloat16",
    ):
        assert all(named in (each.message or "") for each in outcome.outcomes)
    assert [each.exit_code for each in outcome.outcomes] == [InvalidInputError.exit_code] * 4
    assert lines == ["meeting"] * 4
    assert processes_of(tmp_path) == []


@pytest.mark.slow
@pytest.mark.long
def test_stages_end_with_whoever_started_them(
    prepared: Callable[[str], Any], tmp_path: Path
) -> None:
    ready = prepared("tiny_llama")
    faulty = str(Path(__file__).parent / "faulty_stage.py")
    program = (
        "import sys; from pathlib import Path; from harness.run.chain import *\n"
        f"argv = {{1: (sys.executable, {faulty!r}, 'hangs-in-decode', '--')}}\n"
        f"run_chain(ChainRequest(plan=Path({str(ready.path)!r}),"
        f" checkpoint=Path({str(ready.checkpoint)!r}), out=Path({str(tmp_path / 'chain')!r}),"
        " cuts=(2,), argv=argv), lambda stage, line: print(line, flush=True))"
    )
    starter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    with starter.stdout as lines:
        while lines.readline().strip() != "prefill and decode":
            assert starter.poll() is None
        assert len(processes_of(tmp_path)) >= 2
        starter.send_signal(signal.SIGKILL)
        starter.wait(10)
    deadline = time.monotonic() + 10
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(tmp_path) == []


@pytest.mark.slow
@pytest.mark.long
def test_a_second_first_stage_is_refused_and_changes_nothing(
    run_stages: Callable[..., Any], tmp_path: Path
) -> None:
    """It is started when the chain's own one waits for the others, and they wait for its end."""
    ended = tmp_path / "ended"
    seconds: list[subprocess.CompletedProcess[str]] = []

    def on_line(stage: int, line: str) -> None:
        if (stage, line) == (0, "meeting"):
            job = tmp_path / "chain" / "stage-0" / "job.json"
            seconds.append(
                subprocess.run(
                    [sys.executable, "-m", "harness.run.stage", "--job", str(job)],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=50,
                )
            )
            ended.touch()

    outcome = run_stages("tiny_llama", (2,), {1: ("late", str(ended))}, on_line=on_line)
    assert outcome.fault is None
    (second,) = seconds
    assert second.returncode == NotEvaluableError.exit_code
    assert "the first stage cannot listen" in second.stderr
    assert "stage 0" in second.stderr


def test_no_stage_starts_where_none_could_meet(
    prepared: Callable[[str], Any], tmp_path: Path
) -> None:
    ready = prepared("tiny_llama")

    def run(cuts: tuple[int, ...], port: int) -> None:
        run_chain(
            ChainRequest(
                plan=ready.path,
                checkpoint=ready.checkpoint,
                out=tmp_path / "chain",
                cuts=cuts,
                port=port,
            )
        )

    with (
        listen() as listener,
        pytest.raises(NotEvaluableError, match="cannot listen"),
    ):
        run((2,), listener.getsockname()[1])
    for cuts in ((0,), (4,), (2, 2), (3, 1), (-1,)):
        with pytest.raises(InvalidInputError, match="cannot be cut"):
            run(cuts, 0)
    assert not list(tmp_path.glob("chain/*"))
    (tmp_path / "chain" / "stage-0").mkdir()
    with pytest.raises(InvalidInputError, match="holds something"):
        run((2,), 0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"stage": 2}, "stage: not one"),
        ({"stage": True}, "stage: of another type"),
        ({"cuts": ["1"]}, "cuts: no integers"),
        ({"nonce": "f" * 31 + "g"}, "nonce"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"start_timeout_s": 1}, "timeout_s"),
        ({"port": 65536}, "port"),
        ({"more": 1}, "more: absent or unknown"),
    ],
)
def test_a_malformed_job_is_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    job = JOB
    write_stage_job(tmp_path / "good.json", job)
    assert read_stage_job(tmp_path / "good.json") == job
    document = json.loads((tmp_path / "good.json").read_text())
    (tmp_path / "bad.json").write_text(json.dumps(document | change))
    with pytest.raises(InvalidInputError, match="not a stage's job") as refused:
        read_stage_job(tmp_path / "bad.json")
    assert named in str(refused.value)


def test_the_job_in_the_document_is_one(repo_root: Path, tmp_path: Path) -> None:
    text = (repo_root / "docs" / "stages.md").read_text()
    (tmp_path / "job.json").write_text(text.partition("```json\n")[2].partition("```")[0])
    job = read_stage_job(tmp_path / "job.json")
    assert (job.stage, job.num_stages, job.cuts) == (1, 3, (16, 32))
