"""Canonical bytes are those of RFC 8785, also where the standard library writes them."""

import sys

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.canonical import MAX_INTEGER, canonical_bytes
from harness.errors import InvalidInputError

_TEXT = st.text(max_size=8)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(1 - MAX_INTEGER, MAX_INTEGER - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT
)
_DOCUMENTS = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(document=_DOCUMENTS)
def test_the_bytes_are_those_of_the_reference_implementation(document: object) -> None:
    assert canonical_bytes(document) == rfc8785.dumps(document)


@pytest.mark.parametrize(
    "document",
    [
        {"\ue000": 1, "\U0001f600": 2},
        ['\x00\x08\x0b\x1f\x7f\u2028/<>"\\'],
        {"a": 1e21, "b": -0.0, "c": 5e-324},
        (1, [True, {"": ()}]),
        {"b": {"d": 1, "c": [2**53 - 1, 1 - 2**53]}, "a": None},
    ],
)
def test_where_the_standard_library_would_differ(document: object) -> None:
    assert canonical_bytes(document) == rfc8785.dumps(document)


def _circular() -> list[object]:
    circular: list[object] = []
    circular.append(circular)
    return circular


def _deep() -> object:
    deep: object = 1
    for _ in range(sys.getrecursionlimit() + 10):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    "document",
    [
        {1: "a"},
        {True: "a"},
        {None: "a"},
        [2**53],
        [-(2**53)],
        [float("nan")],
        [float("inf")],
        ["\ud800"],
        {"\udfff": 1},
        [{1, 2}],
        [b"a"],
        [1j],
        _circular(),
        _deep(),
    ],
    ids=range(14),
)
def test_what_has_no_canonical_form_is_refused(document: object) -> None:
    with pytest.raises(InvalidInputError, match="canonical form"):
        canonical_bytes(document)
