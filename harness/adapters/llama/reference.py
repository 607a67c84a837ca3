"""The Llama family's reference: an ordinary load and the same forward code over it.

Rotary tables come from the one formula there is: their digests show corruption, not a wrong
formula; that is shown against another implementation in the tests.
"""

from pathlib import Path

import torch

from harness.adapters.common.ordinary import OrdinaryReference, concatenated, load_files, placed
from harness.adapters.llama.config import LlamaConfig, read_config
from harness.adapters.llama.layout import KV, MERGED, ROPE_TABLE, LlamaLayout
from harness.adapters.llama.model import LlamaExecutor
from harness.adapters.llama.rope import rope_tables
from harness.plan.layout import LayoutRequest
from harness.plan.records import ModelRange
from harness.state.session import Session


class LlamaReference:
    """The family's maker of references."""

    def ordinary(self, root: Path, request: LayoutRequest) -> OrdinaryReference:
        """Load the checkpoint under ``root`` and bind an executor with an empty cache."""
        config, spec = read_config(request.config), request.spec
        positions = request.workload.max_positions
        weights = load_ordinary(root, request)
        tables = placed(lambda: rope_tables(config, positions))
        cache = LlamaLayout().mutable_tensors(request, request.determinism.dtype)
        session = Session(
            logical_state_id=KV,
            epoch=1,
            tensors={t.name: torch.zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in cache},
            capacity_positions=positions,
        )
        executor = LlamaExecutor(
            config=config,
            spec=spec,
            kernel_set=request.determinism.kernel_set,
            residents=weights,
            rope_tables=tables,
            session=session,
        )
        residents = {
            MERGED + request.determinism.dtype: weights,
            ROPE_TABLE: tables,
        }
        return OrdinaryReference(executor=executor, residents=residents)


def load_ordinary(root: Path, request: LayoutRequest) -> dict[str, torch.Tensor]:
    """Load every safetensors file under ``root`` whole and merge what the range needs.

    Returns:
        The merged tensors by name, in the request's compute dtype.

    Raises:
        CheckpointError: When a tensor is absent, or is in two files.
    """
    recipe = _recipe(read_config(request.config), request.spec)
    return concatenated(load_files(root), recipe, getattr(torch, request.determinism.dtype))


def _recipe(config: LlamaConfig, spec: ModelRange) -> dict[str, list[str]]:
    recipe: dict[str, list[str]] = {}
    if spec.owns_embeddings or (spec.owns_final_norm_head and config.tied):
        recipe["embed_tokens"] = ["model.embed_tokens.weight"]
    for layer in range(spec.start_layer, spec.end_layer):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        attention, mlp = f"{theirs}self_attn.", f"{theirs}mlp."
        recipe[ours + "input_norm"] = [theirs + "input_layernorm.weight"]
        recipe[ours + "post_norm"] = [theirs + "post_attention_layernorm.weight"]
        for suffix, kind, has_attention, has_mlp in (
            ("", "weight", True, True),
            ("_bias", "bias", config.attention_bias, config.mlp_bias),
        ):
            if has_attention:
                recipe[f"{ours}qkv{suffix}"] = [f"{attention}{x}_proj.{kind}" for x in "qkv"]
                recipe[f"{ours}o{suffix}"] = [f"{attention}o_proj.{kind}"]
            if has_mlp:
                recipe[f"{ours}gate_up{suffix}"] = [
                    f"{mlp}gate_proj.{kind}",
                    f"{mlp}up_proj.{kind}",
                ]
                recipe[f"{ours}down{suffix}"] = [f"{mlp}down_proj.{kind}"]
    if spec.owns_final_norm_head:
        recipe["final_norm"] = ["model.norm.weight"]
        if not config.tied:
            recipe["lm_head"] = ["lm_head.weight"]
    return recipe
