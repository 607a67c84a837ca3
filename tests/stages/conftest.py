"""Committed plans with their checkpoints, and chains of threads over a real group."""

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.adapters.families import layout_for
from harness.checkpoint.sources import fetch
from harness.plan.load import load_plan
from harness.plan.records import Plan
from harness.run.chain import ChainOutcome, ChainRequest, run_chain
from harness.stages.listener import LOOPBACK, listen
from harness.stages.rendezvous import Meeting, join
from harness.stages.transport import Transport

sys.path.insert(0, str(Path(__file__).parent))

FAULTY = (sys.executable, str(Path(__file__).parent / "faulty_stage.py"))


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A plan and its checkpoint."""

    path: Path
    plan: Plan
    checkpoint: Path


@pytest.fixture(scope="session")
def prepared(
    repo_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Prepared]:
    """A committed plan by name, its synthetic checkpoint made once."""
    cache = tmp_path_factory.mktemp("cache")

    def prepare(name: str) -> Prepared:
        path = repo_root / "plans" / f"{name}.json"
        plan = load_plan(path).plan
        assert plan.checkpoint is not None
        layout = layout_for(plan.adapter_data.family or "")
        folder = fetch(plan.checkpoint.source, cache, tensors=layout.synthetic_tensors)
        return Prepared(path=path, plan=plan, checkpoint=folder)

    return prepare


@pytest.fixture
def run_stages(prepared: Callable[[str], Prepared], tmp_path: Path) -> Callable[..., ChainOutcome]:
    """Run a committed plan in stages; ``faults`` plants one in a stage by its number."""

    def run(
        name: str,
        cuts: Sequence[int],
        faults: dict[int, Sequence[str]] | None = None,
        *,
        on_line: Callable[[int, str], None] = lambda stage, line: None,
        **more: Any,
    ) -> ChainOutcome:
        ready = prepared(name)
        return run_chain(
            ChainRequest(
                plan=ready.path,
                checkpoint=ready.checkpoint,
                out=tmp_path / "chain",
                cuts=tuple(cuts),
                start_timeout_s=60,
                run_timeout_s=90,
                argv={stage: (*FAULTY, *words, "--") for stage, words in (faults or {}).items()},
                **more,
            ),
            on_line,
        )

    return run


@pytest.fixture
def in_threads() -> Callable[..., list[Any]]:
    """Run ``act(transport)`` as each stage in a thread; returns results, or what was raised."""

    def run(
        num_stages: int,
        act: Callable[[Transport], Any],
        *,
        timeout_s: float = 5.0,
        own_hosts: Sequence[str] | None = None,
    ) -> list[Any]:
        listener = listen()
        port = listener.getsockname()[1]
        results: list[Any] = [None] * num_stages

        def stage_thread(stage: int) -> None:
            meeting = Meeting(
                stage=stage,
                num_stages=num_stages,
                port=port,
                own_host=LOOPBACK if own_hosts is None else own_hosts[stage],
                timeout_s=timeout_s,
                start_timeout_s=20,
            )
            try:
                results[stage] = act(join(meeting, listener if stage == 0 else None))
            except Exception as error:
                results[stage] = error

        threads = [threading.Thread(target=stage_thread, args=(n,)) for n in range(num_stages)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        return results

    return run
