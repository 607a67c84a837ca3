"""What a checkpoint folder holds: its tensors, from headers, and its files' digests.

Knows the safetensors layouts (one file, an index, several files) and nothing of models.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from harness.canonical import read_json
from harness.checkpoint.files import (
    open_regular,
    problems_error,
    read_exactly,
    resolve_under,
    shard_problem,
    shown,
)
from harness.checkpoint.header import Header, HeaderEntry, read_header
from harness.errors import CheckpointError, InvalidInputError
from harness.plan.layout import CensusEntry
from harness.plan.records import CheckpointFile

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
COMPANION_NAMES = ("config.json", "generation_config.json", "tokenizer.json", INDEX_NAME)
"""Files that are pinned beside the weights, where they exist."""
MAX_INDEX_BYTES = 100_000_000
_PIECE_BYTES = 4 << 20

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def census(
    root: Path, *, measure_digests: bool = False, keys: Collection[str] | None = None
) -> tuple[CensusEntry, ...]:
    """List the tensors of a checkpoint folder, sorted by key.

    Args:
        root: The folder.
        measure_digests: Also hash every listed tensor, on all cores.
        keys: List only these keys; every one must exist.

    Raises:
        CheckpointError: When a header, the index or a name is not valid, with every problem.
    """
    weights = _weight_names(root)
    headers = _read_headers(root, weights, lambda name: read_header(resolve_under(root, name)))
    located = _locate(headers, keys, where=str(root))
    digests = _digests(root, headers, located) if measure_digests else {}
    return _entries(located, digests)


def census_by(
    root: Path, weights: Sequence[str], read: Callable[[str], Header]
) -> tuple[CensusEntry, ...]:
    """List the tensors of a checkpoint whose weights lie elsewhere, without digests.

    Args:
        root: A folder with the index, where there is one.
        weights: Names of all files of weights.
        read: Gives the header of a file by its name.

    Raises:
        CheckpointError: As :func:`census`; whatever else ``read`` raises ends it at once.
    """
    headers = _read_headers(root, weights, read)
    return _entries(_locate(headers, None, where=str(root)), {})


def _locate(
    headers: Mapping[str, Header], keys: Collection[str] | None, *, where: str
) -> dict[str, tuple[str, HeaderEntry]]:
    problems: list[str] = []
    located: dict[str, tuple[str, HeaderEntry]] = {}
    for name, header in headers.items():
        for key, entry in header.entries.items():
            if key in located:
                problems.append(f"{key!r}: in {located[key][0]} and in {name}")
            located[key] = (name, entry)
    if keys is not None:
        problems.extend(f"{key!r}: not in the checkpoint" for key in keys if key not in located)
        located = {key: located[key] for key in keys if key in located}
    if problems:
        raise problems_error("not the tensors of one checkpoint", problems, where=where)
    return located


def _entries(
    located: Mapping[str, tuple[str, HeaderEntry]], digests: Mapping[str, str]
) -> tuple[CensusEntry, ...]:
    return tuple(
        CensusEntry(
            key=key,
            dtype=entry.dtype,
            shape=entry.shape,
            file=name,
            source_bytes=entry.num_bytes,
            sha256=digests.get(key),
            digest_source="measured" if key in digests else "none",
        )
        for key, (name, entry) in sorted(located.items())
    )


def pin_files(root: Path, *, with_weights: bool = True) -> tuple[CheckpointFile, ...]:
    """Size and digest of every file of a checkpoint that a plan pins, sorted by name."""
    names = [name for name in COMPANION_NAMES if (root / name).exists()]
    names.extend(_weight_names(root) if with_weights else [])
    return tuple(
        CheckpointFile(name=name, size_bytes=size, sha256=digest)
        for name, (size, digest) in sorted(
            zip(names, _parallel(lambda name: _size_and_digest(root, name), names), strict=True)
        )
    )


def verify_files(root: Path, files: Sequence[CheckpointFile]) -> list[str]:
    """Hash pinned files, on all cores, and list every difference, sorted; empty means equal."""

    def differences(file: CheckpointFile) -> list[str]:
        try:
            size, digest = _size_and_digest(root, file.name)
        except CheckpointError as error:
            return [shard_problem(file.name, error)]
        found = []
        if size != file.size_bytes:
            found.append(f"{file.name}: expected {file.size_bytes} bytes, got {size}")
        if digest != file.sha256:
            found.append(f"{file.name}: expected {file.sha256}, got {digest}")
        return found

    return sorted(line for lines in _parallel(differences, files) for line in lines)


def _read_headers(
    root: Path, weights: Sequence[str], read: Callable[[str], Header]
) -> dict[str, Header]:
    index = _read_index(root, weights)
    names = weights if index is None else sorted(set(index.values()))
    if not names:
        raise CheckpointError(
            "no safetensors files",
            expected=f"{SINGLE_NAME}, or shards with {INDEX_NAME}",
            where=str(root),
            hint="check the path; pickled checkpoints are not read",
        )
    headers: dict[str, Header] = {}
    problems: list[str] = []
    for name in names:
        try:
            headers[name] = read(name)
        except CheckpointError as error:
            problems.append(shard_problem(name, error))
    if index is not None and not problems:
        problems.extend(_index_problems(index, headers))
    if problems:
        raise problems_error("not a valid checkpoint", problems, where=str(root))
    return headers


def _weight_names(root: Path) -> list[str]:
    try:
        return sorted(path.name for path in root.iterdir() if path.name.endswith(".safetensors"))
    except OSError as error:
        raise CheckpointError(
            "cannot list the checkpoint's folder", got=error.strerror, where=str(root)
        ) from error


def _read_index(root: Path, weights: Sequence[str]) -> dict[str, str] | None:
    """The index's map from key to file. Its ``total_size`` is not read: published ones vary."""
    if not (root / INDEX_NAME).exists():
        return None
    path = resolve_under(root, INDEX_NAME)
    try:
        document = read_json(path, max_bytes=MAX_INDEX_BYTES)
    except InvalidInputError as error:
        raise CheckpointError(
            "the index is not strict JSON", got=error.got or error.problem, where=str(path)
        ) from error
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointError(
            "the index has no weight_map",
            expected="an object that maps each tensor key to a file name",
            where=str(path),
        )
    if SINGLE_NAME in weights and SINGLE_NAME not in weight_map.values():
        raise CheckpointError(
            f"both {SINGLE_NAME} and an index of other files exist",
            expected="one of them",
            where=str(root),
            hint="remove the one that is not meant; which one loads would depend on the reader",
        )
    return weight_map


