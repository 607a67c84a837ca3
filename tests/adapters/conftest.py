"""Tiny checkpoints, requests and sources for adapter tests, made without the harness's readers."""

import gc
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from harness.adapters.llama.layout import LlamaLayout
from harness.plan.layout import AdapterLayout, CensusEntry, LayoutRequest, TensorSpec
from harness.plan.records import Determinism, Materialization, ModelRange, Workload
from harness.realize.adapter import AdapterContext
from harness.state.arena import Memory

sys.path.insert(0, str(Path(__file__).parent))

SMALL = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 53,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


class FileSource:
    """Reads single tensors of safetensors files, and counts."""

    def __init__(self, root: Path) -> None:
        self._where = {}
        self.fetched: list[str] = []
        for path in sorted(root.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                self._where |= dict.fromkeys(file.keys(), path)

    def begin(self, key: str, target: torch.Tensor) -> Callable[[], None]:
        # As late as it may be: nobody looks at a target before.
        return partial(self._read, key, target)

    def _read(self, key: str, target: torch.Tensor) -> None:
        with safe_open(self._where[key], framework="pt") as file:
            tensor = file.get_tensor(key)
        assert tensor.dtype == target.dtype
        assert tensor.shape == target.shape
        assert target.is_contiguous()
        target.copy_(tensor)
        self.fetched.append(key)


class Bench:
    """One checkpoint folder, and everything needed to realize it by hand."""

    def __init__(self, layout: AdapterLayout, root: Path, document: Mapping[str, Any]) -> None:
        self.root = root
        self.layout = layout
        self.config = self.layout.parse_config(document)
        self.whole = ModelRange(
            start_layer=0,
            end_layer=self.config["num_layers"],
            owns_embeddings=True,
            owns_final_norm_head=True,
            model_repository="tests/tiny",
            revision="0",
        )

    def census(self) -> tuple[CensusEntry, ...]:
        entries = []
        for path in sorted(self.root.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118
                    tensor = file.get_tensor(key)
                    entries.append(
                        CensusEntry(
                            key=key,
                            dtype=str(tensor.dtype).removeprefix("torch."),
                            shape=tuple(tensor.shape),
                            file=path.name,
                            source_bytes=tensor.nbytes,
                            sha256=None,
                            digest_source="none",
                        )
                    )
        return tuple(entries)

    def request(
        self,
        *,
        dtype: str = "float32",
        staging: str = "none",
        window_bytes: int | None = None,
        prompt: tuple[int, ...] = (1, 2, 3, 4, 5),
        decode_steps: int = 4,
        max_positions: int = 64,
        kernel_set: str = "torch-cpu/1",
        spec: ModelRange | None = None,
        decode_token_ids: tuple[int, ...] | None = None,
        page_size: int | None = None,
        eviction_policy: str | None = None,
        **determinism: Any,
    ) -> LayoutRequest:
        settings = Determinism(
            dtype=dtype,
            num_threads=1,
            deterministic_algorithms=True,
            batch_invariant=False,
            kernel_set=kernel_set,
        )
        return LayoutRequest(
            config=self.config,
            spec=spec or self.whole,
            determinism=replace(settings, **determinism),
            workload=Workload(
                prompt_token_ids=prompt,
                chunk_rows=4,
                decode_steps=decode_steps,
                repetitions=1,
                fresh_realizations=1,
                sampling="greedy",
                max_positions=max_positions,
                decode_token_ids=decode_token_ids,
                page_size=page_size,
            ),
            eviction_policy=eviction_policy,
            staging=staging,
            staging_window_bytes=window_bytes,
        )

    def context(self, request: LayoutRequest, capacity_bytes: int = 1 << 28) -> AdapterContext:
        memories = {
            name: Memory(resource_id=name, kind=kind, capacity_bytes=capacity_bytes)
            for name, kind in (("host", "system-ram"), ("device", "simulated-vram"))
        }
        return AdapterContext(request=request, memories=memories, census=self.census())

    def state_of(self, form: str) -> str:
        """The one state that has a form."""
        (state,) = (
            design.id
            for design in self.layout.states(self.request())
            if self.layout.supports_representation(design.id, form)
        )
        return state

    def tensors(
        self, request: LayoutRequest, form: str, census: Sequence[CensusEntry]
    ) -> tuple[TensorSpec, ...]:
        """Tensors of the one state that has a form."""
        return self.layout.tensors(request, self.state_of(form), form, census)

    def intents(self, context: AdapterContext) -> list[Materialization]:
        """One materialization per proposed state, staging first, as a plan would have them."""
        request = context.request
        intents = []
        for design in self.layout.states(request):
            if design.staging_representation:
                intents.append(
                    self._intent(context, design.id, design.staging_representation, "host", True)
                )
            memory = "device" if design.on_device else "host"
            intents.append(self._intent(context, design.id, design.representation, memory, False))
        return intents

    def _intent(
        self, context: AdapterContext, state: str, form: str, memory: str, staging: bool
    ) -> Materialization:
        specs = self.layout.tensors(context.request, state, form, context.census)
        return Materialization(
            id=f"{state}.{form}",
            logical_state_id=state,
            representation=form,
            memory_resource_id=memory,
            expected_bytes=sum(spec.num_bytes for spec in specs),
            role="staging" if staging else "required_residency",
            requirement="required",
            persistence="transient" if staging else "persistent",
        )


@pytest.fixture(scope="session", autouse=True)
def settled_heap() -> Iterator[None]:
    """Releases collect garbage; what is imported by now needs no looking through each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products only lose time to a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_document() -> dict[str, Any]:
    """A supported configuration in the older published form."""
    return dict(SMALL)


@pytest.fixture
def make_bench(tmp_path: Path) -> Callable[..., Bench]:
    """Write a random checkpoint for a configuration and return its bench."""

    def make(dtype: torch.dtype = torch.float32, **changes: Any) -> Bench:
        document = SMALL | changes
        torch.manual_seed(7)
        made = LlamaLayout().synthetic_tensors(document)
        tensors = {key: torch.randn(t.shape).to(dtype) * 0.3 for key, t in made.items()}
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(document))
        return Bench(LlamaLayout(), tmp_path, document)

    return make


@pytest.fixture
def open_bench() -> Callable[[Path], Bench]:
    """The bench of an existing checkpoint folder."""
    return lambda root: Bench(LlamaLayout(), root, json.loads((root / "config.json").read_text()))


@pytest.fixture(scope="session")
def bench_of() -> type[Bench]:
    """The bench itself, for the layout of another family."""
    return Bench


@pytest.fixture
def file_source() -> type[FileSource]:
    return FileSource
