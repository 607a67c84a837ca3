"""The steps of a GGUF conversion that are the same for every family.

What a family's configuration, tokenizer and tensors are is handed over as a :class:`Recipe`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.checkpoint.cache import write_json
from harness.checkpoint.gguf_file import GgufFile, Wanted, open_gguf, tensors_to_write
from harness.checkpoint.gguf_tokenizer import tokenizer_config
from harness.checkpoint.writer import write_safetensors
from harness.errors import CheckpointError

Progress = Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a family does of its own. Each may raise ``KeyError`` for metadata that is missing."""

    config: Callable[[GgufFile, str], dict[str, Any]]
    """``config.json`` of a file, for a dtype."""
    tokenizer: Callable[[Mapping[str, Any], str], dict[str, Any]]
    """``tokenizer.json`` of the metadata; the second argument is the file's name, for messages."""
    wanted: Callable[[Mapping[str, Any]], Wanted]
    """The tensors that a ``config.json`` asks for."""


def convert_file(
    recipe: Recipe, source: Path, folder: Path, *, dtype: str, progress: Progress | None = None
) -> None:
    """Write ``model.safetensors``, ``config.json`` and the tokenizer's files into ``folder``.

    Args:
        recipe: The family's part.
        source: The GGUF file, verified against its pinned digest.
        folder: An empty folder.
        dtype: ``bfloat16`` or ``float32``.
        progress: Told the fraction of bytes written.

    Raises:
        CheckpointError: When the file is not GGUF, or not of a plain model of the family.
    """
    file = open_gguf(source)
    try:
        config = recipe.config(file, dtype)
        tokenizer = recipe.tokenizer(file.fields, file.where)
        companions = tokenizer_config(file.fields, context_length=config["max_position_embeddings"])
    except (KeyError, IndexError, TypeError) as error:
        raise CheckpointError(
            "GGUF metadata is incomplete", got=repr(error), where=file.where
        ) from error
    tensors = tensors_to_write(file, recipe.wanted(config), dtype=dtype)
    write_safetensors(folder / "model.safetensors", tensors, progress=progress)
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "tokenizer_config.json", companions)
