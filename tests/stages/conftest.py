"""Committed plans with their checkpoints, and chains of threads over a real group."""

import contextlib
import io
import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.adapters.families import layout_for
from harness.checkpoint.sources import fetch
from harness.cli.derive import settings_of
from harness.evidence.record import LoadedRecord, load_record
from harness.evidence.store import Store
from harness.experiment import compose_experiment
from harness.measure.environment import DeviceRequest
from harness.plan.freeze import freeze
from harness.plan.load import LoadedPlan, load_plan
from harness.plan.records import Plan
from harness.run.chain import ChainOutcome, ChainRequest, run_chain
from harness.run.derivation import derive_settings
from harness.run.request import RunRequest
from harness.run.supervisor import run
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


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One finished run of a plan with stages, and what its store holds."""

    code: int
    plan: LoadedPlan
    summary: dict[str, Any]
    record: LoadedRecord
    verdict: dict[str, Any]

    @property
    def failed(self) -> set[str]:
        """Checks that failed."""
        return {check["id"] for check in self.verdict["checks"] if check["status"] == "failed"}

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """How each child ended, by its name."""
        return {row["child"]: row for row in self.record.rows("trials")}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where checkpoints and fixtures are kept for all tests of this folder."""
    return tmp_path_factory.mktemp("cache")


SHORT = (
    "workload.fresh_realizations=1",
    "workload.decode_steps=3",
    "determinism.num_threads=1",
    "timeouts.stage_wait_s=20",
    "timeouts.stage_start_s=60",
)
"""A run that takes seconds."""


@pytest.fixture(scope="session")
def staged_plan(
    repo_root: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., LoadedPlan]:
    """A short run of a shipped experiment in some stages, frozen."""

    def derive(name: str, num_stages: int, *overrides: str) -> LoadedPlan:
        config = compose_experiment(
            [f"experiment={name}", f"realization.stages={num_stages}", *SHORT, *overrides],
            config_dir=repo_root / "experiments",
        )
        document, manifest = derive_settings(
            settings_of(config), cache=cache, progress=lambda text, fraction=None: None
        )
        path = tmp_path_factory.mktemp("plans") / "plan.json"
        return freeze(document, path, manifest=manifest)

    return derive


@pytest.fixture(scope="session")
def run_staged(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trial]:
    """Run a frozen plan; ``faults`` plants one in the producer of a stage by its number."""

    def run_plan(
        plan: LoadedPlan, faults: dict[int, Sequence[str]] | None = None, **more: Any
    ) -> Trial:
        assert plan.path is not None
        store = tmp_path_factory.mktemp("run") / "store"
        planted = () if faults is None else (json.dumps(faults), "--")
        script = str(Path(__file__).parent / "faulty_staged.py")
        argv = (sys.executable, script, *planted)
        faithful = (sys.executable, "-m", "harness.run.producer")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = run(
                RunRequest(
                    experiment="staged",
                    plan_path=plan.path,
                    plan_digest=plan.plan.digest,
                    store=store,
                    cache=cache,
                    device=DeviceRequest(
                        kind="simulated",
                        simulated_vram_bytes=64 << 20,
                        system_ram_limit_bytes=512 << 20,
                    ),
                    as_json=True,
                    command=("harness", "run"),
                    producer_argv=faithful if faults is None else argv,
                    **more,
                )
            )
        (record,) = Store(store).digests("records")
        (verdict,) = Store(store).digests("verdicts")
        return Trial(
            code=code,
            plan=plan,
            summary=json.loads(printed.getvalue()),
            record=load_record(record, Store(store)),
            verdict=Store(store).read_verdict(verdict)["predicate"],
        )

    return run_plan


@pytest.fixture(scope="session")
def passed(staged_plan: Callable[..., LoadedPlan], run_staged: Callable[..., Trial]) -> Trial:
    """One faithful run in two stages; its store must not be written to."""
    return run_staged(staged_plan("tiny_llama", 2))


@pytest.fixture(scope="session")
def prepared(repo_root: Path, cache: Path) -> Callable[[str], Prepared]:
    """A committed plan by name, its synthetic checkpoint made once."""

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
