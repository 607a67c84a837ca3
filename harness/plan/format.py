"""The supported plan schemas: how each is validated, digested and written to a file.

Knows the byte rules of the formats, nothing of what plans mean.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.canonical import canonical_bytes, sha256_digest
from harness.errors import PlanError
from harness.plan.published.result_r1 import PLAN_SCHEMA as PUBLISHED_SCHEMA

NATIVE_SCHEMA = "harness.plan/1"


@dataclass(frozen=True, kw_only=True)
class PlanFormat:
    """What differs between plan schemas below the level of records."""

    schema_id: str
    """``$id`` of the JSON Schema."""
    ascii_only: bool
    """Whether text outside ASCII is escaped; also selects the published digest rule."""


FORMATS: Mapping[str, PlanFormat] = {
    NATIVE_SCHEMA: PlanFormat(schema_id="urn:harness:plan:1", ascii_only=False),
    PUBLISHED_SCHEMA: PlanFormat(
        schema_id="urn:harness:published:r1-frozen-plan:1", ascii_only=True
    ),
}


def format_of(document: Any, *, where: str) -> PlanFormat:
    """The format a document declares in its ``schema`` field.

    Raises:
        PlanError: When it is no object, or of no supported schema.
    """
    if not isinstance(document, dict):
        raise PlanError("not a plan", expected="a JSON object", where=where)
    schema = document.get("schema")
    if not isinstance(schema, str) or schema not in FORMATS:
        raise PlanError(
            "not a plan of a supported schema",
            expected=" or ".join(FORMATS),
            got=repr(schema)[:100],
            where=where,
        )
    return FORMATS[schema]


def plan_digest(document: Mapping[str, Any]) -> str:
    """The ``sha256:`` digest of a plan document, by the rule of its schema.

    Native: RFC 8785 bytes of the document without ``digest``. Published: JSON of the same with
    sorted keys, separators ``,`` and ``:``, escaped to ASCII, and one newline.
    """
    payload = {name: value for name, value in document.items() if name != "digest"}
    if format_of(payload, where="plan").ascii_only:
        text = json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return "sha256:" + hashlib.sha256(text.encode("ascii") + b"\n").hexdigest()
    return sha256_digest(canonical_bytes(payload))


def plan_file_bytes(document: Mapping[str, Any]) -> bytes:
    """The bytes of a plan file: two-space indent, sorted keys, one newline at the end."""
    ascii_only = format_of(document, where="plan").ascii_only
    text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=ascii_only, allow_nan=False)
    return text.encode("utf-8") + b"\n"
