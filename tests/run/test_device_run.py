"""A whole run over a GPU that is not there: all is as on one, but for where the tensors are."""

import contextlib
import io
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.adapters.families import layout_for
from harness.errors import ExitCode, InvalidInputError, NotEvaluableError, ResourceError
from harness.evidence.record import load_record
from harness.evidence.store import Store
from harness.measure.environment import DeviceRequest, probe_environment
from harness.measure.gpus import Gpu, GpuSystem
from harness.plan.check import check_plan
from harness.plan.load import LoadedPlan
from harness.run import derivation, processes, supervisor
from harness.run.request import RunRequest
from harness.run.runnable import require_runnable

MIB = 1 << 20
GIB = 1 << 30
GPU = Gpu(
    uuid="GPU-5d1c2f3e-0000-0000-0000-000000000001",
    memory_bytes=GIB,
    name="A GPU",
    compute_capability="9.0",
    is_mig_instance=False,
)
OTHER = replace(GPU, uuid="GPU-5d1c2f3e-0000-0000-0000-000000000002")
SYSTEM = GpuSystem(driver_version="999.1", cuda_driver_version="99.0", gpus=(GPU, OTHER))
DEVICE = {
    "kind": "cuda",
    "simulated_vram_bytes": None,
    "system_ram_limit_bytes": 512 * MIB,
    "assumed_vram_bytes": GIB,
}
ROOMY = {
    # The memory of a GPU that is not there lies in the host's pages, outside every mapping.
    "unplanned_host_bytes": 64 * MIB,
    "unplanned_device_bytes": 0,
}
STAGED: dict[str, Any] = {
    "device": DEVICE,
    "realization": ROOMY | {"staging": "whole", "staging_window_bytes": None, "stages": 2},
    "timeouts__stage_wait_s": 20,
    "timeouts__stage_start_s": 60,
    "determinism__kernel_set": "torch-reference/1",
}


@pytest.fixture
def run_on_gpu(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[LoadedPlan], tuple[int, Store]]:
    stub = tmp_path / "python"
    script = Path(__file__).with_name("fake_gpu.py")
    stub.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    stub.chmod(0o755)
    monkeypatch.setattr(
        supervisor, "probe_environment", partial(probe_environment, find_gpus=lambda: SYSTEM)
    )

    def _run(plan: LoadedPlan) -> tuple[int, Store]:
        assert plan.path is not None
        request = RunRequest(
            experiment="small",
            plan_path=plan.path,
            plan_digest=None,
            store=tmp_path / "store",
            cache=cache,
            device=DeviceRequest(kind="cuda"),
            as_json=True,
            fixture_argv=(str(stub), "-m", "harness.run.fixture"),
            producer_argv=(str(stub), "-m", "harness.run.producer"),
        )
        with contextlib.redirect_stdout(io.StringIO()):
            code = supervisor.run(request)
        return code, Store(request.store)

    return _run


@pytest.mark.slow
@pytest.mark.parametrize(
    "staging",
    # Stages, below, stage their state whole.
    [pytest.param("whole", marks=pytest.mark.long), "streaming"],
)
def test_only_where_the_tensors_are_is_found_wrong(
    run_on_gpu: Callable[[LoadedPlan], tuple[int, Store]],
    freeze_plan: Callable[..., LoadedPlan],
    staging: str,
) -> None:
    realization = ROOMY | {
        "staging": staging,
        "staging_window_bytes": None if staging == "whole" else MIB,
    }
    plan = freeze_plan(
        device=DEVICE, realization=realization, determinism__kernel_set="torch-reference/1"
    )
    assert "memory.device" in {check.id for check in plan.plan.checks.acceptance}
    code, store = run_on_gpu(plan)
    (digest,) = store.digests("verdicts")
    verdict: dict[str, Any] = store.read_verdict(digest)["predicate"]
    assert code == ExitCode.FAILED
    table = store.path("tables", verdict["differences"]["digest"])
    differences = pq.read_table(table).to_pylist()
    assert {(each["path"], each["expected"], each["got"]) for each in differences} == {
        (path, '"cuda-gpu"', '"unknown"')
        for path in (
            "$.applicability_key.device_class",
            "tables/facts/r0[name=device_class].value",
        )
    }


@pytest.mark.slow
def test_stages_on_gpus_of_their_own_are_run_by_the_path_between_devices(
    run_on_gpu: Callable[[LoadedPlan], tuple[int, Store]], freeze_plan: Callable[..., LoadedPlan]
) -> None:
    plan = freeze_plan(**STAGED)
    stages = plan.plan.stages or ()
    assert [stage.compute_unit_id for stage in stages] == ["gpu0", "gpu1"]
    code, store = run_on_gpu(plan)
    (digest,) = store.digests("verdicts")
    verdict: dict[str, Any] = store.read_verdict(digest)["predicate"]
    assert code == ExitCode.FAILED
    table = store.path("tables", verdict["differences"]["digest"])
    differences = pq.read_table(table).to_pylist()
    # Only that there is no GPU, and no NCCL, is found wrong.
    unknown, gloo = ('"cuda-gpu"', '"unknown"'), ('"nccl"', '"gloo"')
    assert {(each["path"], each["expected"], each["got"]) for each in differences} == {
        ("$.applicability_key.device_class", *unknown),
        *((f"tables/facts/r0/s{n}[name=device_class].value", *unknown) for n in range(2)),
        *((f"tables/facts/r0/s{n}[name=planes].value", *gloo) for n in range(2)),
    }
    (record,) = store.digests("records")
    loaded = load_record(record, store)
    for stage in range(2):
        (memory,) = {row["memory_resource_id"] for row in loaded.rows("device_memory", 0, stage)}
        assert memory == f"gpu{stage}.vram"


