"""The merged tensors of a range of layers and the checkpoint tensors that are their rows.

Pure arithmetic over the normalized configuration; imports no torch.
"""

from harness.adapters.common.rows import ResidentTensor, check_range, merged
from harness.adapters.gemma.config import GemmaConfig
from harness.plan.records import ModelRange


def layer_prefix(config: GemmaConfig, layer: int) -> str:
    """What the checkpoint keys of a layer begin with."""
    return f"{config.key_prefix}layers.{layer}."


def _layer_tensors(config: GemmaConfig, layer: int) -> list[ResidentTensor]:
    prefix = layer_prefix(config, layer)
    hidden, inner = config.hidden_size, config.intermediate_size
    kind = config.layer_kinds[layer]
    attention, q_rows = config.kind(kind), config.q_rows(kind)
    kv_rows = attention.kv_rows
    value_source = "k" if attention.values_from_keys else "v"

    def tensor(name: str, columns: tuple[int, ...], *parts: tuple[str, int]) -> ResidentTensor:
        keys = [(f"{prefix}{module}.weight", rows) for module, rows in parts]
        return merged(f"layers.{layer}.{name}", columns, keys)

    tensors = [
        tensor("input_norm", (), ("input_layernorm", hidden)),
        tensor(
            "qkv",
            (hidden,),
            ("self_attn.q_proj", q_rows),
            ("self_attn.k_proj", kv_rows),
            (f"self_attn.{value_source}_proj", kv_rows),
        ),
        tensor("q_norm", (), ("self_attn.q_norm", attention.head_dim)),
        tensor("k_norm", (), ("self_attn.k_norm", attention.head_dim)),
        tensor("o", (q_rows,), ("self_attn.o_proj", hidden)),
        tensor("post_attention_norm", (), ("post_attention_layernorm", hidden)),
        tensor("pre_mlp_norm", (), ("pre_feedforward_layernorm", hidden)),
        tensor("gate_up", (hidden,), ("mlp.gate_proj", inner), ("mlp.up_proj", inner)),
        tensor("down", (inner,), ("mlp.down_proj", hidden)),
        tensor("post_mlp_norm", (), ("post_feedforward_layernorm", hidden)),
    ]
    if config.layer_scalar:
        tensors.append(merged(f"layers.{layer}.scalar", (), [(f"{prefix}layer_scalar", 1)]))
    return tensors


def resident_tensors(config: GemmaConfig, spec: ModelRange) -> tuple[ResidentTensor, ...]:
    """The tensors of a range but for the shared table, in arena order.

    Layers keep their global numbers.

    Raises:
        PlanError: When the range is not within the model.
    """
    check_range(spec, config.num_layers)
    tensors = []
    for layer in range(spec.start_layer, spec.end_layer):
        tensors.extend(_layer_tensors(config, layer))
    if spec.owns_final_norm_head:
        key = f"{config.key_prefix}norm.weight"
        tensors.append(merged("final_norm", (), [(key, config.hidden_size)]))
    return tuple(tensors)


def shared_tensors(config: GemmaConfig, spec: ModelRange) -> tuple[ResidentTensor, ...]:
    """The table that embedding and head share, on every range that has one of them."""
    if not (spec.owns_embeddings or spec.owns_final_norm_head):
        return ()
    parts = [(f"{config.key_prefix}embed_tokens.weight", config.vocab_size)]
    return (merged("table", (config.hidden_size,), parts),)


def forbidden_keys(config: GemmaConfig, spec: ModelRange) -> tuple[str, ...]:
    """Value projections of layers that take their values from the keys: none may exist, sorted."""
    return tuple(
        sorted(
            f"{layer_prefix(config, layer)}self_attn.v_proj.weight"
            for layer in range(spec.start_layer, spec.end_layer)
            if config.kind(config.layer_kinds[layer]).values_from_keys
        )
    )
