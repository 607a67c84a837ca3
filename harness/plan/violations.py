"""What a document that breaks one of the package's schemas breaks, in the words of ``jsonschema``.

Apart, since that library takes a tenth of a second to load and most documents break nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from referencing import Registry
from referencing.jsonschema import DRAFT202012


def violations(
    schema_id: str, documents: Mapping[str, Mapping[str, Any]], instance: Any
) -> Iterator[ValidationError]:
    """Every violation of one of the schemas, in no particular order.

    Args:
        schema_id: The schema's ``$id``, or a pointer into it.
        documents: The schemas, by their ``$id``.
        instance: Parsed JSON.
    """
    registry: Registry[Any] = Registry()
    for document in documents.values():
        # A schema that names its dialect is validated by the stock class, not by ours.
        stripped = {name: value for name, value in document.items() if name != "$schema"}
        registry = registry.with_resource(stripped["$id"], DRAFT202012.create_resource(stripped))
    checker = Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_strict_integer)
    kind: type[Validator] = extend(  # type: ignore[no-untyped-call]
        Draft202012Validator, validators={"items": _items}, type_checker=checker
    )
    yield from kind({"$ref": schema_id}, registry=registry).iter_errors(instance)


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
