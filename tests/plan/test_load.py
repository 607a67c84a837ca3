import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from plan_sample import Document, corrupted, digest_of, file_of, native_document

from harness.canonical import sha256_digest
from harness.errors import InvalidInputError, PlanError
from harness.plan.documents import plan_to_document
from harness.plan.format import plan_file_bytes
from harness.plan.load import (
    examine_plan,
    load_plan,
    parse_plan,
    plan_digest,
    sidecar_bytes,
    sidecar_path,
)


def refused(document: Document) -> PlanError:
    with pytest.raises(PlanError) as caught:
        parse_plan(file_of(document), where="test")
    return caught.value


def paths(error: PlanError) -> list[str]:
    return [finding.path for finding in error.findings]


def test_a_native_plan_is_read_whole() -> None:
    document = native_document()
    loaded = parse_plan(file_of(document), where="test")
    assert loaded.document == document
    assert loaded.file_digest == sha256_digest(file_of(document))
    assert loaded.plan.digest == document["digest"]
    assert loaded.plan.model_revision == "r1"
    assert loaded.plan.materializations[0].expected_bytes == 76
    assert loaded.plan.materializations[5].realize is False
    assert loaded.plan.resources.nodes[0].compute_units[0].device_uuid is None
    assert loaded.plan.execution[0].required_state[1].representations == ("cells",)
    assert loaded.plan.checkpoint is not None
    assert loaded.plan.checkpoint.source["kind"] == "hub"
    assert loaded.plan.eviction_policy is None


def test_records_write_the_same_document_back() -> None:
    document = native_document()
    del document["digest"]
    plan = parse_plan(file_of(native_document()), where="test").plan
    assert plan_to_document(plan) == document


def test_the_native_digest_is_that_of_canonical_bytes() -> None:
    assert plan_digest(native_document()) == digest_of(native_document())
    # RFC 8785 writes numbers by value, whatever the file's spelling.
    first = corrupted(lambda d: d["adapter_data"]["config"].update(theta=10000.0))
    second = corrupted(lambda d: d["adapter_data"]["config"].update(theta=10000))
    assert plan_digest(first) == plan_digest(second)


def test_the_published_plan_is_read_byte_for_byte(published_bytes: bytes) -> None:
    loaded = parse_plan(published_bytes, where="published")
    expected = "sha256:430f84e406f51d037ab8ae2844865ff4d6b60d17a1d43d54180d509682ca2281"
    assert loaded.plan.digest == plan_digest(loaded.document) == expected
    assert loaded.file_digest.startswith("sha256:11bebfc891d078ea")
    assert plan_file_bytes(loaded.document) == published_bytes
    assert len(loaded.plan.adapter_data.allowed_tensor_keys) == 44_362
    assert loaded.plan.workload is None


