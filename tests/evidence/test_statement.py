import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import rfc8785

from harness.errors import EvidenceError, InvalidInputError
from harness.evidence.statement import (
    MAX_STATEMENT_BYTES,
    Claim,
    check_statement,
    encode_statement,
    parse_statement,
    record_predicate,
    record_statement,
    verdict_predicate,
    verdict_statement,
)
from harness.evidence.store import Store

OPEN_OBJECTS = {"compute_units", "memories", "facts", "planned_bytes", "observed_bytes"}
"""Objects whose names are data."""


@pytest.fixture
def record(store: Store, sample: ModuleType) -> dict[str, Any]:
    return store.read_record(sample.put_record(store))


@pytest.fixture
def verdict(store: Store, sample: ModuleType) -> dict[str, Any]:
    return store.read_verdict(sample.put_verdict(store, sample.put_record(store), failed=True))


def objects(value: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        yield name, value
        for key, item in value.items():
            yield from objects(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from objects(item, name)


@pytest.mark.parametrize("kind", ["record", "verdict"])
def test_bytes_are_canonical_and_read_back(kind: str, request: pytest.FixtureRequest) -> None:
    statement = request.getfixturevalue(kind)
    data = encode_statement(statement)
    assert data == rfc8785.dumps(json.loads(data))
    assert parse_statement(data, where="here") == statement
    read = record_predicate if kind == "record" else verdict_predicate
    write = record_statement if kind == "record" else verdict_statement
    assert write(read(statement)) == statement


def test_the_envelope_is_in_toto_v1(record: dict[str, Any], verdict: dict[str, Any]) -> None:
    assert set(record) == set(verdict) == {"_type", "subject", "predicateType", "predicate"}
    assert record["_type"] == verdict["_type"] == "https://in-toto.io/Statement/v1"
    assert record["predicateType"] == "urn:harness:record:1"
    assert [subject["name"] for subject in record["subject"]] == [
        "plan",
        "tables/step_times/r0",
        "tables/step_times/r1",
        "tables/steps/r0",
        "tables/steps/r1",
        "tables/trials",
    ]
    hexes = [subject["digest"]["sha256"] for subject in record["subject"]]
    named = [record["predicate"]["plan"]["file_digest"]]
    named += [table["digest"] for table in record["predicate"]["tables"]]
    assert [f"sha256:{bare}" for bare in hexes] == named
    assert verdict["subject"] == [
        {
            "name": "record",
            "digest": {"sha256": verdict["predicate"]["record_digest"].removeprefix("sha256:")},
        }
    ]


@pytest.mark.parametrize("kind", ["record", "verdict"])
def test_every_missing_and_unknown_field_is_refused(
    kind: str, request: pytest.FixtureRequest
) -> None:
    statement = request.getfixturevalue(kind)
    num_objects = len(list(objects(statement)))
    assert num_objects >= 8
    for index in range(num_objects):
        name, original = list(objects(statement))[index]
        if name in OPEN_OBJECTS:
            continue
        changed = copy.deepcopy(statement)
        list(objects(changed))[index][1]["surplus"] = 1
        with pytest.raises(EvidenceError):
            check_statement(changed, where="here")
        for field in original:
            changed = copy.deepcopy(statement)
            del list(objects(changed))[index][1][field]
            with pytest.raises(EvidenceError):
                check_statement(changed, where="here")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("plan.digest", "sha256:" + "a" * 64 + "\n"),
        ("plan.digest", "a" * 64),
        ("plan.digest", "xxh3-128:" + "a" * 32),
        ("manifest_digest", ""),
        ("started_at", "2026-01-02 03:04:05"),
        ("started_at", "2026-01-02T03:04:05+02:00"),
        ("started_at", "2026-13-02T03:04:05Z"),
        ("ended_at", "2026-01-02T03:04:05Z\n"),
        ("applicability_key.version", 2),
        ("applicability_key.num_threads", "2"),
        ("applicability_key.num_threads", True),
        ("totals.num_steps", -1),
        ("totals.num_steps", 1.5),
        ("claims.0.label", "guessed"),
        ("source.git_commit", "HEAD"),
        ("source.dirty", "no"),
        ("environment.schema", "harness.environment/2"),
        ("environment.facts", {"nested": {}}),
        ("schema", "harness.record/2"),
        ("experiment", ""),
        ("tables.0.realization", -1),
        ("tables.0.name", "steps/../x"),
        ("tables.0.name", "surprise"),
        ("command", "harness run"),
    ],
)
def test_malformed_values_are_refused(record: dict[str, Any], place: str, value: object) -> None:
    target: Any = record["predicate"]
    *parents, last = place.split(".")
    for parent in parents:
        target = target[int(parent)] if parent.isdigit() else target[parent]
    assert last in target
    target[last] = value
    with pytest.raises(EvidenceError):
        check_statement(record, where="here")


