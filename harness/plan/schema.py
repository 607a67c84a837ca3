"""Validation of documents against the JSON Schemas that this package ships.

Lists every violation, sorted, with its JSON path, up to a bound that keeps hostile files cheap.
Integers are strict (``1.0`` is not one, since two documents would then share one digest). Knows
nothing of what the documents mean.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from referencing import Registry
from referencing.jsonschema import DRAFT202012

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


def _is_strict_integer(_checker: Any, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _all_plain(items: Any, instance: Sequence[Any]) -> bool:
    # One pass over a long array of scalars instead of one validator per item (44,000 keys: 0.5 s).
    if not isinstance(items, Mapping):
        return False
    if items.keys() <= {"type", "minLength"} and items.get("type") == "string":
        shortest = items.get("minLength", 0)
        return all(type(item) is str and len(item) >= shortest for item in instance)
    if items.keys() == {"type", "minimum", "maximum"} and items["type"] == "integer":
        low, high = items["minimum"], items["maximum"]
        return all(type(item) is int and low <= item <= high for item in instance)
    return False


def _items(
    validator: Validator, items: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if not isinstance(instance, list) or _all_plain(items, instance):
        return
    yield from Draft202012Validator.VALIDATORS["items"](validator, items, instance, schema)


@cache
def _registry() -> Registry[Any]:
    registry: Registry[Any] = Registry()
    for package, name in _FILES:
        document = json.loads(resources.files(package).joinpath(name).read_text(encoding="utf-8"))
        # A schema that names its dialect is validated by the stock class, not by ours.
        del document["$schema"]
        registry = registry.with_resource(document["$id"], DRAFT202012.create_resource(document))
    return registry


@cache
def _validator(schema_id: str) -> Validator:
    checker = Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_strict_integer)
    kind: type[Validator] = extend(  # type: ignore[no-untyped-call]
        Draft202012Validator, validators={"items": _items}, type_checker=checker
    )
    return kind({"$ref": schema_id}, registry=_registry())


def schema_findings(schema_id: str, document: Any) -> list[Finding]:
    """Every violation of a shipped schema, sorted; at most ``MAX_FINDINGS`` and a note.

    Args:
        schema_id: The schema's ``$id``, such as ``urn:harness:plan:1``, or a pointer into it.
        document: Parsed JSON.
    """
    errors = _validator(schema_id).iter_errors(document)
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
