"""Published configuration fields that every kind of model can have. Data only; knows no family."""

from collections.abc import Mapping
from typing import Any

GENERAL_FIELDS = frozenset(
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
"""Fields that do not change what one inference step of any decoder computes."""

NO_OTHER_KIND_OF_MODEL: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "is_encoder_decoder": (False,),
    "pruned_heads": (None, {}),
    "tie_encoder_decoder": (False,),
}
"""Fields that would make it another kind of model, with the values that do not."""
