"""The lines of the GPU check, on the host; the whole of it is `make gpu-check ARGS=--dry-run`."""

import copy
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.gpu import audited, cases, invariance, models
from benchmarks.gpu.budget import Budget
from benchmarks.gpu.case import DRY, Case, Outputs
from benchmarks.gpu.device import Device, Limits
from benchmarks.gpu.table import lines, num_wrong

sys.path.insert(0, str(Path(__file__).parents[1] / "state"))

from fake_driver import FakeDriver

HOST = Device(torch.device("cpu"))
SET = "torch-cpu-invariant/1"
FOUND: dict[str, Any] = {
    "kernels": [
        {
            "name": "rms_norm, 1 rows",
            "error": 0.0,
            "is_correct": True,
            "num_repeats": 3,
            "num_different": 0,
            "seconds": 1e-5,
            "called_s": 2e-5,
            "share_of_limit": 0.5,
        }
    ],
    "invariance": [{"name": "linear, 1 rows", "invariant_s": 3e-5, "ordinary_s": 2e-5}],
    "models": [
        {
            "family": "llama",
            "prefill_s": 0.2,
            "eager_s": 0.1,
            "replayed_s": 0.05,
            "guarded_s": 0.06,
            "ordinary_prefill_s": 0.1,
            "ordinary_replayed_s": 0.04,
            "transformers_s": None,
            "not_executed": "transformers is not installed",
            "graph_equals_eager": True,
            "chunks_equal": True,
        }
    ],
    "audited": [{"experiment": "tiny_llama", "exit_code": 0, "text": "passed"}],
    "limits": {"copy_bytes_per_sec": 1e9, "matrix_flop_per_sec": 1e12},
    "device": "the host",
    "torch": "2.11.0",
    "kernel_set": SET,
    "seconds": 1.0,
    "problems": [],
    "not_executed": [],
}


def setting(budget: Budget | None = None, *, dry: bool = True) -> gpu_check.Setting:
    return gpu_check.Setting(
        device=HOST,
        kernel_set=SET,
        limits=Limits(copy_bytes_per_sec=1e9, matrix_flop_per_sec=1e9),
        budget=budget or Budget(seconds=1e6),
        dry=dry,
    )


def case_named(name: str) -> Case:
    (case,) = [each for each in cases.cases(DRY, HOST.device) if each.name == name]
    return case


@torch.inference_mode()
def test_every_case_is_correct_and_repeats() -> None:
    listed = list(cases.cases(DRY, HOST.device))
    names = [case.name for case in listed]
    assert len(set(names)) == len(names)
    found = [gpu_check.check(case, setting()) for case in listed]
    assert [each.name for each in found if not each.is_correct or each.num_different] == []
    # The op that hands a number to the host waits for it.
    assert [each.name for each in listed if each.launch is None] == ["greedy"]


@torch.inference_mode()
def test_a_wrong_kernel_and_one_that_varies_are_found() -> None:
    case, calls = case_named("embedding"), iter(range(1000))

    def varying(kernel_set: str) -> Outputs:
        noise = 0 if kernel_set == "torch-reference/1" else next(calls)
        return tuple(tensor + noise for tensor in case.run(kernel_set))

    broken = Case(name="broken", run=varying, num_bytes=1, tolerance=0.1)
    found = gpu_check.check(broken, setting())
    assert not found.is_correct or found.num_different == found.num_repeats
    assert found.num_different == found.num_repeats


@torch.inference_mode()
@pytest.mark.parametrize(("spent", "repeats"), [(0.0, 100), (90.0, 10)])
def test_repeats_are_cut_when_time_is_short_and_the_row_says_so(spent: float, repeats: int) -> None:
    moments = iter([0.0])
    budget = Budget(seconds=100.0, clock=lambda: next(moments, spent))
    found = gpu_check.check(case_named("embedding"), setting(budget, dry=False))
    assert found.num_repeats == repeats


@torch.inference_mode()
@pytest.mark.parametrize(
    ("left_out_at", "left_out", "num_models"),
    [(71.0, ["embedding"], 3), (76.0, ["embedding", "llama", "gemma", "qwen3_5_moe"], 0)],
)
def test_what_is_left_out_for_lack_of_time_is_listed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    left_out_at: float,
    left_out: list[str],
    num_models: int,
) -> None:
    peers: list[bool] = []

    def measured(*_: object, with_peer: bool, **__: object) -> models.Speed:
        peers.append(with_peer)
        return models.Speed(**FOUND["models"][0])

    monkeypatch.setattr(gpu_check.invariance, "costs", lambda *_: iter(()))
    monkeypatch.setattr(gpu_check.models, "measure", measured)
    case = case_named("embedding")
    monkeypatch.setattr(gpu_check.cases, "cases", lambda *_: iter([case]))
    monkeypatch.setattr(audited, "LEAST_SECONDS", 30.0)
    spent = {"now": 0.0}
    # What is done takes no time here.
    budget = Budget(seconds=100.0, clock=lambda: spent["now"])
    spent["now"] = left_out_at
    found = gpu_check.Look(lambda so_far: None, setting(budget)).run(tmp_path)
    named = [each.partition(":")[0] for each in found["not_executed"]]
    assert [name for name in named if name not in audited.EXPERIMENTS] == left_out
    assert peers == [False] * num_models
    assert set(audited.EXPERIMENTS) <= set(named)
    assert num_wrong(found) == 0
    assert "not executed: tiny_llama" in "\n".join(lines(found))


