"""What happened to a file whose bytes no longer have the digest they should have.

Tells a checkout with changed line ends, a cut-off file and other changes apart. Knows file forms by
their endings, nothing of their content.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from harness.evidence.files import open_regular, read_regular

_CHUNK_BYTES = 1 << 20
_MAX_JSON_BYTES = 64 << 20

CRLF_HINT = (
    "its line ends were changed to CR LF, probably by a checkout; set `-text` for this folder in "
    ".gitattributes (or core.autocrlf=false) and check the file out again"
)


def describe_damage(
    path: Path, expected_digest: str, *, size_bytes: int, declared_bytes: int | None = None
) -> tuple[str, str]:
    """Kind and message of a problem for a file that does not have ``expected_digest``.

    Args:
        path: The damaged file.
        expected_digest: What its bytes should hash to.
        size_bytes: Its present size.
        declared_bytes: The size that a statement gives it, where one does.
    """
    if _digest_without_crlf(path) == expected_digest:
        return "crlf", CRLF_HINT
    if declared_bytes is not None:
        cut_off = size_bytes < declared_bytes
    else:
        cut_off = size_bytes == 0 or _SEEMS_CUT_OFF[path.suffix](path)
    if cut_off:
        return "truncated", f"is cut off after {size_bytes} bytes (expected {expected_digest})"
    return "modified", f"was changed: its bytes do not have {expected_digest}"


def _digest_without_crlf(path: Path) -> str:
    state = hashlib.sha256()
    with open_regular(path) as file:
        held = b""
        while chunk := file.read(_CHUNK_BYTES):
            chunk = held + chunk
            held = b"\r" if chunk.endswith(b"\r") else b""
            state.update(chunk[: len(chunk) - len(held)].replace(b"\r\n", b"\n"))
        state.update(held)
    return f"sha256:{state.hexdigest()}"


def _json_cut_off(path: Path) -> bool:
    data = read_regular(path, max_bytes=_MAX_JSON_BYTES)
    try:
        text = data.decode("utf-8")
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text) or error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return False
    return False


def _without_ending(ending: bytes) -> Callable[[Path], bool]:
    def check(path: Path) -> bool:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - len(ending)))
            return file.read() != ending

    return check


_SEEMS_CUT_OFF = {
    ".json": _json_cut_off,
    ".jsonl": _without_ending(b"\n"),
    ".parquet": _without_ending(b"PAR1"),
}
