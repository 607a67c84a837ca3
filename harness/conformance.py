"""Whether a document conforms to a JSON Schema: yes or no, many times faster than with reasons.

A schema becomes nested functions once. Takes exactly the keywords that the shipped schemas use and
refuses a schema with any other; what a document breaks, the library ``jsonschema`` says afterwards.
Knows schemas, nothing of what the documents are for.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Test = Callable[[Any], bool]
_Make = Callable[["_Compiler", Any, Mapping[str, Any]], Test | None]


def conformance(
    schema: Mapping[str, Any],
    others: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    strict_integers: bool = False,
) -> Test:
    """Compile a schema of draft 2020-12 into a test of documents.

    Args:
        schema: The schema; references lead into it, or into one of ``others``.
        others: Further schemas by their ``$id``.
        strict_integers: Whether ``1.0`` is refused where an integer is required.

    Returns:
        A function that is true of exactly the parsed JSON values that have no errors by the schema.

    Raises:
        ValueError: When the schema uses a keyword, or a form of one, that is not known here.
    """
    return _Compiler(schema, others or {}, strict_integers, {}).test(schema)


class _Compiler:
    """Makes the tests of one schema; those of what references mean are made once."""

    def __init__(
        self,
        root: Mapping[str, Any],
        others: Mapping[str, Mapping[str, Any]],
        strict: bool,
        made: dict[tuple[str, str], Test],
    ) -> None:
        self.root = root
        self.others = others
        self.strict = strict
        self.made = made

    def test(self, schema: Any) -> Test:
        if isinstance(schema, bool):
            return lambda value: schema
        unknown = schema.keys() - _MAKERS.keys() - _SILENT
        if unknown:
            raise ValueError(f"schema keywords that are not known here: {sorted(unknown)}")
        made = [
            maker(self, schema[name], schema) for name, maker in _MAKERS.items() if name in schema
        ]
        return _all([each for each in made if each is not None])

    def reference(self, target: str, _: Mapping[str, Any]) -> Test:
        name, pointer = target.split("#") if "#" in target else (target, "")
        base = self.others[name] if name else self.root
        place = (str(base.get("$id", "")), pointer)
        if place not in self.made:
            node: Any = base
            for part in pointer.split("/")[1:]:
                node = node[part]
            # References of another schema lead into that one.
            self.made[place] = _Compiler(base, self.others, self.strict, self.made).test(node)
        return self.made[place]


def _all(tests: Sequence[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]
    if len(tests) == 2:
        one, two = tests
        return lambda value: one(value) and two(value)

    return lambda value: all(test(value) for test in tests)


def _type(compiler: _Compiler, names: str | Sequence[str], _: Mapping[str, Any]) -> Test:
    listed = [names] if isinstance(names, str) else names
    kinds = tuple(kind for name in listed for kind in _TYPES[name])
    takes_booleans = "boolean" in listed
    whole = "integer" in listed and "number" not in listed and not compiler.strict

    def test(value: Any) -> bool:
        if isinstance(value, bool):
            return takes_booleans
        return isinstance(value, kinds) or (
            whole and isinstance(value, float) and value.is_integer()
        )

    return test


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _const(_: _Compiler, constant: Any, __: Mapping[str, Any]) -> Test:
    if isinstance(constant, list | dict):
        raise ValueError("a constant with parts is not known here")
    return lambda value: _equal(value, constant)


def _enum(_: _Compiler, constants: Sequence[Any], __: Mapping[str, Any]) -> Test:
    if any(isinstance(constant, list | dict) for constant in constants):
        raise ValueError("a constant with parts is not known here")
    return lambda value: any(_equal(value, constant) for constant in constants)


def _pattern(_: _Compiler, pattern: str, __: Mapping[str, Any]) -> Test:
    search = re.compile(pattern).search
    return lambda value: not isinstance(value, str) or search(value) is not None


def _at_least(kind: Any, of: Callable[[Any], Any]) -> _Make:
    def make(_: _Compiler, bound: Any, __: Mapping[str, Any]) -> Test:
        return lambda value: (
            not isinstance(value, kind) or isinstance(value, bool) or of(value) >= bound
        )

    return make


def _at_most(kind: Any, of: Callable[[Any], Any]) -> _Make:
    def make(_: _Compiler, bound: Any, __: Mapping[str, Any]) -> Test:
        return lambda value: (
            not isinstance(value, kind) or isinstance(value, bool) or of(value) <= bound
        )

    return make


def _items(compiler: _Compiler, schema: Any, _: Mapping[str, Any]) -> Test:
    test = compiler.test(schema)

    return lambda value: not isinstance(value, list) or all(map(test, value))


def _required(_: _Compiler, names: Sequence[str], __: Mapping[str, Any]) -> Test:
    needed = frozenset(names)
    return lambda value: not isinstance(value, dict) or needed <= value.keys()


def _members(compiler: _Compiler, _: Any, schema: Mapping[str, Any]) -> Test:
    """Properties, patterns and additional properties, in one pass over an object's members."""
    named = {name: compiler.test(each) for name, each in schema.get("properties", {}).items()}
    patterns = [
        (re.compile(pattern).search, compiler.test(each))
        for pattern, each in schema.get("patternProperties", {}).items()
    ]
    other = compiler.test(schema.get("additionalProperties", True))

    def test(value: Any) -> bool:
        if not isinstance(value, dict):
            return True
        for name, member in value.items():
            known = named.get(name)
            if known is not None and not known(member):
                return False
            matching = [each for search, each in patterns if search(name)]
            if not all(each(member) for each in matching):
                return False
            if known is None and not matching and not other(member):
                return False
        return True

    return test


def _if_first(names: tuple[str, ...], make: _Make) -> dict[str, _Make]:
    """One function for keywords that are read together, made at the first that is there."""

    def maker(name: str) -> _Make:
        def made(compiler: _Compiler, value: Any, schema: Mapping[str, Any]) -> Test | None:
            first = next(each for each in names if each in schema)
            return make(compiler, value, schema) if name == first else None

        return made

    return {name: maker(name) for name in names}


def _all_of(compiler: _Compiler, schemas: Sequence[Any], _: Mapping[str, Any]) -> Test:
    return _all([compiler.test(schema) for schema in schemas])


def _one_of(compiler: _Compiler, schemas: Sequence[Any], _: Mapping[str, Any]) -> Test:
    tests = [compiler.test(schema) for schema in schemas]
    return lambda value: sum(test(value) for test in tests) == 1


def _if(compiler: _Compiler, schema: Any, around: Mapping[str, Any]) -> Test:
    condition, then = compiler.test(schema), compiler.test(around.get("then", True))
    return lambda value: not condition(value) or then(value)


_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_SILENT = frozenset({"$schema", "$id", "$defs", "title", "then"})
"""Keywords that test nothing by themselves."""
_MAKERS: Mapping[str, _Make] = {
    "$ref": _Compiler.reference,
    "type": _type,
    "const": _const,
    "enum": _enum,
    "pattern": _pattern,
    "minLength": _at_least(str, len),
    "maxLength": _at_most(str, len),
    "minimum": _at_least((int, float), lambda value: value),
    "maximum": _at_most((int, float), lambda value: value),
    "minItems": _at_least(list, len),
    "maxItems": _at_most(list, len),
    "maxProperties": _at_most(dict, len),
    "items": _items,
    "required": _required,
    **_if_first(("properties", "patternProperties", "additionalProperties"), _members),
    "allOf": _all_of,
    "oneOf": _one_of,
    "if": _if,
}