def _objects(value: Any, path: str = "$") -> Iterator[tuple[str, Document]]:
    if isinstance(value, dict):
        yield path, value
        for name, item in value.items():
            yield from _objects(item, f"{path}.{name}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _objects(item, f"{path}[{index}]")


def _closed_objects() -> list[str]:
    found = [path for path, _ in _objects(native_document())]
    return [path for path in found if path != "$.adapter_data.config"]


@pytest.mark.parametrize("path", _closed_objects())
def test_an_unknown_field_is_refused_in_every_object(path: str) -> None:
    document = corrupted(lambda d: dict(_objects(d))[path].update(surprise=1))
    assert path in paths(refused(document))


@pytest.mark.parametrize("path", _closed_objects())
def test_a_missing_field_is_refused_in_every_object(path: str) -> None:
    optional = {
        "backing_source_id", "reconstruction_inputs", "path_id", "realize", "limit", "prompt_text",
        "digest",
    }  # fmt: skip
    for name in dict(_objects(native_document()))[path].keys() - optional:

        def drop(document: Document, name: str = name) -> None:
            dict(_objects(document))[path].pop(name)

        assert refused(corrupted(drop)), name


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("$.materializations[0].expected_bytes", lambda d: _set(d, "expected_bytes", -1)),
        ("$.materializations[0].expected_bytes", lambda d: _set(d, "expected_bytes", 1.0)),
        ("$.materializations[0].expected_bytes", lambda d: _set(d, "expected_bytes", True)),
        ("$.materializations[0].expected_bytes", lambda d: _set(d, "expected_bytes", "76")),
        ("$.materializations[0].role", lambda d: _set(d, "role", "stage")),
        ("$.materializations[0].persistence", lambda d: _set(d, "persistence", "persistant")),
        ("$.materializations[0].requirement", lambda d: _set(d, "requirement", "maybe")),
        ("$.materializations[0].id", lambda d: _set(d, "id", "mat.bank\n")),
        ("$.materializations[0].id", lambda d: _set(d, "id", "")),
        ("$.materializations[0].path_id", lambda d: _set(d, "path_id", None)),
        ("$.logical_state_units[0].semantic_class", lambda d: _state(d, "constant")),
        ("$.resources.nodes[0].compute_units[0].kind", lambda d: _unit(d, "gpu")),
        ("$.resources.links[0].kind", lambda d: _link(d, "copy")),
        ("$.determinism.dtype", lambda d: d["determinism"].update(dtype="float16")),
        ("$.workload.sampling", lambda d: d["workload"].update(sampling="random")),
        ("$.workload.chunk_rows", lambda d: d["workload"].update(chunk_rows=0)),
        ("$.workload.prompt_token_ids[1]", lambda d: _token(d, -5)),
        ("$.workload.prompt_token_ids[1]", lambda d: _token(d, 2.0)),
        ("$.workload.prompt_token_ids[1]", lambda d: _token(d, True)),
        ("$.workload.prompt_token_ids", lambda d: d["workload"].update(prompt_token_ids=[])),
        ("$.adapter_data.allowed_tensor_keys[1]", lambda d: _key(d, 5)),
        ("$.adapter_data.allowed_tensor_keys[1]", lambda d: _key(d, "")),
        ("$.checkpoint.files[0].sha256", lambda d: _file(d, "0" * 64)),
        ("$.checkpoint.files[0].sha256", lambda d: _file(d, "sha256:" + "0" * 64 + "\n")),
        ("$.checkpoint.files[0].sha256", lambda d: _file(d, "xxh3-128:" + "0" * 32)),
        ("$.checkpoint.source.kind", lambda d: d["checkpoint"]["source"].update(kind="ftp")),
        ("$.checkpoint.source", lambda d: d["checkpoint"]["source"].pop("revision")),
        ("$.checkpoint.source", lambda d: d["checkpoint"].update(source={"kind": "wheel"})),
        ("$.eviction_policy", lambda d: d.update(eviction_policy=None)),
    ],
)
def test_a_wrong_value_is_refused_by_its_place(
    path: str, change: Callable[[Document], object]
) -> None:
    assert path in paths(refused(corrupted(change)))


def _set(document: Document, name: str, value: Any) -> None:
    document["materializations"][0][name] = value


def _state(document: Document, value: str) -> None:
    document["logical_state_units"][0]["semantic_class"] = value


def _unit(document: Document, value: str) -> None:
    document["resources"]["nodes"][0]["compute_units"][0]["kind"] = value


def _link(document: Document, value: str) -> None:
    document["resources"]["links"][0]["kind"] = value


def _token(document: Document, value: Any) -> None:
    document["workload"]["prompt_token_ids"][1] = value


def _key(document: Document, value: Any) -> None:
    document["adapter_data"]["allowed_tensor_keys"][1] = value


def _file(document: Document, value: str) -> None:
    document["checkpoint"]["files"][0]["sha256"] = value


def test_optional_fields_are_absent_by_default_and_change_nothing_else() -> None:
    with_policy = corrupted(lambda d: d.update(eviction_policy="none/1"))
    assert parse_plan(file_of(with_policy), where="test").plan.eviction_policy == "none/1"
    assert with_policy["digest"] != native_document()["digest"]


def test_every_violation_is_listed_sorted() -> None:
    def spoil(document: Document) -> None:
        _set(document, "expected_bytes", -1)
        document["surprise"] = 1
        document["workload"]["chunk_rows"] = 0
        del document["timeouts"]

    error = refused(corrupted(spoil))
    assert list(error.findings) == sorted(error.findings)
    assert paths(error) == [
        "$",
        "$",
        "$.materializations[0].expected_bytes",
        "$.workload.chunk_rows",
    ]
    assert all(path in str(error) for path in paths(error))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: b"\xef\xbb\xbf" + data, "byte order mark"),
        (lambda data: data.replace(b'"chunk_rows": 2', b'"chunk_rows": NaN'), "NaN"),
        (lambda data: data.replace(b'"chunk_rows": 2', b'"chunk_rows": Infinity'), "Infinity"),
        (
            lambda data: data.replace(b'"chunk_rows": 2', b'"chunk_rows": 9007199254740993'),
            "2**53",
        ),
        (
            lambda data: data.replace(b'"chunk_rows": 2', b'"chunk_rows": 2, "chunk_rows": 2'),
            "duplicate keys ['chunk_rows']",
        ),
        (lambda data: data.replace(b'"size": 8', b'"size": ' + b"[" * 99 + b"]" * 99), "nested"),
        (lambda data: data.replace(b'"size": 8', b'"size": ' + b"[" * 60_000), "too large"),
        (lambda data: data[:-20], "not strict JSON"),
        (lambda data: data.replace(b"one two", b"one \xff two"), "utf-8"),
    ],
)
def test_what_two_readers_could_disagree_about_is_refused(
    spoil: Callable[[bytes], bytes], says: str
) -> None:
    data = file_of(native_document())
    spoiled = spoil(data)
    assert spoiled != data
    with pytest.raises(InvalidInputError) as caught:
        parse_plan(spoiled, where="test")
    assert says in str(caught.value)