def test_all_broken_rules_are_listed_sorted(record: dict[str, Any]) -> None:
    record["predicate"]["experiment"] = 7
    record["predicate"]["ended_at"] = "later"
    del record["predicate"]["totals"]
    with pytest.raises(EvidenceError) as caught:
        check_statement(record, where="the file")
    text = str(caught.value)
    names = ("$.predicate.ended_at", "$.predicate.experiment", "$.predicate: 'totals'")
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert "where: the file" in text


def test_subjects_must_agree_with_the_predicate(record: dict[str, Any]) -> None:
    for change in (
        lambda s: s["subject"].pop(),
        lambda s: s["subject"].append(s["subject"][0]),
        lambda s: s["subject"].reverse(),
        lambda s: s["subject"][0]["digest"].update(sha256="0" * 64),
        lambda s: s["subject"][1].update(name="tables/steps/r7"),
        lambda s: s["predicate"]["tables"].pop(),
        lambda s: s["predicate"]["plan"].update(file_digest="sha256:" + "0" * 64),
    ):
        changed = copy.deepcopy(record)
        change(changed)
        with pytest.raises(EvidenceError, match="does not agree"):
            check_statement(changed, where="here")


def test_tables_are_named_once_and_in_order(store: Store, sample: ModuleType) -> None:
    steps = [sample.put_rows(store, "steps", sample.step_rows(), n) for n in (1, 0)]
    trials = sample.put_rows(store, "trials", sample.trial_rows())
    statement = record_statement(sample.predicate(store, [trials, *steps]))
    tables = statement["predicate"]["tables"]
    assert [(t["name"], t["realization"]) for t in tables] == [
        ("steps", 0),
        ("steps", 1),
        ("trials", None),
    ]
    with pytest.raises(EvidenceError, match="named twice"):
        record_statement(sample.predicate(store, [trials, *steps, trials]))


def test_the_verdict_must_not_contradict_itself(verdict: dict[str, Any]) -> None:
    verdict["predicate"]["status"] = "passed"
    with pytest.raises(EvidenceError, match="an acceptance check is not"):
        check_statement(verdict, where="here")
    predicate = verdict["predicate"]
    predicate["checks"][0]["kind"] = "telemetry"
    check_statement(verdict, where="here")
    predicate["checks"].append(predicate["checks"][0])
    with pytest.raises(EvidenceError, match="listed twice"):
        check_statement(verdict, where="here")


def test_the_size_limit_holds_when_writing_and_reading(store: Store, sample: ModuleType) -> None:
    base = sample.predicate(store, [])
    size = len(encode_statement(record_statement(base)))
    claim = Claim(name="x", label="declared", detail="y" * 4000)
    room = (MAX_STATEMENT_BYTES - size) // 4000 - 1
    fits = record_statement(replace(base, claims=(*base.claims, *[claim] * room)))
    assert len(encode_statement(fits)) <= MAX_STATEMENT_BYTES
    with pytest.raises(EvidenceError, match="too long"):
        record_statement(replace(base, claims=(*base.claims, *[claim] * (room + 3))))
    with pytest.raises(EvidenceError, match="too long"):
        parse_statement(b" " * (MAX_STATEMENT_BYTES + 1), where="here")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"predicateType":["urn:harness:record:1"]}',
        b'{"predicateType":"urn:harness:record:9"}',
        b"[" * 30_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"a":1,"a":2}',
        b'{"a":NaN}',
        b"\xef\xbb\xbf{}",
        b"\xff\xfe",
        b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtin\x94.",
    ],
)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        parse_statement(data, where="here")


def test_bytes_that_are_not_canonical_are_refused(record: dict[str, Any]) -> None:
    data = encode_statement(record)
    one_as_float = data.replace(b'"num_steps":3', b'"num_steps":3.0')
    assert one_as_float != data
    for changed in (data + b"\n", json.dumps(record).encode(), one_as_float):
        with pytest.raises(EvidenceError, match="not canonical"):
            parse_statement(changed, where="here")


def test_another_kind_of_statement_is_not_read_as_this(
    record: dict[str, Any], verdict: dict[str, Any]
) -> None:
    with pytest.raises(EvidenceError, match="another kind"):
        record_predicate(verdict)
    with pytest.raises(EvidenceError, match="another kind"):
        verdict_predicate(record)
