"""Our own worker realizes a committed plan, and what it times includes working sentinels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import contenders
from benchmarks.figures import round_of
from benchmarks.worker import Worker, WorkerError
from harness.adapters.families import layout_for
from harness.checkpoint.sources import fetch
from harness.plan.load import load_plan

pytestmark = pytest.mark.slow


@pytest.fixture
def worker(
    repo_root: Path, tmp_path: Path
) -> Iterator[tuple[Worker, dict[str, Any], list[int], int]]:
    """Loaded; its answer, and the workload of its plan."""
    plan = repo_root / "plans" / "tiny_llama.json"
    loaded = load_plan(plan).plan
    assert loaded.checkpoint is not None
    assert loaded.workload is not None
    folder = fetch(
        loaded.checkpoint.source,
        tmp_path,
        progress=lambda text, done=None: None,
        tensors=layout_for("llama").synthetic_tensors,
    )
    ours = contenders.harness(plan, folder, 2)
    running = Worker(ours.argv, ours.environment)
    answer = running.ask("load", 120, **ours.load)
    workload = loaded.workload
    yield running, answer, list(workload.prompt_token_ids), workload.decode_steps
    running.close()


def test_a_plan_is_loaded_and_runs_alike_with_sentinels_and_without(
    worker: tuple[Worker, dict[str, Any], list[int], int],
) -> None:
    running, answer, prompt, steps = worker
    assert 0 < answer["source_bytes"] < answer["resident_bytes"]  # and a table
    assert answer["load_s"] > 0
    rounds = {}
    for sentinels in (True, False):
        found = running.ask("generate", 120, prompt=prompt, decode_steps=steps, sentinels=sentinels)
        rounds[sentinels] = round_of(found, len(prompt), steps)
        assert found.get("different") == (0 if sentinels else None)
    assert rounds[True].tokens == rounds[False].tokens
    with pytest.raises(WorkerError, match="another workload"):
        running.ask("generate", 120, prompt=prompt[1:], decode_steps=steps, sentinels=True)
