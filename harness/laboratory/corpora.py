"""The files of a campaign: its manifest, and its sealed holdout.

    {"schema": "harness.campaign/1", "name", "development": [[token, ...], ...], "processes",
     "repetitions", "design": {"share", "rate", "confidence"}, "limits": null or a list}
    {"schema": "harness.holdout/1", "salt", "cases": [[token, ...], ...]}

Limits are those of a plan's comparison. Knows files, nothing of stores or runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.canonical import canonical_bytes, read_json, sha256_digest
from harness.errors import InvalidInputError
from harness.plan.limits import parse_limits
from harness.plan.records import ComparisonLimit

MANIFEST_SCHEMA, HOLDOUT_SCHEMA = "harness.campaign/1", "harness.holdout/1"
MAX_FILE_BYTES = 16 << 20
MAX_CASES = 400
MIN_SALT_CHARS = 32
_MANIFEST = frozenset(
    {"schema", "name", "development", "processes", "repetitions", "design", "limits"}
)
_DESIGN = frozenset({"share", "rate", "confidence"})


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """The sealed cases."""

    cases: tuple[tuple[int, ...], ...]
    digest: str
    """Over the whole document; its salt keeps it from being guessed."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a campaign will do, before it does anything."""

    name: str
    development: tuple[tuple[int, ...], ...]
    """Prompts, as token ids."""
    processes: int
    repetitions: int
    design: Mapping[str, float]
    """``share`` and ``rate`` of the defect that is to be excluded, with which ``confidence``."""
    limits: tuple[ComparisonLimit, ...]
    """Of comparisons of its trials: every case's plan gets them."""


def read_manifest(path: Path) -> Manifest:
    """Read a manifest file.

    Raises:
        InvalidInputError: When it is not valid, or its cases do not give its confidence.
    """
    document, where = read_json(path, max_bytes=MAX_FILE_BYTES), str(path)
    _require(document, _MANIFEST, MANIFEST_SCHEMA, where)
    design = document["design"]
    if not isinstance(design, Mapping) or design.keys() != _DESIGN:
        raise InvalidInputError("a design is {share, rate, confidence}", where=where)
    numbers = (document["processes"], document["repetitions"])
    if any(type(n) is not int or not 1 <= n <= 1000 for n in numbers):
        raise InvalidInputError("processes and repetitions are 1 to 1000", where=where)
    if any(type(value) not in (int, float) for value in design.values()):
        raise InvalidInputError("a design is of numbers", got=str(dict(design)), where=where)
    limits = document["limits"]
    return Manifest(
        name=str(document["name"])[:80],
        development=_cases(document["development"], where),
        processes=numbers[0],
        repetitions=numbers[1],
        design={name: float(value) for name, value in design.items()},
        limits=() if limits is None else parse_limits(limits, where=f"{where}: limits"),
    )


def read_holdout(path: Path) -> Holdout:
    """Read a holdout file: ``{schema, salt, cases}``.

    Raises:
        InvalidInputError: When it is not valid.
    """
    document, where = read_json(path, max_bytes=MAX_FILE_BYTES), str(path)
    _require(document, frozenset({"schema", "salt", "cases"}), HOLDOUT_SCHEMA, where)
    salt = document["salt"]
    if type(salt) is not str or len(salt) < MIN_SALT_CHARS:
        raise InvalidInputError(
            "a holdout needs a salt", expected=f"{MIN_SALT_CHARS} characters", where=where
        )
    cases = _cases(document["cases"], where)
    return Holdout(cases=cases, digest=sha256_digest(canonical_bytes(document)))


def _require(document: Any, fields: frozenset[str], schema: str, where: str) -> None:
    if (
        not isinstance(document, Mapping)
        or document.keys() != fields
        or document["schema"] != schema
    ):
        raise InvalidInputError(
            "not a file of this kind",
            expected=f"schema {schema} with {', '.join(sorted(fields))}",
            where=where,
        )


def _cases(value: Any, where: str) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CASES:
        raise InvalidInputError(f"cases are a list of 1 to {MAX_CASES}", where=where)
    for case in value:
        if not isinstance(case, list) or not case or any(type(t) is not int for t in case):
            raise InvalidInputError("a case is a list of token ids", where=where)
    cases = tuple(tuple(case) for case in value)
    if len(set(cases)) != len(cases):
        raise InvalidInputError("a case is listed twice", where=where)
    return cases
