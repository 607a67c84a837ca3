"""A checkpoint on a hub, read by its headers: the same census, and no weights."""

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoint import hub_headers
from harness.checkpoint.census import census
from harness.checkpoint.sources import fetch
from harness.checkpoint.survey import Survey, survey
from harness.errors import CheckpointError, InvalidInputError, NotEvaluableError

INDEX = "model.safetensors.index.json"


def silent(text: str, fraction: float | None) -> None:
    del text, fraction


def survey_of(source: Any, cache: Path) -> Survey:
    return survey({**source, "digest_source": "declared"}, cache, progress=silent)


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def header_bytes(content: bytes) -> int:
    return 8 + int(struct.unpack("<Q", content[:8])[0])


def test_headers_give_the_census_of_the_whole_checkpoint(
    tmp_path: Path, hub: Any, source: Any, weights: list[str]
) -> None:
    found = survey_of(source, tmp_path / "declared")
    assert not list(found.folder.glob("*.safetensors"))
    assert (found.folder / "config.json").is_file()
    assert (found.folder / "tokenizer.json").is_file()
    assert found.tensors == census(fetch(source, tmp_path / "whole"))
    assert found.pin_tensors(["b.one", "a.one"]) == (found.tensors[0], found.tensors[2])
    assert {entry.digest_source for entry in found.tensors} == {"none"}
    assert {entry.sha256 for entry in found.tensors} == {None}


def test_only_the_ranges_of_the_headers_are_asked_for(
    tmp_path: Path, hub: Any, source: Any, weights: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_headers, "FIRST_BYTES", 16)
    survey_of(source, tmp_path)
    for name in weights:
        asked = [each.range for each in hub.contents if each.name == name]
        # The file's kind is told from 512 bytes, which hold these headers whole.
        assert header_bytes(hub.files[name]) < 512
        assert asked == ["bytes=0-511"]


def test_a_longer_header_is_asked_for_whole_and_no_further(
    tmp_path: Path, hub: Any, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_headers, "FIRST_BYTES", 16)
    name = "model.safetensors"
    header = {
        f"t{index}": {"dtype": "U8", "shape": [10], "data_offsets": [10 * index, 10 * index + 10]}
        for index in range(50)
    }
    raw = json.dumps(header).encode()
    hub.files = {"config.json": b"{}", name: struct.pack("<Q", len(raw)) + raw + b"." * 500}
    found = survey_of(source, tmp_path)
    assert [entry.source_bytes for entry in found.tensors] == [10] * 50
    asked = [each.range for each in hub.contents if each.name == name]
    assert asked == ["bytes=0-511", f"bytes=0-{7 + len(raw)}"]


@pytest.mark.parametrize("how", ["whole", "cut"])
def test_a_header_from_a_server_without_ranges_or_in_two_tries(
    tmp_path: Path, hub: Any, source: Any, faults: Any, weights: list[str], how: str
) -> None:
    hub.faults[weights[0]] = [faults.whole] if how == "whole" else [faults.cut(20), faults.well]
    assert len(survey_of(source, tmp_path).tensors) == 3


def test_what_a_plan_pins_is_what_it_needs(
    tmp_path: Path, hub: Any, source: Any, weights: list[str]
) -> None:
    found = survey_of(source, tmp_path)
    pins = found.pin_files(found.pin_tensors(["b.one"]))
    names = sorted(["config.json", INDEX, "tokenizer.json", weights[1]])
    assert [(pin.name, pin.size_bytes, pin.sha256) for pin in pins] == [
        (name, len(hub.files[name]), digest(hub.files[name])) for name in names
    ]
    assert weights[1] not in [each.name for each in hub.contents if each.range is None]


def test_what_was_fetched_whole_changes_no_plan(
    tmp_path: Path, hub: Any, source: Any, weights: list[str]
) -> None:
    before = survey_of(source, tmp_path / "a")
    whole = fetch(source, tmp_path / "b")
    after = survey_of(source, tmp_path / "b")
    assert after.folder == whole
    assert after.tensors == before.tensors
    tensors = before.pin_tensors(["a.one"])
    assert after.pin_files(tensors) == before.pin_files(tensors)


def test_without_the_field_everything_is_fetched_and_measured(
    tmp_path: Path, hub: Any, source: Any, weights: list[str]
) -> None:
    found = survey(source, tmp_path, progress=silent)
    (entry,) = found.pin_tensors(["b.one"])
    assert entry.digest_source == "measured"
    assert entry.sha256 == digest(hub.files[weights[1]][header_bytes(hub.files[weights[1]]) :])
    assert {pin.name for pin in found.pin_files([entry])} >= set(weights)


