"""Published field names of the family by what is asked of them. Data only."""

from collections.abc import Mapping
from typing import Any

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"

_GENERAL = frozenset(
    (
        "_attn_implementation_autoset",
        "_name_or_path",
        "bad_words_ids",
        "bos_token_id",
        "cache_implementation",
        "chunk_size_feed_forward",
        "do_sample",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "id2label",
        "initializer_range",
        "is_decoder",
        "label2id",
        "length_penalty",
        "max_length",
        "min_length",
        "num_beams",
        "num_return_sequences",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "prefix",
        "problem_type",
        "repetition_penalty",
        "return_dict",
        "return_dict_in_generate",
        "sep_token_id",
        "task_specific_params",
        "temperature",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "typical_p",
        "use_bfloat16",
        "use_cache",
    )
)
IGNORED = _GENERAL | frozenset(
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
IGNORED_AROUND = _GENERAL | frozenset(
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

_NO_OTHER_KIND_OF_MODEL: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "is_encoder_decoder": (False,),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "tie_encoder_decoder": (False,),
    "tie_word_embeddings": (True, None),
}
MUST_BE_AROUND = _NO_OTHER_KIND_OF_MODEL
MUST_BE: Mapping[str, tuple[Any, ...]] = {
    **_NO_OTHER_KIND_OF_MODEL,
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
