"""The merged tensors of a range of layers and the checkpoint tensors that are their rows.

Pure arithmetic over the normalized configuration; imports no torch.
"""

from harness.adapters.common.rows import ResidentTensor, check_range, merged
from harness.adapters.llama.config import LlamaConfig
from harness.plan.records import ModelRange


def _layer_tensors(config: LlamaConfig, layer: int) -> list[ResidentTensor]:
    prefix = f"model.layers.{layer}."
    hidden, inner = config.hidden_size, config.intermediate_size
    qkv = [("q_proj", config.q_rows), ("k_proj", config.kv_rows), ("v_proj", config.kv_rows)]
    gate_up = [("gate_proj", inner), ("up_proj", inner)]

    def norm(name: str, module: str) -> list[ResidentTensor]:
        return [merged(f"layers.{layer}.{name}", (), [(f"{prefix}{module}.weight", hidden)])]

    def projection(
        name: str, block: str, parts: list[tuple[str, int]], columns: int, bias: bool
    ) -> list[ResidentTensor]:
        def keys(kind: str) -> list[tuple[str, int]]:
            return [(f"{prefix}{block}.{module}.{kind}", rows) for module, rows in parts]

        tensors = [merged(f"layers.{layer}.{name}", (columns,), keys("weight"))]
        if bias:
            tensors.append(merged(f"layers.{layer}.{name}_bias", (), keys("bias")))
        return tensors

    on, mlp = config.attention_bias, config.mlp_bias
    return [
        *norm("input_norm", "input_layernorm"),
        *projection("qkv", "self_attn", qkv, hidden, on),
        *projection("o", "self_attn", [("o_proj", hidden)], config.q_rows, on),
        *norm("post_norm", "post_attention_layernorm"),
        *projection("gate_up", "mlp", gate_up, hidden, mlp),
        *projection("down", "mlp", [("down_proj", hidden)], inner, mlp),
    ]


def resident_tensors(config: LlamaConfig, spec: ModelRange) -> tuple[ResidentTensor, ...]:
    """The merged tensors of a range, in arena order; layers keep their global numbers.

    Raises:
        PlanError: When the range is not within the model.
    """
    check_range(spec, config.num_layers)
    table = (config.hidden_size,)
    tensors = []
    if spec.owns_embeddings or (spec.owns_final_norm_head and config.tied):
        parts = [("model.embed_tokens.weight", config.vocab_size)]
        tensors.append(merged("embed_tokens", table, parts))
    for layer in range(spec.start_layer, spec.end_layer):
        tensors.extend(_layer_tensors(config, layer))
    if spec.owns_final_norm_head:
        tensors.append(merged("final_norm", (), [("model.norm.weight", config.hidden_size)]))
        if not config.tied:
            tensors.append(merged("lm_head", table, [("lm_head.weight", config.vocab_size)]))
    return tuple(tensors)
