"""Text to token ids and back, through a checkpoint's ``tokenizer.json``.

A chat template is a program. It is never executed: the one form that is supported, ChatML with an
optional default system message, is recognized by its text and applied here; any other is refused.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.canonical import read_bounded, read_json
from harness.errors import CheckpointError, InvalidInputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_TOKENIZER_BYTES = 256 << 20
MAX_TEMPLATE_BYTES = 1 << 20
_SYSTEM = (
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n\0<|im_end|>\n' }}{% endif %}"
)
_MESSAGE = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
_PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def _pattern(text: str) -> str:
    return re.escape(text).replace(re.escape("\0"), r"(?P<system>[^'\\]*)")


_CHATML = re.compile(
    _pattern("{% for message in messages %}")
    + f"(?:{_pattern(_SYSTEM)})?"
    + _pattern(_MESSAGE)
    + _pattern("{% endfor %}")
    + f"(?:{_pattern(_PROMPT)})"
)


def encode_prompt(root: Path, text: str, *, chat: bool) -> list[int]:
    """Token ids of a prompt.

    Args:
        root: A checkpoint folder.
        text: The prompt; with ``chat``, one message of the user.
        chat: Wrap the text by the checkpoint's chat template and ask for the assistant's turn.

    Raises:
        InvalidInputError: When the text is not valid Unicode.
        CheckpointError: When the tokenizer or the template is missing, not valid or not supported.
    """
    tokenizer = _load(root)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        # Bytes of a command line that are not UTF-8 arrive as lone surrogates.
        raise InvalidInputError(
            "the prompt is not valid Unicode", expected="UTF-8 text", got=str(error)
        ) from error
    if not chat:
        return list(tokenizer.encode(text).ids)
    wrapped = chatml_prompt(_template(root), text, where=str(root))
    return list(tokenizer.encode(wrapped, add_special_tokens=False).ids)


def decode_tokens(root: Path, ids: Sequence[int]) -> str:
    """Text of token ids. It is a model's output: escape it before it is shown.

    Special tokens are left out, and so are ids beyond the tokenizer's, since a model's vocabulary
    may be padded.

    Raises:
        InvalidInputError: When an id cannot be one.
        CheckpointError: When the tokenizer is missing or not valid.
    """
    tokenizer = _load(root)
    try:
        return str(tokenizer.decode(list(ids)))
    except (OverflowError, TypeError) as error:
        raise InvalidInputError("not token ids", got=str(error), where=str(root)) from error


def chatml_prompt(template: str, text: str, *, where: str) -> str:
    """Apply a ChatML template to one message of the user, ending at the assistant's turn.

    Raises:
        CheckpointError: When the template is not ChatML.
    """
    # Files spell a line break inside a string as itself or as backslash and n; both mean one.
    plain = template.replace("\\n", "\n").removesuffix("\n")
    found = _CHATML.fullmatch(plain)
    if found is None:
        raise CheckpointError(
            "this chat template is not supported",
            expected="ChatML (<|im_start|>role ... <|im_end|>) in its common spelling",
            got=repr(template[:80]),
            where=where,
            hint="give the prompt without the chat template",
        )
    system = found["system"]
    start = "" if system is None else f"<|im_start|>system\n{system}<|im_end|>\n"
    return f"{start}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def _load(root: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    path = root / "tokenizer.json"
    try:
        data = read_bounded(path, max_bytes=MAX_TOKENIZER_BYTES)
        return Tokenizer.from_buffer(data)
    except InvalidInputError as error:
        raise CheckpointError(
            "the checkpoint has no tokenizer",
            expected="tokenizer.json",
            got=error.got or error.problem,
            where=str(root),
        ) from error
    except Exception as error:  # the library raises plain Exception and ValueError
        raise CheckpointError(
            "not a valid tokenizer", got=str(error)[:200], where=str(path)
        ) from error


def _template(root: Path) -> str:
    path = root / "chat_template.jinja"
    if path.is_file():
        return read_bounded(path, max_bytes=MAX_TEMPLATE_BYTES).decode("utf-8", errors="replace")
    path = root / "tokenizer_config.json"
    document = read_json(path, max_bytes=MAX_TOKENIZER_BYTES) if path.is_file() else None
    template = document.get("chat_template") if isinstance(document, dict) else None
    if not isinstance(template, str):
        raise CheckpointError(
            "the checkpoint has no chat template",
            expected="chat_template in tokenizer_config.json, or chat_template.jinja",
            where=str(root),
            hint="give the prompt without the chat template",
        )
    return template