def test_work_is_timed_between_events_behind_what_fills_the_caches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            order.append("event")

        def elapsed_time(self, other: "Event") -> float:
            return 2.5

    class Properties:
        L2_cache_size = 1 << 27

    device = Device(torch.device("cpu"))
    device._driver = FakeDriver()  # type: ignore[assignment]
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    seconds = device.launch_seconds(lambda: order.append("work"), 2)
    assert seconds == 2.5e-3
    # Once by itself, so that its code is loaded before it is recorded.
    assert order == ["work", *["event", "work", "event"] * 3]
    assert device._driver.calls == ["record", "synchronize"]
    assert device._to_flush().nbytes == 2 << 27


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma", "qwen3_5_moe"])
@torch.inference_mode()
def test_each_family_replays_what_it_ran(family: str) -> None:
    speed = models.measure(family, HOST, SET, dry=True, with_peer=family == "llama")
    assert speed.graph_equals_eager
    assert speed.chunks_equal
    assert min(speed.eager_s, speed.replayed_s, speed.guarded_s, speed.prefill_s) > 0
    assert min(speed.ordinary_replayed_s, speed.ordinary_prefill_s) > 0
    assert (speed.transformers_s is None) == (speed.not_executed is not None)


@torch.inference_mode()
def test_ordinary_products_are_those_of_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    ordinary = invariance._ordinary_linear

    def counted(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append(len(x))
        return ordinary(x, *rest)

    monkeypatch.setattr(invariance, "_ordinary_linear", counted)
    document = models.documents(dry=True)["llama"]
    request = models.make_request("llama", document, SET, 8, 3)
    made = models.MadeModel("llama", request, HOST)
    made.eager().step(request.workload.prompt_token_ids, 0, want_logits=True)
    assert calls == []
    with invariance.ordinary_products(SET):
        executor = made.eager()
    executor.step(request.workload.prompt_token_ids, 0, want_logits=True)
    # Four products a layer over all rows, and the head's over the last.
    assert calls == [*[8] * 4 * document["num_hidden_layers"], 1]


def test_a_row_that_cannot_be_had_loses_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(gpu_check, "check", broken)
    monkeypatch.setattr(gpu_check.models, "documents", lambda dry: {})
    monkeypatch.setattr(gpu_check.audited, "EXPERIMENTS", ())
    saved: list[int] = []
    look = gpu_check.Look(lambda so_far: saved.append(len(so_far["problems"])), setting())
    found = look.run(tmp_path)
    assert found["kernels"] == []
    assert len(found["invariance"]) == 6
    assert saved == sorted(saved)
    assert saved[-1] == len(found["problems"]) > 30
    assert "rms_norm, 1 rows: RuntimeError: no such thing" in found["problems"]
    assert num_wrong(found) == len(found["problems"])


def test_a_device_that_has_failed_loses_no_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail() -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    def cases_until_it_fails(*_: object) -> Iterator[Case]:
        yield embedding
        fail()

    embedding = case_named("embedding")
    monkeypatch.setattr(gpu_check.cases, "cases", cases_until_it_fails)
    monkeypatch.setattr(gpu_check.models, "documents", lambda dry: {})
    monkeypatch.setattr(HOST, "give_back", fail)
    row = audited.Audited(experiment="tiny_llama", exit_code=0, text="passed")
    monkeypatch.setattr(gpu_check.audited, "run", lambda name, **_: row)
    found = gpu_check.Look(lambda so_far: None, setting()).run(tmp_path)
    assert [each["name"] for each in found["kernels"]] == ["embedding"]
    assert len(found["audited"]) == len(audited.EXPERIMENTS)
    assert len(found["problems"]) == 3
    assert all("illegal memory access" in each for each in found["problems"])


def test_records_are_packed_without_what_was_fetched(tmp_path: Path) -> None:
    for name in ("cache/large", "store/records/one", "plan.json"):
        path = tmp_path / "made" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    audited.keep(tmp_path / "made", tmp_path / "packed.tar.gz")
    with tarfile.open(tmp_path / "packed.tar.gz") as packed:
        files = [each.name for each in packed.getmembers() if each.isfile()]
    assert files == ["plan.json", "store/records/one"]


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(audited, "LEAST_SECONDS", 0.1)
    found = audited.run("tiny_llama", tmp_path, Budget(seconds=0.5), dry=True)
    assert found.exit_code != 0
    assert "no time was left" in found.text


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("kernels", "is_correct", False),
        ("kernels", "num_different", 1),
        ("models", "graph_equals_eager", False),
        ("models", "chunks_equal", False),
        ("audited", "exit_code", 3),
    ],
)
def test_whatever_is_wrong_is_counted_and_marked(part: str, field: str, value: object) -> None:
    assert num_wrong(FOUND) == 0
    assert "WRONG" not in "\n".join(lines(FOUND))
    broken = copy.deepcopy(FOUND)
    broken[part][0][field] = value
    assert num_wrong(broken) == 1
    assert "\n".join(lines(broken)).count("WRONG") == 1
