"""Published field names of the family by what is asked of them. Data only."""

from collections.abc import Mapping
from typing import Any

from harness.adapters.common.published import GENERAL_FIELDS, NO_OTHER_KIND_OF_MODEL

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"

IGNORED = GENERAL_FIELDS | frozenset(
    (
        "attention_dropout",
        "max_position_embeddings",
        "moe_intermediate_size",  # read only where enable_moe_block is set, and that is refused
        "num_experts",
        "sliding_window",  # of a model without such layers
        "top_k_experts",
        "vocab_size_per_layer_input",  # read only where there are per-layer embeddings
    )
)
"""Fields of a text model that do not change what one inference step computes."""
IGNORED_AROUND = GENERAL_FIELDS | frozenset(
    (
        "audio_config",
        "audio_token_id",
        "boa_token_id",
        "boi_token_id",
        "boi_token_index",
        "eoa_token_id",
        "eoa_token_index",
        "eoi_token_id",
        "eoi_token_index",
        "image_token_id",
        "image_token_index",
        "mm_tokens_per_image",
        "video_token_id",
        "vision_config",
        "vision_soft_tokens_per_image",
    )
)
"""Fields of a document of more modalities that do not change what its text model computes."""

MUST_BE_AROUND: Mapping[str, tuple[Any, ...]] = {
    **NO_OTHER_KIND_OF_MODEL,
    "quantization_config": (None,),
    "tie_word_embeddings": (True, None),
}
MUST_BE: Mapping[str, tuple[Any, ...]] = {
    **MUST_BE_AROUND,
    "attention_bias": (False, None),
    "hidden_act": (None, "gelu_pytorch_tanh"),
    "hidden_activation": ("gelu_pytorch_tanh",),
    "partial_rotary_factor": (None, 1.0, 1),
}
"""Fields that change the model, with the values that are supported; absent is supported too."""
MUST_BE_GEMMA3: Mapping[str, tuple[Any, ...]] = {
    "attn_logit_softcapping": (None,),
    "use_bidirectional_attention": (False, None),
}
MUST_BE_GEMMA4: Mapping[str, tuple[Any, ...]] = {
    "enable_moe_block": (False, None),
    "hidden_size_per_layer_input": (0, None),
    "num_kv_shared_layers": (0, None),
    "use_bidirectional_attention": (None, False, "vision"),  # text rows read backwards only
    "use_double_wide_mlp": (False, None),
}
