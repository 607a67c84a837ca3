"""Compare an expected document with an actual one, place by place, and list every difference.

The expected document holds literal values, and :class:`Free` leaves where nothing predicts the
value: there only the form is checked, and the place is listed as unbound. :class:`Relation` says
what must hold between places. Knows JSON and nothing of what the documents mean.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from harness.plan.schema import json_path

Place = tuple[str | int, ...]
"""Keys and indices from the root of a document."""
MAX_TEXT = 300


@dataclass(frozen=True, kw_only=True, order=True)
class Mismatch:
    """One place where a document is not what it must be."""

    path: str
    expected: str
    got: str


@dataclass(frozen=True, kw_only=True, order=True)
class Unbound:
    """One place whose value nothing in the plan or in the rest of the document determines."""

    path: str
    reason: str
    """``telemetry``, ``calculated`` or ``declared``."""
    bound: str
    """What is still checked of it."""


@dataclass(frozen=True, kw_only=True)
class Free:
    """A leaf that nothing predicts."""

    form: str
    """``count`` (an integer that is not negative) or ``text`` (not empty)."""
    reason: str | None
    """Why it is unbound; ``None`` when an equality with other places determines it."""
    bound: str = ""
    """Relations that still hold it, in words."""

    def admits(self, value: object) -> bool:
        """Whether ``value`` has the form."""
        if self.form == "count":
            return type(value) is int and value >= 0
        return isinstance(value, str) and value != ""


@dataclass(frozen=True, kw_only=True)
class Relation:
    """Something that must hold between integers at several places; skipped where one is none."""

    text: str
    places: tuple[Place, ...]
    holds: Callable[..., bool]
    """Called with the values at ``places``, in order."""


def render(value: Any) -> str:
    """Render a value as bounded JSON text, for a difference."""
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = repr(type(value))
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def compare(expected: Any, actual: Any, place: Place = ()) -> tuple[list[Mismatch], list[Unbound]]:
    """Compare two documents; values are equal only when their types are.

    Args:
        expected: Literal values, containers and :class:`Free` leaves.
        actual: A parsed JSON document.
        place: Where both stand.

    Returns:
        Every mismatch, and every unbound place; neither sorted.
    """
    mismatches: list[Mismatch] = []
    unbound: list[Unbound] = []
    for item in _walk(expected, actual, place):
        if isinstance(item, Mismatch):
            mismatches.append(item)
        else:
            unbound.append(item)
    return mismatches, unbound


def _walk(expected: Any, actual: Any, place: Place) -> Iterator[Mismatch | Unbound]:
    if isinstance(expected, Free):
        path = json_path(place)
        if expected.reason is not None:
            yield Unbound(path=path, reason=expected.reason, bound=expected.bound)
        if not expected.admits(actual):
            yield Mismatch(path=path, expected=f"a {expected.form}", got=render(actual))
    elif isinstance(expected, dict):
        yield from _walk_object(expected, actual, place)
    elif isinstance(expected, list | tuple):
        yield from _walk_array(expected, actual, place)
    elif type(expected) is not type(actual) or expected != actual:
        yield Mismatch(path=json_path(place), expected=render(expected), got=render(actual))


def _walk_object(
    expected: dict[str, Any], actual: Any, place: Place
) -> Iterator[Mismatch | Unbound]:
    if not isinstance(actual, dict):
        yield Mismatch(path=json_path(place), expected="an object", got=render(actual))
        return
    for key in expected:
        if key in actual:
            yield from _walk(expected[key], actual[key], (*place, key))
        else:
            yield Mismatch(
                path=json_path((*place, key)), expected=_describe(expected[key]), got="absent"
            )
    for key in actual:
        if key not in expected:
            yield Mismatch(
                path=json_path((*place, str(key))), expected="absent", got=render(actual[key])
            )


def _walk_array(
    expected: list[Any] | tuple[Any, ...], actual: Any, place: Place
) -> Iterator[Mismatch | Unbound]:
    if not isinstance(actual, list | tuple):
        yield Mismatch(path=json_path(place), expected="an array", got=render(actual))
        return
    for index, (one, other) in enumerate(zip(expected, actual, strict=False)):
        yield from _walk(one, other, (*place, index))
    for index in range(len(actual), len(expected)):
        yield Mismatch(
            path=json_path((*place, index)), expected=_describe(expected[index]), got="absent"
        )
    for index in range(len(expected), len(actual)):
        yield Mismatch(
            path=json_path((*place, index)), expected="absent", got=render(actual[index])
        )


def _describe(expected: Any) -> str:
    if isinstance(expected, Free):
        return f"a {expected.form}"
    if isinstance(expected, dict):
        return "an object with " + ", ".join(sorted(expected))
    return render(expected)


def find(document: Any, place: Place) -> Any:
    """Return the value at ``place``, or ``None`` when there is none."""
    for step in place:
        if isinstance(step, int):
            if not isinstance(document, list | tuple) or step >= len(document):
                return None
            document = document[step]
        else:
            document = document.get(step) if isinstance(document, dict) else None
    return document


def broken(relations: Iterable[Relation], document: Any) -> Iterator[Mismatch]:
    """Yield one mismatch for every relation that does not hold, naming all its places."""
    for relation in relations:
        values = [find(document, place) for place in relation.places]
        if any(type(value) is not int for value in values) or relation.holds(*values):
            continue
        named = zip(relation.places, values, strict=True)
        yield Mismatch(
            path=json_path(relation.places[0]),
            expected=relation.text,
            got=", ".join(f"{json_path(place)} = {value}" for place, value in named),
        )
