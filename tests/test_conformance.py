"""The quick test of a document agrees with the library that knows the whole of JSON Schema."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from harness.conformance import conformance
from harness.evidence.documents import schema_errors
from harness.plan.schema import schema_findings

ODD = (None, True, False, 0, 1, -1, 1.0, 0.5, 10**30, "", "x", [], [1], {}, {"x": 1})
"""What takes the place of parts of a document."""
NUM_CHANGES = 60


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a document, and every key or index in it."""
    if isinstance(node, dict | list):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            yield node, key
            yield from places(node[key])


def changed_once(document: Any) -> Iterator[Any]:
    """The document with one member replaced, added or gone; the same object each time."""
    chance, found = random.Random(0), list(places(document))
    for _ in range(NUM_CHANGES):
        container, key = chance.choice(found)
        kept = container[key]
        container[key] = chance.choice(ODD)
        yield document
        container[key] = kept
        if isinstance(container, dict):
            del container[key]
            yield document
            container[key] = kept
            container["unknown member"] = 1
            yield document
            del container["unknown member"]


def agree(quick: Callable[[Any], bool], slow: Callable[[Any], bool], document: Any) -> int:
    """Compare both on the document and on changes of it; returns how many were refused."""
    assert quick(document)
    assert slow(document)
    refused = 0
    for changed in changed_once(document):
        assert quick(changed) == slow(changed), json.dumps(changed)[:2000]
        refused += not quick(changed)
    assert quick(document)
    return refused


def test_records_and_verdicts(repo_root: Path) -> None:
    for kind in ("record", "verdict"):
        path = next((repo_root / f"tests/golden/1/evidence/{kind}s").glob("*.json"))
        schema = json.loads(
            (repo_root / f"harness/evidence/schemas/{kind}-1.schema.json").read_text()
        )
        library = Draft202012Validator(schema)
        document = json.loads(path.read_text())
        assert agree(conformance(schema), library.is_valid, document) > NUM_CHANGES
        assert schema_errors(f"{kind}-1.schema.json", document) == []
        document["predicate"]["schema"] = 1
        assert len(schema_errors(f"{kind}-1.schema.json", document)) == 1


def test_plans(repo_root: Path) -> None:
    from harness.plan.schema import _documents, _test
    from harness.plan.violations import violations

    plan = json.loads((repo_root / "plans/tiny_llama.json").read_text())
    schema = "urn:harness:plan:1"

    def slow(document: Any) -> bool:
        return next(violations(schema, _documents(), document), None) is None

    assert agree(_test(schema), slow, plan) > NUM_CHANGES
    assert schema_findings(schema, plan) == []
    plan["workload"]["decode_steps"] = 1.0
    assert [finding.path for finding in schema_findings(schema, plan)] == [
        "$.workload.decode_steps"
    ]


def test_every_shipped_schema_is_known_whole(repo_root: Path) -> None:
    found = sorted((repo_root / "harness").rglob("*.schema.json"))
    documents = [json.loads(path.read_text()) for path in found]
    others = {each["$id"]: each for each in documents if "$id" in each}
    assert len(documents) == 10
    for document in documents:
        assert not conformance(document, others)({"of no": "kind"})


@pytest.mark.parametrize(
    "schema",
    [{"else": {}}, {"uniqueItems": True}, {"const": []}, {"enum": [{}]}, {"items": {"x": 1}}],
)
def test_what_is_not_known_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not known here"):
        conformance(schema)


scalars = st.sampled_from([None, True, False, 0, 1, 2, -1, 1.0, 1.5, "", "a", "ab", "b"])
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)
types = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])
bounds = st.integers(0, 3)
leaves = st.fixed_dictionaries(
    {},
    optional={
        "type": types | st.lists(types, min_size=1, max_size=2, unique=True),
        "const": scalars,
        "enum": st.lists(scalars, min_size=1, max_size=3),
        "pattern": st.sampled_from(["a", "^b$", "^a.?"]),
        **dict.fromkeys(
            ("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"), bounds
        ),
        "maxProperties": bounds,
        "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
        "$ref": st.just("#/$defs/d"),
    },
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas made of schemas."""
    either = inner | st.booleans()
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("abc"), either, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["a", "b|c"]), either, max_size=2),
            "additionalProperties": either,
            "items": either,
            "allOf": st.lists(either, min_size=1, max_size=2),
            "oneOf": st.lists(either, min_size=1, max_size=3),
            "if": either,
            "then": either,
            "type": types,
        },
    )


@given(
    schema=st.recursive(leaves, nested, max_leaves=6),
    shared=st.sampled_from([{"type": "integer"}, {"maxLength": 1}, {"items": {"const": 1}}]),
    documents=st.lists(values, min_size=1, max_size=8),
)
def test_any_schema_of_the_known_keywords(
    schema: dict[str, Any], shared: dict[str, Any], documents: list[Any]
) -> None:
    whole = {**schema, "$defs": {"d": shared}}
    quick, library = conformance(whole), Draft202012Validator(whole)
    for document in documents:
        assert quick(document) == library.is_valid(document), document