def test_stages_share_no_gpu(freeze_plan: Callable[..., LoadedPlan]) -> None:
    plan = freeze_plan(**STAGED).plan
    layout = layout_for("llama")
    require_runnable(plan, layout)
    first, second = plan.stages or ()
    shared = replace(second, compute_unit_id=first.compute_unit_id)
    with pytest.raises(NotEvaluableError, match="2 stages on gpu0"):
        require_runnable(replace(plan, stages=(first, shared)), layout)


def test_stages_are_planned_for_as_many_gpus_as_there_are(
    freeze_plan: Callable[..., LoadedPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replace(SYSTEM, gpus=(GPU,))
    monkeypatch.setattr(
        derivation,
        "planning_environment",
        lambda device, num_gpus: probe_environment(device, find_gpus=lambda: one),
    )
    here = STAGED | {"device": DEVICE | {"assumed_vram_bytes": None}}
    with pytest.raises(ResourceError, match="2 GPUs, one for each stage"):
        freeze_plan(**here)


def test_no_plan_for_a_gpu_leaves_its_memory_unchecked(
    freeze_plan: Callable[..., LoadedPlan],
) -> None:
    loaded = freeze_plan(device=DEVICE, determinism__kernel_set="triton/1")
    checks = loaded.plan.checks
    assert checks is not None
    kept = tuple(check for check in checks.acceptance if check.id != "memory.device")
    plan = replace(loaded.plan, checks=replace(checks, acceptance=kept))
    layout = layout_for("llama")
    findings = check_plan(
        replace(loaded, plan=plan), environment=None, support=layout, manifest=None
    )
    assert any("memory.device" in finding.message for finding in findings)


def test_steps_that_wait_for_the_device_are_not_recorded_on_one(
    freeze_plan: Callable[..., LoadedPlan],
) -> None:
    plan = freeze_plan(
        device=DEVICE,
        determinism__kernel_set="torch-reference/1",
        workload__decode_mode="recorded",
    ).plan
    with pytest.raises(NotEvaluableError, match="cannot be recorded on a GPU"):
        require_runnable(plan, layout_for("llama"))


def test_a_gpu_s_state_is_staged(freeze_plan: Callable[..., LoadedPlan]) -> None:
    with pytest.raises(InvalidInputError, match="settings do not fit"):
        freeze_plan(device=DEVICE, realization__staging="none")


def test_what_was_executed_is_not_listed_as_unproven(
    freeze_plan: Callable[..., LoadedPlan], small_plan: LoadedPlan
) -> None:
    there = freeze_plan(device=DEVICE, determinism__kernel_set="triton/1").plan.scope
    here = small_plan.plan.scope
    assert there is not None
    assert here is not None
    assert not any("CUDA" in text for text in there.does_not_prove)
    assert any("CUDA" in text for text in here.does_not_prove)
    assert len(there.does_not_prove) == len(here.does_not_prove)


@pytest.mark.parametrize("is_installed", [True, False])
def test_what_a_kernel_set_needs_is_asked_for_first(
    freeze_plan: Callable[..., LoadedPlan], monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    plan = freeze_plan(device=DEVICE, determinism__kernel_set="triton/1").plan
    found = object() if is_installed else None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    if is_installed:
        require_runnable(plan, layout_for("llama"))
        return
    with pytest.raises(NotEvaluableError, match="cannot be run here"):
        require_runnable(plan, layout_for("llama"))


@pytest.mark.parametrize(
    ("device", "kernel_set"),
    [(DEVICE, "torch-cpu/1"), (DEVICE, "torch-cpu-invariant/1"), (None, "triton/1")],
)
def test_a_kernel_set_of_another_device_is_not_replaced(
    freeze_plan: Callable[..., LoadedPlan], device: Any, kernel_set: str
) -> None:
    changes = {} if device is None else {"device": device}
    plan = freeze_plan(determinism__kernel_set=kernel_set, **changes).plan
    with pytest.raises(NotEvaluableError, match="does not run on this plan's compute unit"):
        require_runnable(plan, layout_for("llama"))


def test_children_get_what_determinism_on_a_gpu_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    environment = processes.child_environment(2)
    assert environment["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert environment["NVIDIA_TF32_OVERRIDE"] == "0"
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
