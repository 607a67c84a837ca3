"""Between JSON documents and the record types, both ways, by the records' own annotations.

A field that is ``None`` is absent from the document (only a compute unit's ``device_uuid`` is
written as null), and a field that the document lacks takes the record's default. Knows nothing of
schemas, rules or files; a document must have passed its schema before it is read here.
"""

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from harness.plan.records import ComputeUnit, Plan

T = TypeVar("T")


@cache
def _hints(record: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(record)


def _convert(annotation: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(annotation, type) and is_dataclass(annotation):
        return from_document(annotation, value)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        if arguments[0] in (str, int):
            return tuple(value)
        return tuple(_convert(arguments[0], item) for item in value)
    if origin in (types.UnionType, typing.Union):
        structured = [kind for kind in arguments if is_dataclass(kind) or typing.get_args(kind)]
        return _convert(structured[0], value) if structured else value
    return value


def from_document(record: type[T], document: Mapping[str, Any]) -> T:
    """Read a validated JSON object into a record type."""
    hashable: Any = record
    hints = _hints(hashable).items()
    return record(
        **{name: _convert(hint, document[name]) for name, hint in hints if name in document}
    )


def to_document(value: Any) -> Any:
    """Write a record, or anything inside one, as JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        keep_null = {"device_uuid"} if isinstance(value, ComputeUnit) else set()
        return {
            name: to_document(item)
            for name, item in named.items()
            if item is not None or name in keep_null
        }
    if isinstance(value, Mapping):
        return {name: to_document(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_document(item) for item in value]
    return value


def plan_from_document(document: Mapping[str, Any]) -> Plan:
    """Read a validated plan document of any supported schema."""
    model = document["model"]
    return from_document(
        Plan,
        {**document, "model_repository": model["repository"], "model_revision": model["revision"]},
    )


def plan_to_document(plan: Plan) -> dict[str, Any]:
    """Write a plan as a native document, without its digest (see ``format.plan_digest``)."""
    document: dict[str, Any] = to_document(plan)
    del document["digest"]
    document["model"] = {
        "repository": document.pop("model_repository"),
        "revision": document.pop("model_revision"),
    }
    return document
