from typing import Any

import pytest
from plan_sample import corrupted, native_document

from harness.plan.diff import Difference, diff_documents


def listed(first: Any, second: Any) -> list[tuple[str, str, str]]:
    return [(item.path, item.expected, item.got) for item in diff_documents(first, second)]


def test_equal_documents_do_not_differ() -> None:
    assert diff_documents(native_document(), native_document()) == []
    assert diff_documents({"a": 1, "b": 1.0}, {"b": 1, "a": 1.0}) == []


def test_every_difference_is_listed_by_place() -> None:
    def change(document: Any) -> None:
        document["materializations"][1]["expected_bytes"] = 141
        document["materializations"].pop(0)
        document["eviction_policy"] = "none/1"
        del document["workload"]["prompt_text"]

    first = native_document()
    second = corrupted(change)
    assert listed(first, second) == [
        ("$.digest", f'"{first["digest"]}"', f'"{second["digest"]}"'),
        ("$.eviction_policy", "(absent)", '"none/1"'),
        (
            '$.materializations["mat.bank.resident"].expected_bytes',
            "140",
            "141",
        ),
        (
            '$.materializations["mat.bank.stage"]',
            diff_documents(first, second)[3].expected,
            "(absent)",
        ),
        ("$.workload.prompt_text", '"one two three"', "(absent)"),
    ]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (True, 1, [("$", "true", "1")]),
        (False, 0, [("$", "false", "0")]),
        (None, 0, [("$", "null", "0")]),
        ([], {}, [("$", "[]", "{}")]),
        ([1, 2], [1, 3, 4], [("$[1]", "2", "3"), ("$[2]", "(absent)", "4")]),
        ([1, 2], [1], [("$[1]", "2", "(absent)")]),
        (["a", "b"], ["b"], [("$.a", '"a"', "(absent)")]),
        (["a", "b"], ["b", "a"], [("$", 'order ["a", "b"]', 'order ["b", "a"]')]),
        (["a", "a"], ["a"], [("$[1]", '"a"', "(absent)")]),
        ([{"id": "x", "n": 1}], [{"id": "x", "n": 2}], [("$.x.n", "1", "2")]),
        ({"a b": 1}, {}, [('$["a b"]', "1", "(absent)")]),
    ],
)
def test_values_differ_by_type_and_arrays_by_name(
    first: Any, second: Any, expected: list[tuple[str, str, str]]
) -> None:
    assert listed(first, second) == expected


def test_differences_are_sorted() -> None:
    found = diff_documents({"c": 1, "b": 1, "a": 1}, {})
    assert found == sorted(found)
    assert found[0] == Difference(path="$.a", expected="1", got="(absent)")
