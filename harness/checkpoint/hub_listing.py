"""What a hub declares of a commit's files: names, sizes and digests, checked before they are used.

Only files of the top folder that a checkpoint is made of are seen. Asks for no file.
"""

import re
from collections.abc import Mapping
from typing import Any

from harness.canonical import parse_json
from harness.checkpoint.files import name_problem, problems_error, shown
from harness.checkpoint.hub_http import Commit, get, persist, read_body
from harness.checkpoint.hub_transfer import RemoteFile
from harness.errors import CheckpointError, InvalidInputError

WEIGHTS_SUFFIX = ".safetensors"
PERMITTED = re.compile(r"[\w.*?\[\]-]*(?:\.safetensors|\.json|chat_template\.jinja)")
"""Names, and patterns of names, that are asked for at all."""
MAX_LISTING_BYTES = 32 << 20
MAX_COMPANION_BYTES = 256 << 20
"""Of a file beside the weights."""


def list_files(commit: Commit) -> dict[str, RemoteFile]:
    """What a commit's top folder holds, as the hub declares it, by name.

    Raises:
        CheckpointError: When there is no such commit, or the listing is not one of it.
        NotEvaluableError: When the hub cannot be reached.
    """

    def attempt() -> bytes:
        with get(commit, commit.listing_url, what="listing") as answer:
            return read_body(answer, max_bytes=MAX_LISTING_BYTES)

    where = f"listing of {commit}"
    body = persist(
        attempt,
        problem="the hub cannot be reached",
        where=where,
        hint="check the network, or use a local folder as the source",
    )
    try:
        document = parse_json(body, where=where, max_bytes=MAX_LISTING_BYTES)
    except InvalidInputError as error:
        raise CheckpointError(
            "the hub's listing is not JSON", got=error.got or error.problem, where=where
        ) from error
    siblings = document.get("siblings") if isinstance(document, dict) else None
    if not isinstance(siblings, list) or not all(isinstance(each, dict) for each in siblings):
        raise CheckpointError("the hub's listing lists no files", where=where)
    if document.get("sha") != commit.revision:
        raise CheckpointError(
            "the hub lists another commit",
            expected=commit.revision,
            got=repr(document.get("sha"))[:60],
            where=where,
        )
    problems: list[str] = []
    files = [_remote_file(row, problems) for row in siblings if _is_wanted_row(row)]
    if len({file.name for file in files}) != len(files):
        problems.append("a name stands there twice")
    if problems:
        raise problems_error("the hub's listing is not usable", problems, where=where)
    return {file.name: file for file in files}


def _is_wanted_row(row: Mapping[str, Any]) -> bool:
    name = row.get("rfilename")
    # No slash is permitted: copies in other formats often lie in subfolders.
    return isinstance(name, str) and PERMITTED.fullmatch(name) is not None


def _remote_file(row: Mapping[str, Any], problems: list[str]) -> RemoteFile:
    name, size, git_sha1 = row["rfilename"], row.get("size"), row.get("blobId")
    large = row.get("lfs")
    sha256 = large.get("sha256") if isinstance(large, dict) else None
    if isinstance(large, dict):
        # The blob is the pointer's, and its size is stated where the content's may be.
        size, git_sha1 = large.get("size"), None
    found = [name_problem(name)]
    if type(size) is not int or not 0 <= size < 1 << 53:
        found.append("declares no size")
        size = 0
    elif size > MAX_COMPANION_BYTES and not name.endswith(WEIGHTS_SUFFIX):
        found.append(f"declares {size} bytes, more than {MAX_COMPANION_BYTES}")
    for digest, num_digits in ((sha256, 64), (git_sha1, 40)):
        if digest is not None and not _is_hex(digest, num_digits):
            found.append(f"declares a digest that is not {num_digits} hex digits")
    if sha256 is None and git_sha1 is None:
        found.append("declares no digest")
    problems.extend(f"{shown(name)}: {problem}" for problem in found if problem is not None)
    return RemoteFile(
        name=name,
        size_bytes=size,
        sha256=None if sha256 is None else f"sha256:{sha256}",
        git_sha1=git_sha1,
    )


def _is_hex(digest: object, num_digits: int) -> bool:
    return isinstance(digest, str) and re.fullmatch(f"[0-9a-f]{{{num_digits}}}", digest) is not None
