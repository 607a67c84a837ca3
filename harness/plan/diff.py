"""Differences between two documents, such as two plans: every one, by place, sorted.

Objects in an array are matched by their ``id`` where all have one, and names in an array by
themselves, so that one insertion is one difference. Knows nothing of what documents mean.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.plan.schema import json_path

ABSENT = "(absent)"
_Parts = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True, order=True)
class Difference:
    """One place at which two documents differ."""

    path: str
    expected: str
    """The first document's value as JSON, or ``(absent)``."""
    got: str
    """The second document's value."""


def diff_documents(first: Any, second: Any) -> list[Difference]:
    """List every difference, sorted by path. Numbers are equal when their values are."""
    return sorted(_diff((), first, second))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _difference(parts: _Parts, expected: str, got: str) -> Difference:
    return Difference(path=json_path(parts), expected=expected, got=got)


def _diff(parts: _Parts, a: Any, b: Any) -> Iterator[Difference]:
    if isinstance(a, dict) and isinstance(b, dict):
        for name in a.keys() | b.keys():
            yield from _diff_member((*parts, name), a, b, name)
    elif isinstance(a, list) and isinstance(b, list):
        yield from _diff_arrays(parts, a, b)
    elif isinstance(a, bool) or isinstance(b, bool):
        if a is not b:
            yield _difference(parts, _text(a), _text(b))
    elif a != b:
        yield _difference(parts, _text(a), _text(b))


def _diff_member(
    parts: _Parts, a: dict[str, Any], b: dict[str, Any], name: str
) -> Iterator[Difference]:
    if name not in b:
        yield _difference(parts, _text(a[name]), ABSENT)
    elif name not in a:
        yield _difference(parts, ABSENT, _text(b[name]))
    else:
        yield from _diff(parts, a[name], b[name])


def _names(items: Sequence[Any]) -> list[str] | None:
    """Unique names of an array's items, or ``None`` when they have none."""
    found = (item.get("id") if isinstance(item, dict) else item for item in items)
    names = [name for name in found if isinstance(name, str)]
    return names if len(set(names)) == len(items) else None


def _diff_arrays(parts: _Parts, a: list[Any], b: list[Any]) -> Iterator[Difference]:
    first, second = _names(a), _names(b)
    if first is None or second is None:
        yield from _diff_positions(parts, a, b)
        return
    by_name = dict(zip(first, a, strict=True)), dict(zip(second, b, strict=True))
    for name in by_name[0].keys() | by_name[1].keys():
        yield from _diff_member((*parts, name), *by_name, name)
    common = [name for name in first if name in by_name[1]]
    if common != [name for name in second if name in by_name[0]]:
        yield _difference(parts, f"order {_text(first)}", f"order {_text(second)}")


def _diff_positions(parts: _Parts, a: list[Any], b: list[Any]) -> Iterator[Difference]:
    for index in range(max(len(a), len(b))):
        where = (*parts, index)
        if index >= len(b):
            yield _difference(where, _text(a[index]), ABSENT)
        elif index >= len(a):
            yield _difference(where, ABSENT, _text(b[index]))
        else:
            yield from _diff(where, a[index], b[index])
