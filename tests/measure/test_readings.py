import json

import pytest

from harness.errors import InvalidInputError
from harness.measure.readings import (
    ArenaReading,
    CheckpointRequest,
    DeclaredArena,
    WitnessReading,
    parse_reading,
    parse_request,
)

REQUEST = CheckpointRequest(
    point="after_decode",
    arenas=(
        DeclaredArena(materialization_id="m1", memory_resource_id="r", address=4096, length=8192),
        DeclaredArena(materialization_id="m2", memory_resource_id="r", address=1, length=1),
    ),
    max_rss_bytes=None,
    keep=False,
)
READING = WitnessReading(
    unplanned_bytes=1,
    private_anonymous_bytes=2,
    shared_anonymous_bytes=3,
    memfd_bytes=4,
    new_file_bytes=5,
    new_files=("a",),
    checkpoint_descriptors=("b", "b"),
    checkpoint_mappings=(),
    vm_rss_bytes=6,
    uss_bytes=7,
    arenas=(ArenaReading(materialization_id="m1", mapped_bytes=8, resident_bytes=0),),
)


def through_json(document):
    return json.loads(json.dumps(document))


def test_request_comes_back_as_it_was() -> None:
    document = through_json(REQUEST.to_document())
    assert document["request"] == "checkpoint"
    assert document["arenas"][0] == {
        "materialization_id": "m1",
        "memory_resource_id": "r",
        "address": 4096,
        "length": 8192,
    }
    assert parse_request(document) == REQUEST


def test_reading_comes_back_as_it_was() -> None:
    assert parse_reading(through_json(READING.to_document())) == READING


def arena(**changes):
    return [through_json(REQUEST.to_document())["arenas"][0] | changes]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("point", ""),
        ("point", "after decode"),
        ("point", "baseline\n"),
        ("point", "../x"),
        ("point", 1),
        ("point", "a" * 65),
        ("keep", 1),
        ("keep", None),
        ("max_rss_bytes", -1),
        ("max_rss_bytes", True),
        ("max_rss_bytes", 1.5),
        ("arenas", {}),
        ("arenas", [1]),
        ("arenas", arena(address=0)),
        ("arenas", arena(address=-4096)),
        ("arenas", arena(length=0)),
        ("arenas", arena(length="8192")),
        ("arenas", arena(materialization_id="")),
        ("arenas", arena(materialization_id="x" * 513)),
        ("arenas", arena(memory_resource_id=None)),
        ("arenas", arena(extra=1)),
        ("arenas", arena() + arena(address=1 << 20)),
    ],
)
def test_bad_request_names_the_field(field: str, value: object) -> None:
    document = through_json(REQUEST.to_document()) | {field: value}
    with pytest.raises(InvalidInputError) as caught:
        parse_request(document)
    assert caught.value.expected


@pytest.mark.parametrize("field", sorted(REQUEST.to_document()))
def test_missing_or_unknown_field_is_refused(field: str) -> None:
    document = through_json(REQUEST.to_document())
    with pytest.raises(InvalidInputError, match="bad request"):
        parse_request({name: document[name] for name in document if name != field})
    with pytest.raises(InvalidInputError, match="bad request"):
        parse_request(document | {f"{field}_": 1})


@pytest.mark.parametrize("field", sorted(READING.to_document()))
def test_reading_with_a_bad_field_is_refused(field: str) -> None:
    document = through_json(READING.to_document())
    with pytest.raises(InvalidInputError):
        parse_reading(document | {field: -1})
    del document[field]
    with pytest.raises(InvalidInputError):
        parse_reading(document)
