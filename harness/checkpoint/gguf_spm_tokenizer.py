"""A ``tokenizer.json`` from the SentencePiece BPE tokenizer inside a GGUF file.

SentencePiece joins, again and again, the two neighbours whose union has the best score. The same
comes from a list of pairs in the order of those scores, which is what ``tokenizer.json`` holds.
Characters without a token become tokens of their UTF-8 bytes. Knows nothing of weights.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.checkpoint.gguf_tokenizer import CONTROL, NORMAL, USER_DEFINED, added_token
from harness.errors import CheckpointError

_BYTE = 6
_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_SPACE = "\u2581"
"""How SentencePiece writes a space."""


@dataclass(frozen=True, kw_only=True)
class _Pieces:
    """The token list, with spaces as SentencePiece writes them."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    scores: Sequence[float]

    def __iter__(self) -> Iterator[tuple[str, int, float]]:
        return zip(self.tokens, self.kinds, self.scores, strict=True)


def tokenizer_document(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Build the document of ``tokenizer.json``.

    Args:
        fields: GGUF metadata by name, plain values.
        where: The file, for messages.

    Raises:
        CheckpointError: When the tokenizer is of a kind that is not converted.
    """
    pieces = _pieces(fields, where)
    begin = (
        fields["tokenizer.ggml.bos_token_id"] if fields["tokenizer.ggml.add_bos_token"] else None
    )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            # SentencePiece looks for a user's token after it has rewritten spaces.
            added_token(index, token, special=kind == CONTROL, normalized=kind == USER_DEFINED)
            for index, (token, kind, _) in enumerate(pieces)
            if kind in (CONTROL, USER_DEFINED)
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
        "pre_tokenizer": None,
        "post_processor": None if begin is None else _prefixed(pieces.tokens[begin], begin),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": pieces.tokens[fields["tokenizer.ggml.unknown_token_id"]],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(pieces.tokens)},
            "merges": [list(pair) for pair in merges(pieces)],
        },
    }


def merges(pieces: Iterator[tuple[str, int, float]] | _Pieces) -> list[tuple[str, str]]:
    """Pairs of tokens in the order in which they are joined, best score of the union first.

    Of the pairs with one union, the longer left part goes first, as in the conversions that
    transformers makes.
    """
    normal = {token: score for token, kind, score in pieces if kind == NORMAL}
    ranked = sorted(normal, key=lambda token: -normal[token])
    return [
        (token[:cut], token[cut:])
        for token in ranked
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in normal and token[cut:] in normal
    ]


def _pieces(fields: Mapping[str, Any], where: str) -> _Pieces:
    kind_of = (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"])
    if kind_of != ("llama", "default"):
        raise CheckpointError(
            "this tokenizer is not converted",
            expected="model llama with pre-tokenizer default",
            got="model {} with pre-tokenizer {}".format(*kind_of),
            where=where,
        )
    pieces = _Pieces(
        tokens=[token.replace(" ", _SPACE) for token in fields["tokenizer.ggml.tokens"]],
        kinds=fields["tokenizer.ggml.token_type"],
        scores=fields["tokenizer.ggml.scores"],
    )
    problems = _problems(pieces)
    problems += [
        f"{name} is set"
        for name in ("add_eos_token", "add_sep_token", "add_space_prefix")
        if fields[f"tokenizer.ggml.{name}"] is not False
    ]
    if problems:
        raise CheckpointError(
            "this tokenizer is not converted", got="; ".join(problems[:20]), where=where
        )
    return pieces


def _problems(pieces: _Pieces) -> list[str]:
    if not len(pieces.tokens) == len(pieces.kinds) == len(pieces.scores):
        return ["tokens, token types and scores do not fit together"]
    problems = []
    if len(set(pieces.tokens)) != len(pieces.tokens):
        problems.append("a token is there twice")
    if unknown := sorted(set(pieces.kinds) - {NORMAL, CONTROL, USER_DEFINED, _BYTE}):
        problems.append(f"token types {unknown} are not converted")
    if {token for token, kind, _ in pieces if kind == _BYTE} != _BYTE_TOKENS:
        problems.append("the byte tokens are not <0x00> to <0xFF>")
    joined = [score for token, kind, score in pieces if kind == NORMAL and len(token) > 1]
    if not all(map(math.isfinite, joined)) or len(set(joined)) != len(joined):
        problems.append("the scores give no one order")
    return problems


def _prefixed(token: str, index: int) -> dict[str, Any]:
    def one(kind: str, name: str, type_id: int) -> dict[str, Any]:
        return {kind: {"id": name, "type_id": type_id}}

    single = [one("SpecialToken", token, 0), one("Sequence", "A", 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, one("SpecialToken", token, 1), one("Sequence", "B", 1)],
        "special_tokens": {token: {"id": token, "ids": [index], "tokens": [token]}},
    }
