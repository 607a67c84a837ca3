"""What is fetched from a hub, from where, and with whose token."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants

from harness.checkpoint import hub_http, hub_listing
from harness.checkpoint.census import census, verify_files
from harness.checkpoint.sources import fetch
from harness.errors import CheckpointError, ExitCode, InvalidInputError, NotEvaluableError

COMPANIONS = {"config.json", "tokenizer.json", "model.safetensors.index.json"}


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".complete.json"
    }


def no_folder(cache: Path) -> bool:
    return [path.name for path in cache.iterdir() if path.name[0] != "."] == []


def test_one_commit_is_fetched_once_into_a_plain_folder(
    tmp_path: Path, hub: Any, source: Any, weights: list[str]
) -> None:
    folder = fetch(source, tmp_path)
    wanted = COMPANIONS | set(weights)
    assert files_of(folder) == {name: hub.files[name] for name in wanted}
    assert sorted(hub.asked) == sorted(wanted)
    assert len(census(folder)) == 3
    num_requests = len(hub.requests)
    assert fetch(source, tmp_path) == folder
    assert len(hub.requests) == num_requests


def test_patterns_narrow_what_is_fetched(
    tmp_path: Path, hub: Any, source: Any, weights: list[str]
) -> None:
    allow = ["*.safetensors", "model.safetensors.index.json", "config.json"]
    folder = fetch({**source, "allow": allow}, tmp_path)
    assert files_of(folder).keys() == {*weights, "model.safetensors.index.json", "config.json"}
    assert "tokenizer.json" not in hub.asked


def test_a_plan_fetches_no_weights_but_its_own(
    tmp_path: Path, hub: Any, source: Any, weights: list[str], pins: list[Any]
) -> None:
    folder = fetch(source, tmp_path, pinned=pins)
    assert files_of(folder).keys() == COMPANIONS | {weights[1]}
    assert weights[0] not in hub.asked
    assert verify_files(folder, pins) == []
    assert fetch(source, tmp_path, pinned=pins) == folder
    assert hub.asked.count(weights[1]) == 1


def test_a_whole_checkpoint_serves_every_plan(
    tmp_path: Path, hub: Any, source: Any, pins: list[Any]
) -> None:
    whole = fetch(source, tmp_path)
    num_requests = len(hub.requests)
    assert fetch(source, tmp_path, pinned=pins) == whole
    assert len(hub.requests) == num_requests


def test_other_kinds_are_fetched_whole_for_a_plan_too(tmp_path: Path, pins: list[Any]) -> None:
    tiny = {
        "kind": "synthetic",
        "generator": "shake256/1",
        "seed": 1,
        "family": "llama",
        "config": {"vocab_size": 8},
        "dtype": "float32",
        "tensors": [{"key": "a", "shape": [2]}],
    }
    assert fetch(tiny, tmp_path, pinned=pins) == fetch(tiny, tmp_path)


def test_how_digests_come_to_be_is_no_part_of_what_is_fetched(
    tmp_path: Path, hub: Any, source: Any
) -> None:
    assert fetch({**source, "digest_source": "declared"}, tmp_path) == fetch(source, tmp_path)


def test_progress_is_told_in_steps(
    tmp_path: Path, hub: Any, source: Any, weights: list[str]
) -> None:
    told: list[tuple[str, float | None]] = []
    fetch(source, tmp_path, progress=lambda text, done: told.append((text, done)))
    fractions = [done for text, done in told if text.startswith("downloading")]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0
    assert f"downloading {weights[1]}" in [text for text, _ in told]
    assert len(told) < 3 * len(hub.asked)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"revision": "main"}, "not a full commit hash"),
        ({"revision": "0123456789ab"}, "not a full commit hash"),
        ({"revision": "0" * 40 + "\n"}, "not a full commit hash"),
        ({"repository": "../x"}, "not owner/name"),
        ({"repository": "https://host/x"}, "not owner/name"),
        ({"repository": "a/b/c"}, "not owner/name"),
        ({"allow": ["*"]}, "allow pattern '*'"),
        ({"allow": ["*.bin"]}, "allow pattern '*.bin'"),
        ({"allow": ["../*.json"]}, "allow pattern"),
        ({"allow": ["*.py", "*.json"]}, "allow pattern '*.py'"),
        ({"allow": [1]}, "not a list of strings"),
        ({"token": "x"}, "token is not a field"),
        ({"digest_source": "guessed"}, "digest_source 'guessed' is not declared"),
        ({"digest_source": 1}, "digest_source is not a str"),
        ({"revision": "main", "repository": "a/b/c"}, "not owner/name"),
    ],
)
def test_sources_that_are_refused_before_anything_is_asked(
    tmp_path: Path, hub: Any, source: Any, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        fetch({**source, **change}, tmp_path / "cache")
    assert message in str(caught.value)
    assert hub.requests == []
    assert not (tmp_path / "cache").exists()


# What the hub does not have, or does not give


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"revision": "f" * 40}, "RevisionNotFound"),
        ({"repository": "owner/other"}, "RepoNotFound"),
    ],
)
def test_a_commit_that_the_hub_does_not_have(
    tmp_path: Path, hub: Any, source: Any, change: dict[str, str], code: str
) -> None:
    asked = {**source, **change}
    with pytest.raises(CheckpointError) as caught:
        fetch(asked, tmp_path)
    assert caught.value.exit_code == ExitCode.INVALID_INPUT
    for part in (asked["repository"], asked["revision"], code, "what to do"):
        assert part in str(caught.value)
    assert len(hub.requests) == 1
    assert no_folder(tmp_path)


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ((403, {"X_Error_Code": "GatedRepo"}), NotEvaluableError, "terms to be accepted"),
        ((401, {"X_Error_Code": "GatedRepo"}), NotEvaluableError, "terms to be accepted"),
        ((403, {}), NotEvaluableError, "terms to be accepted"),
        ((404, {"X_Error_Code": "EntryNotFound"}), CheckpointError, "EntryNotFound"),
        ((451, {}), NotEvaluableError, "status 451"),
        ((503, {}), NotEvaluableError, "status 503"),
        ((429, {}), NotEvaluableError, "status 429"),
        ((200, {"X_Repo_Commit": "e" * 40}), CheckpointError, "e" * 40),
    ],
)
def test_a_file_that_the_hub_does_not_give(
    tmp_path: Path,
    hub: Any,
    source: Any,
    faults: Any,
    fault: tuple[int, dict[str, str]],
    kind: type[Exception],
    message: str,
) -> None:
    hub.faults["config.json"] = [faults.status(fault[0], **fault[1])]
    with pytest.raises(kind) as caught:
        fetch(source, tmp_path)
    assert message in str(caught.value)
    assert "file config.json" in str(caught.value)
    assert source["revision"] in str(caught.value)
    assert no_folder(tmp_path)


def test_a_busy_hub_is_asked_again(tmp_path: Path, hub: Any, source: Any, faults: Any) -> None:
    hub.faults["listing"] = [faults.status(503), faults.status(429), faults.well]
    hub.faults["config.json"] = [faults.status(500), faults.well]
    fetch(source, tmp_path)


def test_a_repository_without_weights(tmp_path: Path, hub: Any, source: Any) -> None:
    hub.files = {"config.json": b"{}"}
    with pytest.raises(CheckpointError, match="no safetensors files"):
        fetch(source, tmp_path)


def test_a_repository_without_a_configuration(tmp_path: Path, hub: Any, source: Any) -> None:
    del hub.files["config.json"]
    with pytest.raises(CheckpointError, match=r"config\.json"):
        fetch(source, tmp_path)
    assert hub.asked == []


# Pins


def test_every_pin_that_the_hub_contradicts_is_listed_and_nothing_is_fetched(
    tmp_path: Path, hub: Any, source: Any, weights: list[str], pins: list[Any]
) -> None:
    zero = "sha256:" + "0" * 64
    wrong = [
        replace(pins[1], size_bytes=7),
        replace(pins[1], name=weights[0], size_bytes=len(hub.files[weights[0]]), sha256=zero),
        replace(pins[1], name="model-00009.safetensors"),
        replace(pins[1], name="modeling.py"),
        replace(pins[1], name="../escape.safetensors"),
    ]
    with pytest.raises(CheckpointError) as caught:
        fetch(source, tmp_path, pinned=wrong)
    text = str(caught.value)
    actual = "sha256:" + hashlib.sha256(hub.files[weights[0]]).hexdigest()
    for part in (
        f"{weights[1]}: expected 7 bytes, the hub declares {len(hub.files[weights[1]])}",
        f"{weights[0]}: expected {zero}, the hub declares {actual}",
        "model-00009.safetensors: not there",
        "modeling.py: not there",
        "../escape.safetensors: not there",
        "derive it again",
    ):
        assert part in text
    assert hub.asked == []


def test_a_small_file_is_held_to_its_pin_too(
    tmp_path: Path, hub: Any, source: Any, pins: list[Any]
) -> None:
    # The hub declares no SHA-256 of a small file, so only its bytes can contradict.
    zero = "sha256:" + "0" * 64
    with pytest.raises(CheckpointError) as caught:
        fetch(source, tmp_path, pinned=[replace(pins[0], sha256=zero), pins[1]])
    assert zero in str(caught.value)
    assert "file config.json" in str(caught.value)


# Tokens and redirects


def test_the_token_goes_to_the_hub_alone_and_is_kept_nowhere(
    tmp_path: Path, hub: Any, source: Any, everything: Callable[[Path], str]
) -> None:
    fetch(source, tmp_path)
    at_home = [each.authorization for each in hub.requests if each.is_home]
    elsewhere = [each.authorization for each in hub.requests if not each.is_home]
    assert set(at_home) == {"Bearer hf_NotToBeSeenNotToBeSeenNotToBeSeen"}
    assert set(elsewhere) == {None}
    assert "NotToBeSeen" not in everything(tmp_path)


def test_what_a_redirect_is_signed_with_is_not_shown(
    tmp_path: Path, hub: Any, source: Any, faults: Any, weights: list[str], everything: Any
) -> None:
    hub.faults[weights[0]] = [faults.status(403)]
    with pytest.raises(NotEvaluableError) as caught:
        fetch(source, tmp_path)
    assert "status 403" in str(caught.value)
    assert "NotToBeSeen" not in str(caught.value) + everything(tmp_path)
    # Each attempt asked the hub itself for a new redirect.
    assert sum(each.is_home and each.name == weights[0] for each in hub.requests) == 4


@pytest.mark.parametrize("at_hub", [True, False])
def test_the_token_stays_at_home_when_the_listing_is_redirected(
    tmp_path: Path, hub: Any, source: Any, faults: Any, at_hub: bool
) -> None:
    body = json.dumps(hub.listing()).encode()
    hub.files["elsewhere.json"] = body
    target = f"{hub.home}/owner/model/resolve/{source['revision']}/x" if at_hub else hub.store
    location = f"{target.removesuffix('/x')}/elsewhere.json"
    hub.faults["listing"] = [faults.status(307, Location=location)]
    fetch(source, tmp_path)
    away = [each for each in hub.requests if each.name == "elsewhere.json"]
    assert away[-1].is_home is False  # it is large, so that the hub too sends it to the store
    assert away[-1].authorization is None


@pytest.mark.parametrize(
    ("redirect", "message"),
    [
        ("file:///etc/hostname", "not an address of a hub"),
        ("ftp://127.0.0.1/x", "not an address of a hub"),
        ("http://[broken", "not an address of a hub"),
        ("", "redirect is not followed"),
    ],
)
def test_redirects_that_are_not_followed(
    tmp_path: Path, hub: Any, source: Any, redirect: str, message: str
) -> None:
    hub.redirect = redirect
    with pytest.raises(NotEvaluableError) as caught:
        fetch(source, tmp_path)
    assert message in str(caught.value)


def test_redirects_without_end(tmp_path: Path, hub: Any, source: Any) -> None:
    other = f"{hub.home}/owner/model/resolve/{source['revision']}"
    hub.redirect = f"{other}/tokenizer.json"
    hub.faults["unused"] = []
    with pytest.raises(NotEvaluableError, match="redirect"):
        fetch(source, tmp_path)
    assert len(hub.requests) < 20


def test_a_token_that_no_header_can_hold_is_not_shown(
    tmp_path: Path, hub: Any, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_NotToBe\x01Seen")
    with pytest.raises(NotEvaluableError) as caught:
        fetch(source, tmp_path)
    assert "NotToBe" not in str(caught.value)
    assert hub.requests == []


# Listings that are not to be trusted


def without_siblings(listing: dict[str, Any]) -> Any:
    return {"sha": listing["sha"]}


def of_rows(**change: Any) -> Callable[[dict[str, Any]], Any]:
    def changed(listing: dict[str, Any]) -> Any:
        rows = [row | change for row in listing["siblings"] if row["rfilename"] == "config.json"]
        rest = [row for row in listing["siblings"] if row["rfilename"] != "config.json"]
        return {**listing, "siblings": rest + rows}

    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda listing: [], "lists no files"),
        (without_siblings, "lists no files"),
        (lambda listing: {**listing, "siblings": [1]}, "lists no files"),
        (lambda listing: {**listing, "sha": "d" * 40}, "d" * 40),
        (lambda listing: {**listing, "sha": None}, "None"),
        (of_rows(size=None), "config.json: declares no size"),
        (of_rows(size=-1), "config.json: declares no size"),
        (of_rows(size=1 << 60), "not JSON"),
        (of_rows(size=True), "config.json: declares no size"),
        (of_rows(size=1 << 40), "more than"),
        (of_rows(blobId=None), "config.json: declares no digest"),
        (of_rows(blobId="0" * 39), "not 40 hex digits"),
        (of_rows(blobId=5), "not 40 hex digits"),
        (of_rows(lfs={"size": 2, "sha256": "0" * 63}), "not 64 hex digits"),
        (of_rows(lfs={"size": 2}), "config.json: declares no digest"),
        (of_rows(lfs={"sha256": "0" * 64}), "config.json: declares no size"),
        (of_rows(rfilename="tokenizer.json"), "a name stands there twice"),
    ],
)
def test_a_listing_that_cannot_be_used_is_refused(
    tmp_path: Path, hub: Any, source: Any, change: Any, message: str
) -> None:
    hub.change_listing = change
    with pytest.raises(CheckpointError) as caught:
        fetch(source, tmp_path)
    assert message in str(caught.value)
    assert hub.asked == []


def test_names_in_a_listing_that_nobody_asks_for_do_no_harm(
    tmp_path: Path, hub: Any, source: Any, weights: list[str]
) -> None:
    names = ["../up.json", "/root.json", "a\\b.json", "x\n.json", "", 5, None, "..json.bin"]
    rows = [{"rfilename": name, "size": 1, "blobId": "0" * 40} for name in names]
    hub.change_listing = lambda listing: {**listing, "siblings": listing["siblings"] + rows}
    assert files_of(fetch(source, tmp_path)).keys() == COMPANIONS | set(weights)


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"siblings": NaN}', b"\xff"])
def test_a_listing_that_is_not_json(
    tmp_path: Path, hub: Any, source: Any, faults: Any, body: bytes
) -> None:
    hub.faults["listing"] = [faults.body(200, body)]
    with pytest.raises(CheckpointError, match="not JSON"):
        fetch(source, tmp_path)


def test_a_listing_of_any_length_is_not_read(
    tmp_path: Path, hub: Any, source: Any, faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_listing, "MAX_LISTING_BYTES", 100)
    with pytest.raises(CheckpointError, match="too long"):
        fetch(source, tmp_path)


def test_a_redirect_does_not_leave_encryption(
    tmp_path: Path, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    @contextmanager
    def opened(url: str, headers: Any) -> Iterator[Any]:
        asked.append(url)
        stated = {"location": "http://127.0.0.1:9/x?sig=NotToBeSeen"}
        yield SimpleNamespace(status_code=302, headers=stated)

    monkeypatch.setattr(constants, "ENDPOINT", "https://127.0.0.1:9")
    monkeypatch.setattr(hub_http, "_opened", opened)
    with pytest.raises(NotEvaluableError) as caught:
        fetch(source, tmp_path)
    assert "another https address" in str(caught.value)
    assert "NotToBeSeen" not in str(caught.value)
    assert len(asked) == 1
