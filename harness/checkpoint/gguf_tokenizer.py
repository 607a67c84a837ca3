"""A ``tokenizer.json`` from the byte-level BPE tokenizer inside a GGUF file.

The document is written here, not by a tokenizer library, so that its bytes follow from the GGUF
alone. Knows nothing of weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import CheckpointError

NORMAL = 1
CONTROL = 3
USER_DEFINED = 4
_DIGITS = {"type": "Digits", "individual_digits": True}
_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_PRE_TOKENIZERS: Mapping[str, Mapping[str, Any]] = {
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _BYTE_LEVEL]},
}
"""How text is split before BPE, by GGUF's name for it."""


def tokenizer_document(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Build the document of ``tokenizer.json``.

    Args:
        fields: GGUF metadata by name, plain values.
        where: The file, for messages.

    Raises:
        CheckpointError: When the tokenizer is of a kind that is not converted.
    """
    model, split = fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]
    if model != "gpt2" or split not in _PRE_TOKENIZERS:
        raise CheckpointError(
            "this tokenizer is not converted",
            expected=f"model gpt2 with pre-tokenizer {', '.join(_PRE_TOKENIZERS)}",
            got=f"model {model} with pre-tokenizer {split}",
            where=where,
        )
    tokens: Sequence[str] = fields["tokenizer.ggml.tokens"]
    kinds: Sequence[int] = fields["tokenizer.ggml.token_type"]
    merges: Sequence[str] = fields["tokenizer.ggml.merges"]
    if len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise CheckpointError("token list and token types do not fit together", where=where)
    if unknown := sorted(set(kinds) - {NORMAL, CONTROL, USER_DEFINED}):
        raise CheckpointError(f"token types {unknown} are not converted", where=where)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            added_token(index, token, special=kind == CONTROL)
            for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind != NORMAL
        ],
        "normalizer": None,
        "pre_tokenizer": _PRE_TOKENIZERS[split],
        "post_processor": None,
        "decoder": {**_BYTE_LEVEL, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [_merge(merge, where) for merge in merges],
        },
    }


def tokenizer_config(fields: Mapping[str, Any], *, context_length: int) -> dict[str, Any]:
    """Build ``tokenizer_config.json``: named tokens and the chat template, where there are any."""
    tokens: Sequence[str] = fields["tokenizer.ggml.tokens"]
    document: dict[str, Any] = {
        # The class that takes tokenizer.json as it is.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
    }
    for name, field in (
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
    ):
        if field in fields:
            document[name] = tokens[fields[field]]
    if "tokenizer.chat_template" in fields:
        document["chat_template"] = fields["tokenizer.chat_template"]
    return document


def added_token(
    index: int, token: str, *, special: bool, normalized: bool = False
) -> dict[str, Any]:
    """An entry of ``added_tokens``; a normalized one is looked for in normalized text."""
    return {
        "id": index,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": normalized,
        "special": special,
    }


def _merge(merge: str, where: str) -> list[str]:
    # A byte-level token never holds a space, so the one space separates the pair.
    pair = merge.split(" ")
    if len(pair) != 2:
        raise CheckpointError("a merge is not a pair of tokens", got=repr(merge[:80]), where=where)
    return pair
