"""One small frozen plan for all tests of this folder, and a run of it with a faulty producer."""

import contextlib
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.evidence.store import Store
from harness.measure.environment import DeviceRequest
from harness.plan.freeze import freeze
from harness.plan.load import LoadedPlan
from harness.run.derivation import Settings, derive_settings
from harness.run.request import RunRequest
from harness.run.supervisor import run

MIB = 1 << 20
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
}


def settings(**changes: Any) -> Settings:
    """Settings of a run that takes seconds; ``section__field=value`` changes one."""
    sections: dict[str, Any] = {
        "name": "small",
        "model": {
            "family": "llama",
            "repository": "synthetic/small",
            "revision": "seed-7",
            "source": {
                "kind": "synthetic",
                "generator": "shake256/1",
                "seed": 7,
                "family": "llama",
                "dtype": "float32",
                "config": CONFIG,
            },
        },
        "device": {
            "kind": "simulated",
            "simulated_vram_bytes": 64 * MIB,
            "system_ram_limit_bytes": 512 * MIB,
        },
        "workload": {
            "prompt_text": None,
            "chat": False,
            "prompt_token_ids": [3, 77, 12, 150, 9],
            "chunk_rows": 4,
            "decode_steps": 3,
            "repetitions": 2,
            "fresh_realizations": 1,
            "sampling": "greedy",
            "max_positions": 16,
        },
        "realization": {
            "staging": "whole",
            "staging_window_bytes": None,
            "unplanned_host_bytes": MIB // 2,
        },
        "determinism": {
            "dtype": "float32",
            "num_threads": 1,
            "deterministic_algorithms": True,
            "batch_invariant": False,
            "kernel_set": "torch-cpu/1",
        },
        "timeouts": {"fixture_s": 120, "realization_s": 120, "audit_s": 60},
        "checks": None,
    }
    for name, value in changes.items():
        section, _, field = name.partition("__")
        sections[section] = sections[section] | {field: value} if field else value
    return Settings(**sections)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One finished run and what its store holds."""

    code: int
    summary: dict[str, Any]
    store: Store

    @property
    def verdict(self) -> dict[str, Any]:
        (digest,) = self.store.digests("verdicts")
        predicate: dict[str, Any] = self.store.read_verdict(digest)["predicate"]
        return predicate

    @property
    def failed(self) -> set[str]:
        return {check["id"] for check in self.verdict["checks"] if check["status"] == "failed"}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def freeze_plan(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Callable[..., LoadedPlan]:
    def _freeze(**changes: Any) -> LoadedPlan:
        folder = tmp_path_factory.mktemp("plans")
        document, manifest = derive_settings(
            settings(**changes), cache=cache, progress=lambda text, fraction=None: None
        )
        return freeze(document, folder / "plan.json", manifest=manifest)

    return _freeze


@pytest.fixture(scope="session")
def small_plan(freeze_plan: Callable[..., LoadedPlan]) -> LoadedPlan:
    return freeze_plan()


@pytest.fixture(scope="session")
def run_plan(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Callable[..., Trial]:
    """Run a plan with planted faults, into a store of its own or the given one."""

    def _run(plan: LoadedPlan, *faults: str, store: Path | None = None) -> Trial:
        assert plan.path is not None
        root = store or tmp_path_factory.mktemp("run") / "store"
        argv = (sys.executable, "-m", "harness.run.producer")
        if faults:
            argv = (
                sys.executable,
                str(Path(__file__).parent / "faulty_producer.py"),
                *faults,
                "--",
            )
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = run(
                RunRequest(
                    experiment="small",
                    plan_path=plan.path,
                    plan_digest=plan.plan.digest,
                    store=root,
                    cache=cache,
                    device=DeviceRequest(**settings().device),
                    as_json=True,
                    command=("harness", "run"),
                    producer_argv=argv,
                )
            )
        return Trial(code=code, summary=json.loads(printed.getvalue()), store=Store(root))

    return _run


@pytest.fixture(scope="session")
def passed(run_plan: Callable[..., Trial], small_plan: LoadedPlan) -> Trial:
    """One faithful run; its store must not be written to."""
    return run_plan(small_plan)
