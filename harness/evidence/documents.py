"""Checking a JSON document against one of the schemas beside this file.

Knows schemas, nothing of what the documents are for.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from jsonschema import Draft202012Validator

from harness.errors import EvidenceError

_MAX_LISTED_ERRORS = 50


def schema_errors(schema: str, document: Any) -> list[str]:
    """Every way in which a document breaks a schema, named by its file, sorted."""
    return sorted(
        f"{error.json_path}: {error.message[:300]}"
        for error in _validator(schema).iter_errors(document)
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
def _validator(schema: str) -> Draft202012Validator:
    folder = resources.files("harness.evidence") / "schemas"
    document = json.loads((folder / schema).read_text("utf-8"))
    return Draft202012Validator(_expanded(document, document.get("$defs", {})))


def _expanded(node: Any, definitions: Mapping[str, Any]) -> Any:
    """A schema with its references replaced by what they mean.

    To look one up costs more than most of what it means, once for every value of a document.
    """
    if isinstance(node, list):
        return [_expanded(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if node.keys() == {"$ref"}:
        return _expanded(definitions[node["$ref"].removeprefix("#/$defs/")], definitions)
    return {key: _expanded(each, definitions) for key, each in node.items() if key != "$defs"}
