"""The lines of the GPU check, on the host; the whole of it is `make gpu-check ARGS=--dry-run`."""

import copy
from typing import Any

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.gpu import cases, models
from benchmarks.gpu.device import Device, Limits

HOST = Device(torch.device("cpu"))
LIMITS = Limits(copy_bytes_per_sec=1e9, matrix_flop_per_sec=1e9)
FOUND: dict[str, Any] = {
    "kernels": [
        {
            "name": "rms_norm, 1 rows",
            "error": 0.0,
            "is_correct": True,
            "num_repeats": 3,
            "num_different": 0,
            "seconds": 1e-5,
            "share_of_limit": 0.5,
        }
    ],
    "models": [
        {
            "family": "llama",
            "eager_s": 0.1,
            "replayed_s": 0.05,
            "guarded_s": 0.06,
            "transformers_s": None,
            "not_executed": "transformers is not installed",
            "graph_equals_eager": True,
        }
    ],
    "audited": [{"experiment": "tiny_llama", "exit_code": 0, "text": "passed"}],
    "limits": {"copy_bytes_per_sec": 1e9, "matrix_flop_per_sec": 1e12},
    "device": "the host",
    "batch_invariance": "not executed",
    "seconds": 1.0,
    "problems": [],
}


@torch.inference_mode()
def test_every_case_is_correct_and_repeats() -> None:
    listed = list(cases.cases(cases.DRY, HOST.device))
    names = [case.name for case in listed]
    assert len(set(names)) == len(names)
    found = [gpu_check.check(case, HOST, "torch-cpu/1", LIMITS, dry=True) for case in listed]
    assert [each.name for each in found if not each.is_correct or each.num_different] == []


@torch.inference_mode()
def test_a_wrong_kernel_and_one_that_varies_are_found() -> None:
    (case,) = [each for each in cases.cases(cases.DRY, HOST.device) if each.name == "embedding"]
    calls = iter(range(1000))

    def varying(kernel_set: str) -> cases.Outputs:
        noise = 0 if kernel_set == "torch-reference/1" else next(calls)
        return tuple(tensor + noise for tensor in case.run(kernel_set))

    broken = cases.Case(name="broken", run=varying, num_bytes=1, tolerance=0.1)
    found = gpu_check.check(broken, HOST, "torch-cpu/1", LIMITS, dry=True)
    assert not found.is_correct or found.num_different == found.num_repeats
    assert found.num_different == found.num_repeats


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma", "qwen3_5_moe"])
@torch.inference_mode()
def test_each_family_replays_what_it_ran(family: str) -> None:
    speed = models.measure(family, HOST, "torch-cpu/1", dry=True)
    assert speed.graph_equals_eager
    assert min(speed.eager_s, speed.replayed_s, speed.guarded_s) > 0
    assert (speed.transformers_s is None) == (speed.not_executed is not None)


def test_a_row_that_cannot_be_had_loses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(gpu_check, "check", broken)
    monkeypatch.setattr(gpu_check.models, "documents", lambda dry: {})
    monkeypatch.setattr(gpu_check.audited, "EXPERIMENTS", ())
    monkeypatch.setattr(gpu_check, "apply_determinism", lambda settings: None)
    saved: list[int] = []
    found = gpu_check.look(lambda so_far: saved.append(len(so_far["problems"])), dry=True)
    assert found["kernels"] == []
    assert saved == list(range(1, len(found["problems"]) + 1))
    assert "rms_norm, 1 rows: RuntimeError: no such thing" in found["problems"]
    assert gpu_check.num_wrong(found) == len(found["problems"])


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("kernels", "is_correct", False),
        ("kernels", "num_different", 1),
        ("models", "graph_equals_eager", False),
        ("audited", "exit_code", 3),
    ],
)
def test_whatever_is_wrong_is_counted_and_marked(part: str, field: str, value: object) -> None:
    assert gpu_check.num_wrong(FOUND) == 0
    assert "WRONG" not in "\n".join(gpu_check.lines(FOUND))
    broken = copy.deepcopy(FOUND)
    broken[part][0][field] = value
    assert gpu_check.num_wrong(broken) == 1
    assert "\n".join(gpu_check.lines(broken)).count("WRONG") == 1