def _index_problems(index: Mapping[str, str], headers: Mapping[str, Header]) -> list[str]:
    problems = [
        f"{key!r}: the index says {shown(name)}, which does not hold it"
        for key, name in index.items()
        if key not in headers[name].entries
    ]
    problems.extend(
        f"{key!r}: in {name}, but the index says {shown(index.get(key, 'nothing of it'))}"
        for name, header in headers.items()
        for key in header.entries
        if index.get(key) != name
    )
    return problems


def _digests(
    root: Path, headers: Mapping[str, Header], located: Mapping[str, tuple[str, HeaderEntry]]
) -> dict[str, str]:
    descriptors = {
        name: open_regular(resolve_under(root, name)) for name in {n for n, _ in located.values()}
    }

    def digest(item: tuple[str, HeaderEntry]) -> str:
        name, entry = item
        offset = headers[name].data_offset + entry.begin
        return _range_digest(descriptors[name], offset, entry.num_bytes, where=name)[1]

    try:
        return dict(zip(located, _parallel(digest, list(located.values())), strict=True))
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def _size_and_digest(root: Path, name: str) -> tuple[int, str]:
    descriptor = open_regular(resolve_under(root, name))
    try:
        return _range_digest(descriptor, 0, None, where=name)
    finally:
        os.close(descriptor)


def _range_digest(
    descriptor: int, offset: int, num_bytes: int | None, *, where: str
) -> tuple[int, str]:
    """Bytes hashed and digest of a range, or of everything from ``offset`` to the file's end."""
    sha256 = hashlib.sha256()
    buffer = memoryview(
        bytearray(_PIECE_BYTES if num_bytes is None else min(num_bytes, _PIECE_BYTES))
    )
    done = 0
    while num_bytes is None or done < num_bytes:
        wanted = len(buffer) if num_bytes is None else min(len(buffer), num_bytes - done)
        count = read_exactly(descriptor, buffer[:wanted], offset + done)
        sha256.update(buffer[:count])
        done += count
        if count < wanted:
            if num_bytes is None:
                break
            raise CheckpointError("the file shrank while it was read", where=where)
    return done, "sha256:" + sha256.hexdigest()


def _parallel(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    # Threads suffice: hashing and reading release the interpreter lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, items))
