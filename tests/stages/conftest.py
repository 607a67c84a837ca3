"""Committed plans with their checkpoints, and chains of threads over a real group."""

import contextlib
import io
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.cli.derive import settings_of
from harness.errors import HarnessError
from harness.evidence.record import LoadedRecord, load_record
from harness.evidence.store import Store
from harness.experiment import compose_experiment
from harness.measure.environment import DeviceRequest
from harness.plan.freeze import freeze
from harness.plan.load import LoadedPlan
from harness.run import outpost
from harness.run.derivation import derive_settings
from harness.run.request import Address, RunRequest
from harness.run.supervisor import run
from harness.stages.listener import LOOPBACK, listen
from harness.stages.rendezvous import Meeting, join
from harness.stages.transport import Transport

sys.path.insert(0, str(Path(__file__).parent))

DEVICE = DeviceRequest(
    kind="simulated", simulated_vram_bytes=64 << 20, system_ram_limit_bytes=512 << 20
)


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
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = run(
                RunRequest(
                    experiment="staged",
                    plan_path=plan.path,
                    plan_digest=plan.plan.digest,
                    store=store,
                    cache=cache,
                    device=DEVICE,
                    as_json=True,
                    command=("harness", "run"),
                    producer_argv=faulty(faults),
                    **more,
                )
            )
        return finished(plan, store, code, printed.getvalue())

    return run_plan


@dataclass(frozen=True, kw_only=True)
class Machines:
    """One run on several machines, as threads of this process play them."""

    trial: Trial
    """Of the first machine."""
    others: list[Any]
    """What each other machine was told at the end, or what it raised."""


@pytest.fixture(scope="session")
def run_machines(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Machines]:
    """Run a frozen plan with a machine for each stage; ``faults`` as in :func:`run_staged`.

    ``plans`` gives single machines another plan, or ``None`` for one that does not come;
    ``courier_faults`` plants a fault in the courier of a machine.
    """

    def run_plan(
        plan: LoadedPlan,
        faults: dict[int, Sequence[str]] | None = None,
        *,
        plans: dict[int, LoadedPlan | None] | None = None,
        courier_faults: dict[int, str] | None = None,
        **more: Any,
    ) -> Machines:
        root, stages = tmp_path_factory.mktemp("machines"), plan.plan.stages or ()
        with listen() as free:
            lead = Address(host=LOOPBACK, port=free.getsockname()[1])

        def request(number: int) -> RunRequest:
            own = (plans or {}).get(number, plan)
            assert own is not None
            assert own.path is not None
            return RunRequest(
                experiment="machines",
                plan_path=own.path,
                plan_digest=own.plan.digest,
                store=root / f"store-{number}",
                cache=cache,
                device=DEVICE,
                as_json=True,
                command=("harness", "stage"),
                producer_argv=faulty(faults),
                courier_argv=courier(number, courier_faults or {}),
                lead=lead,
                **more,
            )

        results: list[Any] = [None] * len(stages)

        def other(number: int) -> None:
            try:
                results[number] = outpost.serve(request(number), number)
            except HarnessError as error:
                results[number] = error

        coming = [n for n in range(1, len(stages)) if (plans or {}).get(n, plan) is not None]
        threads = [threading.Thread(target=other, args=(number,)) for number in coming]
        printed = io.StringIO()
        for thread in threads:
            thread.start()
        with contextlib.redirect_stdout(printed):
            code = run(request(0))
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        trial = finished(plan, root / "store-0", code, printed.getvalue())
        return Machines(trial=trial, others=results[1:])

    return run_plan


@pytest.fixture(scope="session")
def trial_of() -> Callable[[LoadedPlan, Path, int, str], Trial]:
    """A finished run, from what it printed and left."""
    return finished


def finished(plan: LoadedPlan, store: Path, code: int, printed: str) -> Trial:
    """A finished run, from what it printed and left in its store."""
    (record,) = Store(store).digests("records")
    (verdict,) = Store(store).digests("verdicts")
    return Trial(
        code=code,
        plan=plan,
        summary=json.loads(printed),
        record=load_record(record, Store(store)),
        verdict=Store(store).read_verdict(verdict)["predicate"],
    )


def faulty(faults: dict[int, Sequence[str]] | None) -> tuple[str, ...]:
    """The producer's command, with faults planted in stages by their numbers."""
    if faults is None:
        return (sys.executable, "-m", "harness.run.producer")
    script = str(Path(__file__).parent / "faulty_staged.py")
    return (sys.executable, script, json.dumps(faults), "--")


def courier(number: int, faults: dict[int, str]) -> tuple[str, ...]:
    """A machine's courier, with a fault planted where there is one."""
    if number not in faults:
        return (sys.executable, "-m", "harness.run.courier")
    script = str(Path(__file__).parent / "faulty_courier.py")
    return (sys.executable, script, faults[number], "--")


@pytest.fixture(scope="session")
def passed(staged_plan: Callable[..., LoadedPlan], run_staged: Callable[..., Trial]) -> Trial:
    """One faithful run in two stages; its store must not be written to."""
    return run_staged(staged_plan("tiny_llama", 2))


@pytest.fixture(autouse=True)
def threads_of_torch() -> Iterator[None]:
    """A control in this process has as many threads as its plan says."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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
