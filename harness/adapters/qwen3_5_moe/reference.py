"""The family's reference: an ordinary load and the same forward code over it.

Shares nothing with the realized path's loading: files are loaded whole, parts concatenated, scales
repeated and packed weights dequantized in plain memory, by a recipe of its own. Rotary tables come
from the one formula there is: their digests show corruption, not a wrong formula; that is shown
against another implementation in the tests.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import kernels.nvfp4.api as nvfp4
from harness.adapters.common.ordinary import OrdinaryReference, load_files, placed
from harness.adapters.qwen3_5_moe.config import FULL, QwenConfig, read_config
from harness.adapters.qwen3_5_moe.layout import (
    COMMON,
    ROPE,
    ROPE_TABLE,
    ROUTED,
    RUNTIME,
    QwenLayout,
)
from harness.adapters.qwen3_5_moe.model import QwenExecutor
from harness.adapters.qwen3_5_moe.rope import rope_tables
from harness.errors import CheckpointError
from harness.plan.layout import LayoutRequest
from harness.plan.records import ModelRange
from harness.state.advancing import AdvancingSession
from kernels.nvfp4.records import NvFp4Rows

Tensors = dict[str, torch.Tensor]
_PUBLISHED_PREFIX = "freetoken-"
_DEQUANTIZED_SUFFIX = "-dequantized"


class QwenReference:
    """The family's maker of references."""

    def ordinary(self, root: Path, request: LayoutRequest) -> OrdinaryReference:
        """Load the checkpoint under ``root`` and bind an executor with an empty state.

        Raises:
            CheckpointError: When a tensor is absent, or is in two files.
        """
        layout, config, spec = QwenLayout(), read_config(request.config), request.spec
        dtype = getattr(torch, request.determinism.dtype)
        residents = load_ordinary(root, request)
        tables = {}
        if ROPE in layout.derived_in(request):
            tables = placed(lambda: rope_tables(config, request.workload.max_positions))
        state = {
            t.name: torch.zeros(t.shape, dtype=getattr(torch, t.dtype))
            for t in layout.mutable_tensors(request, request.determinism.dtype)
        }
        chosen = layout.chosen_residents(request)
        executor = QwenExecutor(
            config=config,
            spec=spec,
            kernel_set=request.determinism.kernel_set,
            dtype=dtype,
            planned=[tensor for tensors in chosen.values() for tensor in tensors],
            residents={name: t for tensors in residents.values() for name, t in tensors.items()},
            tables=tables or None,
            session=AdvancingSession(
                logical_state_id=RUNTIME,
                epoch=1,
                tensors=state,
                capacity_positions=request.workload.max_positions,
            ),
        )
        return OrdinaryReference(
            executor=executor, residents={**residents, **({ROPE_TABLE: tables} if tables else {})}
        )


def load_ordinary(root: Path, request: LayoutRequest) -> dict[str, Tensors]:
    """Load every safetensors file under ``root`` whole and make what the range needs of it.

    Returns:
        The tensors of both immutable states, by name, under the form that was chosen for each.

    Raises:
        CheckpointError: When a tensor is absent, or is in two files.
    """
    layout, config, spec = QwenLayout(), read_config(request.config), request.spec
    dtype = getattr(torch, request.determinism.dtype)
    loaded = load_files(root)
    needed = layout.tensor_keys(request.config, spec, request.representations)
    absent = sorted(set(needed) - loaded.keys())
    if absent:
        raise CheckpointError("tensors are absent", got=", ".join(absent))
    form, chosen = layout.chosen_form(request, COMMON), layout.chosen_form(request, ROUTED)
    # Each tensor is taken out of what was loaded, so that its memory can go.
    dequantize = nvfp4.select_dequantize(request.determinism.kernel_set)
    routed = dict(_routed(_Making(loaded, chosen, dtype, dequantize), config, spec))
    common = dict(_common(_Making(loaded, form, dtype, dequantize), config, spec))
    return {form: common, chosen: routed}