def test_keys_that_are_not_there_are_listed(tmp_path: Path, hub: Any, source: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        survey_of(source, tmp_path).pin_tensors(["a.one", "x", "y"])
    assert "'x': not in the checkpoint" in str(caught.value)
    assert "'y': not in the checkpoint" in str(caught.value)


def test_weights_without_a_declared_digest_cannot_be_pinned(
    tmp_path: Path, hub: Any, source: Any
) -> None:
    hub.files = {"config.json": b"{}", "model.safetensors": hub.files["config.json"]}
    raw = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    hub.files["model.safetensors"] = struct.pack("<Q", len(raw)) + raw + b"x"
    found = survey_of(source, tmp_path)
    with pytest.raises(CheckpointError) as caught:
        found.pin_files(found.tensors)
    assert "model.safetensors: no SHA-256 is declared" in str(caught.value)
    assert "leave digest_source out" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (struct.pack("<Q", 1 << 60) + b"{" * 2000, "header length 1152921504606846976"),
        (struct.pack("<Q", 5000) + b"{" * 2000, "more than the file's 2000 bytes"),
        (b"<html>" + b" " * 2000, "HTML page"),
        (struct.pack("<Q", 1000) + b"{" * 2000, "not JSON"),
        (b"version https://git-lfs.github.com/spec/v1" + b" " * 2000, "git-lfs pointer"),
    ],
)
def test_what_is_no_header_is_refused_without_reading_on(
    tmp_path: Path, hub: Any, source: Any, weights: list[str], content: bytes, message: str
) -> None:
    hub.files[weights[0]] = content
    with pytest.raises(CheckpointError) as caught:
        survey_of(source, tmp_path)
    assert message in str(caught.value)
    assert f"{weights[0]}: " in str(caught.value)
    assert [each.name for each in hub.contents].count(weights[0]) == 1


def test_a_header_of_a_file_of_another_size(
    tmp_path: Path, hub: Any, source: Any, weights: list[str]
) -> None:
    hub.served[weights[0]] = hub.files[weights[0]][:-1]
    with pytest.raises(CheckpointError) as caught:
        survey_of(source, tmp_path)
    assert f"{len(hub.files[weights[0]]) - 1} bytes" in str(caught.value)


def test_an_index_that_contradicts_headers_or_listing(
    tmp_path: Path, hub: Any, source: Any, weights: list[str]
) -> None:
    weight_map = {"a.one": weights[0], "a.two": weights[1], "b.one": weights[1]}
    hub.files[INDEX] = json.dumps({"weight_map": weight_map}).encode()
    with pytest.raises(CheckpointError) as caught:
        survey_of(source, tmp_path / "a")
    assert "'a.two'" in str(caught.value)
    weight_map["a.two"] = "model-00009.safetensors"
    hub.files[INDEX] = json.dumps({"weight_map": weight_map}).encode()
    with pytest.raises(CheckpointError) as caught:
        survey_of(source, tmp_path / "b")
    assert "model-00009.safetensors: not in the repository" in str(caught.value)


def test_two_sets_of_weights_are_refused(tmp_path: Path, hub: Any, source: Any) -> None:
    hub.files["model.safetensors"] = hub.files[f"{'model-00001-of-00002'}.safetensors"]
    with pytest.raises(CheckpointError, match="both model"):
        survey_of(source, tmp_path)


def test_a_hub_that_falls_silent_during_headers(
    tmp_path: Path, hub: Any, source: Any, faults: Any, weights: list[str]
) -> None:
    hub.faults[weights[1]] = [faults.cut(5)]
    with pytest.raises(NotEvaluableError) as caught:
        survey_of(source, tmp_path)
    assert f"header of {weights[1]}" in str(caught.value)


def test_declared_digests_are_a_hubs_only(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="digest_source is not a field"):
        survey(
            {"kind": "directory", "path": str(tmp_path), "digest_source": "declared"},
            tmp_path,
            progress=silent,
        )


def test_pins_of_a_declared_checkpoint_hold_for_what_is_fetched_later(
    tmp_path: Path, hub: Any, source: Any, weights: list[str]
) -> None:
    found = survey_of(source, tmp_path)
    pins = found.pin_files(found.pin_tensors(["a.one"]))
    hub.served[weights[0]] = hub.files[weights[0]][:-1] + b"\0"
    with pytest.raises(CheckpointError, match="not the one that was asked for"):
        fetch(source, tmp_path, pinned=pins)
    hub.served.clear()
    folder = fetch(source, tmp_path, pinned=pins)
    assert {path.name for path in folder.glob("*.safetensors")} == {weights[0]}
    moved = [replace(pin, sha256=digest(b"")) for pin in pins]
    with pytest.raises(CheckpointError, match="the hub declares"):
        fetch(source, tmp_path / "other", pinned=moved)
