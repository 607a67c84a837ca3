"""Realizing a tiny checkpoint of the family by hand, as the realizer does."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import qwen_small
import torch
from safetensors.torch import load_file

from harness.adapters.qwen3_5_moe.layout import COMMON, ROUTED, RUNTIME, QwenLayout
from harness.adapters.qwen3_5_moe.load import QwenAdapter
from harness.plan.layout import LayoutRequest
from harness.plan.records import Execution, Materialization

PUBLISHED = {
    COMMON: "freetoken-native-device",
    ROUTED: "freetoken-nvfp4-slot-banks",
    RUNTIME: "freetoken-block-runtime-device",
}
EXECUTION = Execution(
    id="exec.model",
    strategy_unit="qwen3_5_moe.prefill-decode/1",
    compute_unit_id="accelerator0",
    required_state=(),
)


def random_tensors(document: dict[str, Any], *, seed: int = 5) -> dict[str, torch.Tensor]:
    """Weights of a plain checkpoint whose activations are of order one."""
    torch.manual_seed(seed)
    tensors = {}
    for key, made in QwenLayout().synthetic_tensors(document).items():
        shape = made.shape
        if key.endswith("A_log"):
            tensors[key] = torch.rand(shape) * 3 - 2
        elif len(shape) == 1:
            tensors[key] = 0.2 * torch.randn(shape)
        else:
            tensors[key] = torch.randn(shape) * 0.9 / shape[-1] ** 0.5
    return tensors


class MemorySource:
    """Gives out a checkpoint's tensors, and counts."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self.fetched: list[str] = []

    def begin(self, key: str, target: torch.Tensor) -> Callable[[], None]:
        # As late as it may be: nobody looks at a target before.
        return functools.partial(self._read, key, target)

    def _read(self, key: str, target: torch.Tensor) -> None:
        tensor = self._tensors[key]
        assert (tensor.dtype, tensor.shape) == (target.dtype, target.shape)
        assert target.is_contiguous()
        target.copy_(tensor)
        self.fetched.append(key)


def opened(bench_of: Any, folder: Path, document: dict[str, Any]) -> Any:
    """The bench of a checkpoint folder that is read once, with its ``stored`` tensors."""
    bench = bench_of(QwenLayout(), folder, document)
    bench.census = functools.cache(bench.census)
    bench.stored = load_file(folder / "model.safetensors")
    return bench


def write(folder: Path, *, packed: bool = True, **changes: Any) -> dict[str, Any]:
    """Write a checkpoint, plain or in the published mixture; returns its configuration."""
    document = qwen_small.document(**changes)
    tensors = random_tensors(document)
    if packed:
        tensors = qwen_small.quantized(tensors)
        document["quantization_config"] = qwen_small.MIXTURE
    qwen_small.write(folder, tensors, document)
    return document


class Realization:
    """All of a request's materializations, allocated."""

    def __init__(self, bench: Any, request: LayoutRequest) -> None:
        self.context = bench.context(request)
        self.adapter = QwenAdapter()
        self.adapter.begin(self.context)
        self.intents: list[Materialization] = bench.intents(self.context)
        self.realized = {intent.id: self.adapter.allocate(intent) for intent in self.intents}

    def populate(self, source: Any) -> None:
        for intent in self.intents:
            self.adapter.populate(intent, source)

    def intent(self, state: str, *, staging: bool = False) -> Materialization:
        (found,) = (
            intent
            for intent in self.intents
            if intent.logical_state_id == state and (intent.role == "staging") == staging
        )
        return found

    def arena(self, state: str, *, staging: bool = False) -> Any:
        return self.realized[self.intent(state, staging=staging).id].arena

    def executor(self) -> Any:
        return self.adapter.activate(EXECUTION)


def realized(bench: Any, source: Any, request: LayoutRequest) -> Any:
    """The executor of a whole realization."""
    realization = Realization(bench, request)
    realization.populate(source)
    return realization.executor()


def choosing(request: LayoutRequest, **forms: str) -> LayoutRequest:
    """A request with forms chosen for ``common``, ``routed`` and ``runtime``."""
    names = {"common": COMMON, "routed": ROUTED, "runtime": RUNTIME}
    return replace(request, representations={names[name]: form for name, form in forms.items()})
