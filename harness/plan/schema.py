"""Validation of documents against the JSON Schemas that this package ships.

Lists every violation, sorted, with its JSON path, up to a bound that keeps hostile files cheap.
Integers are strict (``1.0`` is not one, since two documents would then share one digest). Knows
nothing of what the documents mean.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from itertools import islice
from typing import Any

from harness.conformance import Test, conformance
from harness.plan.records import Finding

MAX_FINDINGS = 1000
_FILES = (
    ("harness.plan", "schemas/plan-1.schema.json"),
    ("harness.plan", "schemas/environment-1.schema.json"),
    ("harness.plan.published", "r1-frozen-plan-1.schema.json"),
)
_PLAIN_NAME = re.compile(r"\A[A-Za-z_][A-Za-z0-9_]*\Z")
_MAX_MESSAGE_LENGTH = 300


def json_path(parts: Iterable[str | int]) -> str:
    """Render a path into a document, such as ``$.nodes[0].id``."""
    path = "$"
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif _PLAIN_NAME.match(part):
            path += f".{part}"
        else:
            path += f"[{json.dumps(part)}]"
    return path


@cache
def _documents() -> dict[str, Mapping[str, Any]]:
    """The shipped schemas by their ``$id``."""
    read = [
        json.loads(resources.files(room).joinpath(name).read_text("utf-8")) for room, name in _FILES
    ]
    return {document["$id"]: document for document in read}


@cache
def _test(schema_id: str) -> Test:
    return conformance({"$ref": schema_id}, _documents(), strict_integers=True)


def schema_findings(schema_id: str, document: Any) -> list[Finding]:
    """Every violation of a shipped schema, sorted; at most ``MAX_FINDINGS`` and a note.

    Args:
        schema_id: The schema's ``$id``, such as ``urn:harness:plan:1``, or a pointer into it.
        document: Parsed JSON.
    """
    if _test(schema_id)(document):
        return []
    from harness.plan.violations import violations

    errors = violations(schema_id, _documents(), document)
    findings = [
        Finding(
            path=json_path(error.absolute_path),
            rule="schema",
            message=_shorten(error.message),
        )
        for error in islice(errors, MAX_FINDINGS)
    ]
    findings.sort()
    if next(errors, None) is not None:
        note = f"more than {MAX_FINDINGS} violations; the rest is not listed"
        findings.append(Finding(path="$", rule="schema", message=note))
    return findings


def _shorten(message: str) -> str:
    text = message.encode("ascii", "backslashreplace").decode()
    if len(text) <= _MAX_MESSAGE_LENGTH:
        return text
    half = _MAX_MESSAGE_LENGTH // 2
    return f"{text[:half]} ... {text[-half:]}"