def test_an_integer_without_a_canonical_form_is_refused() -> None:
    data = file_of(native_document()).replace(b'"size": 8', b'"size": 9007199254740992')
    with pytest.raises(InvalidInputError, match="canonical form"):
        parse_plan(data, where="test")


def test_half_a_surrogate_pair_is_refused() -> None:
    data = file_of(native_document()).replace(b'"size": 8', b'"\\ud800": 8')
    with pytest.raises(InvalidInputError, match="canonical form"):
        parse_plan(data, where="test")


@pytest.mark.parametrize("text", ["[]", "3", "null", '{"schema": ["harness.plan/1"]}', "{}"])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="not a plan"):
        parse_plan(text.encode(), where="test")


def test_a_digest_that_does_not_match_is_refused() -> None:
    document = native_document()
    document["plan_version"] = "sample-2"
    error = refused(document)
    assert paths(error) == ["$.digest"]
    assert digest_of(document) in str(error)
    assert native_document()["digest"] in str(error)


def test_a_digest_with_a_trailing_newline_is_refused() -> None:
    document = native_document()
    document["digest"] += "\n"
    assert paths(refused(document))[0] == "$.digest"


def test_a_hostile_plan_costs_bounded_findings() -> None:
    document = native_document()
    document["authorities"] = [{"a": 1} for _ in range(5_000)]
    error = refused(document)
    assert len(error.findings) == 1001
    assert "more than 1000" in str(error.findings[-1])


def test_messages_are_short_and_ascii() -> None:
    document = corrupted(lambda d: _set(d, "role", "ä\x1b[31m" + "x" * 10_000))
    (finding,) = refused(document).findings
    assert len(str(finding)) < 500
    assert str(finding).isascii()
    assert "\x1b" not in str(finding)


def test_examining_lists_the_digest_and_still_reads_the_plan() -> None:
    document = native_document()
    document["plan_version"] = "sample-2"
    examined = examine_plan(file_of(document), where="test")
    assert [finding.path for finding in examined.findings] == ["$.digest"]
    assert examined.loaded is not None
    assert examined.loaded.plan.plan_version == "sample-2"


def write_pair(folder: Path) -> Path:
    path = folder / "sample.json"
    data = file_of(native_document())
    path.write_bytes(data)
    sidecar_path(path).write_bytes(sidecar_bytes(path, data))
    return path


def test_the_sidecar_is_checked_when_it_exists(tmp_path: Path) -> None:
    path = write_pair(tmp_path)
    assert sidecar_path(path).read_text() == (
        f"{sha256_digest(path.read_bytes()).removeprefix('sha256:')}  sample.json\n"
    )
    assert load_plan(path).path == path
    path.write_bytes(json.dumps(native_document()).encode())
    with pytest.raises(PlanError, match="sidecar"):
        load_plan(path)
    sidecar_path(path).unlink()
    assert load_plan(path).plan.digest == native_document()["digest"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace(b"sample.json", b"other.json"),
        lambda text: text.upper(),
        lambda text: text.replace(b"  ", b" "),
        lambda text: text.rstrip(),
        lambda text: text + b"\n",
        lambda text: b"",
        lambda text: text * 1000,
    ],
)
def test_a_sidecar_of_another_form_is_refused(
    tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    path = write_pair(tmp_path)
    sidecar = sidecar_path(path)
    sidecar.write_bytes(spoil(sidecar.read_bytes()))
    with pytest.raises(PlanError, match="sidecar"):
        load_plan(path)


@pytest.mark.parametrize("which", ["plan", "sidecar", "both"])
def test_a_crlf_checkout_is_explained(tmp_path: Path, which: str) -> None:
    path = write_pair(tmp_path)
    files = {"plan": [path], "sidecar": [sidecar_path(path)]}
    files["both"] = files["plan"] + files["sidecar"]
    for file in files[which]:
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(PlanError, match="autocrlf"):
        load_plan(path)
    if which == "plan":
        sidecar_path(path).unlink()
        with pytest.raises(PlanError, match="autocrlf"):
            load_plan(path)


def test_a_missing_plan_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="not a file"):
        load_plan(tmp_path / "none.json")


def test_the_sample_is_not_changed_by_corrupting_a_copy() -> None:
    before = copy.deepcopy(native_document())
    corrupted(lambda d: _set(d, "role", "x"))
    assert native_document() == before
