"""Checking a JSON document against one of the schemas beside this file.

Knows schemas, nothing of what the documents are for.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from harness.conformance import Test, conformance
from harness.errors import EvidenceError

_MAX_LISTED_ERRORS = 50


def schema_errors(schema: str, document: Any) -> list[str]:
    """Every way in which a document breaks a schema, named by its file, sorted."""
    if _test(schema)(document):
        return []
    # Loaded where there is something to say: a tenth of a second.
    from jsonschema import Draft202012Validator

    return sorted(
        f"{error.json_path}: {error.message[:300]}"
        for error in Draft202012Validator(_document(schema)).iter_errors(document)
    )


def refuse(problem: str, broken: list[str], *, where: str) -> None:
    """Raise one error that lists all broken rules; nothing when there is none.

    Raises:
        EvidenceError: When ``broken`` is not empty.
    """
    listed = broken[:_MAX_LISTED_ERRORS]
    if len(broken) > len(listed):
        listed.append(f"and {len(broken) - len(listed)} more")
    if listed:
        raise EvidenceError(problem, got="; ".join(listed), where=where)


@cache
def _test(schema: str) -> Test:
    return conformance(_document(schema))


@cache
def _document(schema: str) -> Mapping[str, Any]:
    folder = resources.files("harness.evidence") / "schemas"
    document: Mapping[str, Any] = json.loads((folder / schema).read_text("utf-8"))
    return document
