"""The ordered boundaries of one step. Imports no torch."""

from harness.adapters.qwen3_5_moe.config import FULL, LINEAR, QwenConfig
from harness.plan.layout import HEAD_BOUNDARIES, input_boundaries
from harness.plan.records import ModelRange

MIXER = {
    LINEAR: (
        "qkvz",
        "ab",
        "conv_state_before",
        "conv_out",
        "conv_state_after",
        "recurrent_state_before",
        "delta_out",
        "recurrent_state_after",
        "gated_norm",
    ),
    FULL: ("q", "k", "v", "gate", "kv_before", "kv_written", "attention_out", "gated"),
}
"""Between the first norm and the mixer's output projection, by the layer's kind."""
BEFORE = ("input_norm",)
AFTER = (
    "mixer_out",
    "residual_1",
    "post_norm",
    "router_logits",
    "expert_ids",
    "expert_weights",
    "router_margins",
    "routed_out",
    "shared_out",
    "mlp_out",
    "residual_2",
)


def layer_boundaries(kind: str) -> tuple[str, ...]:
    """Boundaries of one layer of a kind, in execution order."""
    return (*BEFORE, *MIXER[kind], *AFTER)


def step_boundaries(config: QwenConfig, spec: ModelRange) -> tuple[str, ...]:
    """Boundaries of one step with logits, in execution order."""
    names = list(input_boundaries(spec))
    for layer in range(spec.start_layer, spec.end_layer):
        names += [f"layers.{layer}.{name}" for name in layer_boundaries(config.layers[layer].kind)]
    return (*names, *(HEAD_BOUNDARIES if spec.owns_final_norm_head else ()))