class _Making:
    """Makes the tensors of one state in one form."""

    def __init__(
        self, loaded: Tensors, form: str, dtype: torch.dtype, dequantize: nvfp4.Dequantize
    ) -> None:
        self.is_published = form.startswith(_PUBLISHED_PREFIX)
        self._is_dequantized = form.endswith(_DEQUANTIZED_SUFFIX)
        self._loaded = loaded
        self._dtype = dtype
        self._dequantize = dequantize

    def plain(self, *keys: str) -> torch.Tensor:
        """Rows of ordinary tensors, one after the other."""
        return torch.cat([self._loaded.pop(key).to(self._dtype) for key in keys])

    def float32(self, key: str) -> torch.Tensor:
        """One tensor in float32."""
        return self._loaded.pop(key).float()

    def projection(self, name: str, modules: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """What a projection is made of, by name."""
        if f"{modules[0]}.weight_scale_2" in self._loaded:
            yield from self._packed(name, modules)
        elif f"{modules[0]}.weight_scale" in self._loaded:
            yield from self._scaled(name, modules)
        else:
            yield name, self.plain(*(f"{module}.weight" for module in modules))

    def _scaled(self, name: str, modules: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
        weights = [self._loaded.pop(f"{module}.weight") for module in modules]
        scales = [self._loaded.pop(f"{module}.weight_scale") for module in modules]
        if self._is_dequantized:
            parts = [w.float() * s for w, s in zip(weights, scales, strict=True)]
            yield name, torch.cat([part.to(self._dtype) for part in parts])
            return
        yield name, _joined(weights)
        rows = [s.expand(len(w)) for w, s in zip(weights, scales, strict=True)]
        yield f"{name}_scale", torch.cat(rows)

    def _packed(self, name: str, modules: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
        parts = []
        for module in modules:
            codes = self._loaded.pop(f"{module}.weight")
            scale = self._loaded.pop(f"{module}.weight_scale_2")
            parts.append(
                NvFp4Rows(
                    codes=codes,
                    block_scales=self._loaded.pop(f"{module}.weight_scale"),
                    row_scales=scale.expand(len(codes)).contiguous(),
                )
            )
        if self._is_dequantized:
            yield name, torch.cat([self._dequantize(part, self._dtype) for part in parts])
            return
        yield f"{name}_codes", torch.cat([part.codes for part in parts])
        yield f"{name}_block_scales", _joined([part.block_scales for part in parts])
        rows = torch.cat([part.row_scales for part in parts])
        yield f"{name}_row_scales", rows.half() if self.is_published else rows


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    joined = torch.cat([part.view(torch.uint8) for part in parts])
    return joined.view(parts[0].dtype)


def _mlp(making: _Making, name: str, blocks: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
    gate_up = [f"{block}.{part}_proj" for block in blocks for part in ("gate", "up")]
    yield from making.projection(f"{name}.gate_up", gate_up)
    yield from making.projection(f"{name}.down", [f"{block}.down_proj" for block in blocks])


def _routed(
    making: _Making, config: QwenConfig, spec: ModelRange
) -> Iterator[tuple[str, torch.Tensor]]:
    for layer in range(spec.start_layer, spec.end_layer):
        block = f"{config.key_prefix}layers.{layer}.mlp.experts"
        experts = [f"{block}.{expert}" for expert in range(config.num_experts)]
        yield from _mlp(making, f"layers.{layer}.experts", experts)


def _common(
    making: _Making, config: QwenConfig, spec: ModelRange
) -> Iterator[tuple[str, torch.Tensor]]:
    prefix = config.key_prefix
    if spec.owns_embeddings or (spec.owns_final_norm_head and config.tied):
        yield "embed_tokens", making.plain(f"{prefix}embed_tokens.weight")
    for layer in range(spec.start_layer, spec.end_layer):
        ours, theirs = f"layers.{layer}.", f"{prefix}layers.{layer}."
        yield f"{ours}input_norm", making.plain(f"{theirs}input_layernorm.weight")
        mixer = _full if config.layers[layer].kind == FULL else _linear
        yield from mixer(making, ours, theirs)
        yield f"{ours}post_norm", making.plain(f"{theirs}post_attention_layernorm.weight")
        yield f"{ours}router", making.plain(f"{theirs}mlp.gate.weight")
        shared = f"{theirs}mlp.shared_expert"
        yield from _mlp(making, f"{ours}shared", [shared])
        yield f"{ours}shared_gate", making.plain(f"{shared}_gate.weight")
        if making.is_published:
            kept = [
                making.float32(f"{shared}.{part}_proj.input_scale") for part in ("gate", "down")
            ]
            yield f"{ours}shared_input_scales", torch.stack(kept)
    if spec.owns_final_norm_head:
        yield "final_norm", making.plain(f"{prefix}norm.weight")
        if not config.tied:
            yield from making.projection("lm_head", ["lm_head"])


def _linear(making: _Making, ours: str, theirs: str) -> Iterator[tuple[str, torch.Tensor]]:
    block = f"{theirs}linear_attn."
    yield from making.projection(f"{ours}qkvz", [f"{block}in_proj_qkv", f"{block}in_proj_z"])
    yield f"{ours}ab", making.plain(f"{block}in_proj_a.weight", f"{block}in_proj_b.weight")
    yield f"{ours}conv", making.plain(f"{block}conv1d.weight").squeeze(1)
    yield f"{ours}a_log", making.float32(f"{block}A_log")
    yield f"{ours}dt_bias", making.float32(f"{block}dt_bias")
    yield f"{ours}mixer_norm", making.plain(f"{block}norm.weight")
    yield from making.projection(f"{ours}out", [f"{block}out_proj"])


def _full(making: _Making, ours: str, theirs: str) -> Iterator[tuple[str, torch.Tensor]]:
    block = f"{theirs}self_attn."
    yield from making.projection(f"{ours}qkv", [f"{block}{part}_proj" for part in "qkv"])
    yield f"{ours}q_norm", making.plain(f"{block}q_norm.weight")
    yield f"{ours}k_norm", making.plain(f"{block}k_norm.weight")
    yield from making.projection(f"{ours}out", [f"{block}o_proj"])
