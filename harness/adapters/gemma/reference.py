"""The Gemma family's reference: an ordinary load and the same forward code over it.

Rotary tables come from the one formula there is: their digests show corruption, not a wrong
formula; that is shown against another implementation in the tests.
"""

from pathlib import Path

import torch

from harness.adapters.common.ordinary import OrdinaryReference, concatenated, load_files, placed
from harness.adapters.gemma.config import GemmaConfig, read_config
from harness.adapters.gemma.layout import KV, MERGED, ROPE_TABLE, SHARED, kv_geometry
from harness.adapters.gemma.model import GemmaExecutor
from harness.adapters.gemma.rope import rope_tables
from harness.errors import CheckpointError
from harness.plan.layout import LayoutRequest
from harness.plan.records import ModelRange
from harness.state.hybrid import HybridPool
from harness.state.session import PagedSession

_NORMS = {
    "input_norm": "input_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "pre_mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}


class GemmaReference:
    """The family's maker of references."""

    def ordinary(self, root: Path, request: LayoutRequest) -> OrdinaryReference:
        """Load the checkpoint under ``root`` and bind an executor with an empty pool.

        Raises:
            CheckpointError: When a tensor is absent, is in two files, or must not be there.
        """
        config, spec, dtype = read_config(request.config), request.spec, request.determinism.dtype
        weights, table = load_ordinary(root, config, spec, getattr(torch, dtype))
        tables = placed(lambda: rope_tables(config, spec, request.workload.max_positions))
        geometry = kv_geometry(request, dtype)
        tensors = {
            t.name: torch.zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in geometry.tensors()
        }
        executor = GemmaExecutor(
            config=config,
            spec=spec,
            kernel_set=request.determinism.kernel_set,
            residents={**weights, **table},
            rope_tables=tables,
            session=PagedSession(logical_state_id=KV, epoch=1, pool=HybridPool(geometry, tensors)),
        )
        residents = {MERGED + dtype: weights, ROPE_TABLE: tables}
        if table:
            residents[SHARED + dtype] = table
        return OrdinaryReference(executor=executor, residents=residents)


def load_ordinary(
    root: Path, config: GemmaConfig, spec: ModelRange, dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Load every safetensors file under ``root`` whole and merge what the range needs.

    Returns:
        The merged tensors and the shared table (empty where the range has none), by name.

    Raises:
        CheckpointError: When a tensor is absent, is in two files, or must not be there.
    """
    loaded, prefix = load_files(root), config.key_prefix
    unwanted = []
    recipe: dict[str, list[str]] = {}
    for layer in range(spec.start_layer, spec.end_layer):
        ours, theirs = f"layers.{layer}.", f"{prefix}layers.{layer}."
        shared = config.kind(config.layer_kinds[layer]).values_from_keys
        if shared and f"{theirs}self_attn.v_proj.weight" in loaded:
            unwanted.append(f"{theirs}self_attn.v_proj.weight")
        for name, module in _NORMS.items():
            recipe[ours + name] = [f"{theirs}{module}.weight"]
        recipe[ours + "qkv"] = [
            f"{theirs}self_attn.{one}_proj.weight" for one in ("qkk" if shared else "qkv")
        ]
        recipe[ours + "o"] = [f"{theirs}self_attn.o_proj.weight"]
        recipe[ours + "gate_up"] = [f"{theirs}mlp.{one}_proj.weight" for one in ("gate", "up")]
        recipe[ours + "down"] = [f"{theirs}mlp.down_proj.weight"]
        if config.layer_scalar:
            recipe[ours + "scalar"] = [f"{theirs}layer_scalar"]
    if unwanted:
        raise CheckpointError(
            "layers that take their values from the keys have a value projection",
            got=", ".join(unwanted),
        )
    if spec.owns_final_norm_head:
        recipe["final_norm"] = [f"{prefix}norm.weight"]
    table = {}
    if spec.owns_embeddings or spec.owns_final_norm_head:
        table = concatenated(loaded, {"table": [f"{prefix}embed_tokens.weight"]}, dtype)
    return concatenated(loaded, recipe, dtype), table
