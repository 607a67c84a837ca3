"""Transfers that break off, bring other bytes, find no space or do not end."""

import hashlib
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from harness.checkpoint import hub_http
from harness.checkpoint.sources import fetch
from harness.errors import CheckpointError, ExitCode, NotEvaluableError
from harness.plan.records import CheckpointFile


def part_of(cache: Path, name: str) -> Path:
    (part,) = (cache / ".staging").glob(f"*/{name}.part")
    return part


def no_folder(cache: Path) -> bool:
    return [path.name for path in cache.iterdir() if path.name[0] != "."] == []


def ranges(hub: Any, name: str) -> list[str | None]:
    return [each.range for each in hub.contents if each.name == name]


# Other bytes


@pytest.mark.parametrize("length", [10, 3000, 100_000])
def test_a_file_of_another_size(
    tmp_path: Path, hub: Any, source: Any, weights: list[str], length: int
) -> None:
    declared = len(hub.files[weights[0]])
    hub.served[weights[0]] = (hub.files[weights[0]] * 40)[:length]
    with pytest.raises(CheckpointError) as caught:
        fetch(source, tmp_path)
    assert caught.value.exit_code == ExitCode.INVALID_INPUT
    for part in (f"{declared} bytes", f"{length} bytes", weights[0], source["revision"]):
        assert part in str(caught.value)
    assert ranges(hub, weights[0]) == [None]
    assert no_folder(tmp_path)
    hub.served.clear()
    fetch(source, tmp_path)


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "config.json"])
def test_the_right_size_with_other_content(
    tmp_path: Path, hub: Any, source: Any, name: str
) -> None:
    good = hub.files[name]
    hub.served[name] = bad = good[:-1] + bytes([good[-1] ^ 1])
    with pytest.raises(CheckpointError) as caught:
        fetch(source, tmp_path)
    assert caught.value.exit_code == ExitCode.INVALID_INPUT
    if hub.is_large(name):
        expected, got = (hashlib.sha256(content).hexdigest() for content in (good, bad))
    else:
        expected, got = (
            hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            for content in (good, bad)
        )
    for part in (expected, got, name, source["revision"], "what to do"):
        assert part in str(caught.value)
    assert no_folder(tmp_path)
    assert not list((tmp_path / ".staging").glob(f"*/{name}*"))
    hub.served.clear()
    assert (fetch(source, tmp_path) / name).read_bytes() == good


def test_more_bytes_than_declared_without_a_length(
    tmp_path: Path, hub: Any, source: Any, weights: list[str]
) -> None:
    size = len(hub.files[weights[0]])

    def endless(handler: Any, content: bytes, first: int) -> bool:
        handler.begin(200, {"Connection": "close"})
        handler.wfile.write(content)
        for _ in range(10_000):
            handler.wfile.write(b"x" * 65536)
        return True

    hub.faults[weights[0]] = [endless]
    with pytest.raises(CheckpointError, match=f"more than {size} bytes"):
        fetch(source, tmp_path)
    assert not list((tmp_path / ".staging").glob("*/*.part"))


@pytest.mark.parametrize("is_pinned", [True, False])
def test_what_is_no_safetensors_file(
    tmp_path: Path, hub: Any, source: Any, weights: list[str], is_pinned: bool
) -> None:
    bad = hub.files[weights[0]] = b"<!doctype html>" + b" " * 2000
    sha256 = "sha256:" + hashlib.sha256(bad).hexdigest()
    pin = CheckpointFile(name=weights[0], size_bytes=len(bad), sha256=sha256)
    with pytest.raises(CheckpointError, match="HTML page"):
        fetch(source, tmp_path, pinned=[pin] if is_pinned else None)
    assert no_folder(tmp_path)


# Interrupted


def test_a_transfer_goes_on_within_one_try(
    tmp_path: Path, hub: Any, source: Any, faults: Any, weights: list[str]
) -> None:
    hub.faults[weights[0]] = [faults.cut(1000), faults.cut(700), faults.well]
    folder = fetch(source, tmp_path)
    assert (folder / weights[0]).read_bytes() == hub.files[weights[0]]
    assert ranges(hub, weights[0]) == [None, "bytes=1000-", "bytes=1700-"]


def test_an_interrupted_transfer_goes_on_at_the_next_try(
    tmp_path: Path, hub: Any, source: Any, faults: Any, weights: list[str]
) -> None:
    hub.faults[weights[1]] = [faults.cut(300)]
    with pytest.raises(NotEvaluableError) as caught:
        fetch(source, tmp_path)
    assert caught.value.exit_code == ExitCode.NOT_EVALUABLE
    for part in (weights[1], source["revision"], "goes on where it broke off"):
        assert part in str(caught.value)
    assert no_folder(tmp_path)
    assert part_of(tmp_path, weights[1]).read_bytes() == hub.files[weights[1]][:1200]
    hub.faults.clear()
    hub.requests.clear()
    folder = fetch(source, tmp_path)
    assert (folder / weights[1]).read_bytes() == hub.files[weights[1]]
    assert [(each.name, each.range) for each in hub.contents] == [(weights[1], "bytes=1200-")]
    assert list((tmp_path / ".staging").iterdir()) == []


def test_a_killed_process_leaves_what_it_had(
    tmp_path: Path, hub: Any, source: Any, faults: Any, weights: list[str]
) -> None:
    def half(handler: Any, content: bytes, first: int) -> bool:
        handler.begin(200, {"Content-Length": str(len(content))})
        handler.wfile.write(content[:2000])
        handler.hub.is_over.wait(30)
        return True

    hub.faults[weights[1]] = [half]
    child = _start(source, tmp_path, hub)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        parts = list((tmp_path / ".staging").glob(f"*/{weights[1]}.part"))
        if parts and parts[0].stat().st_size == 2000:
            break
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    hub.faults.clear()
    hub.requests.clear()
    folder = fetch(source, tmp_path)
    assert (folder / weights[1]).read_bytes() == hub.files[weights[1]]
    assert [(each.name, each.range) for each in hub.contents] == [(weights[1], "bytes=2000-")]


@pytest.mark.parametrize("damage", ["other", "longer", "file"])
def test_what_lies_there_from_before_is_not_trusted(
    tmp_path: Path, hub: Any, source: Any, faults: Any, weights: list[str], damage: str
) -> None:
    hub.faults[weights[1]] = [faults.cut(300)]
    with pytest.raises(NotEvaluableError):
        fetch(source, tmp_path)
    hub.faults.clear()
    work = part_of(tmp_path, weights[1]).parent
    if damage == "other":
        (work / f"{weights[1]}.part").write_bytes(b"\0" * 1200)
        with pytest.raises(CheckpointError, match="not the one that was asked for"):
            fetch(source, tmp_path)
    elif damage == "longer":
        (work / f"{weights[1]}.part").write_bytes(b"\0" * 9999)
    else:
        (work / weights[0]).write_bytes(b"\0" * len(hub.files[weights[0]]))
        (work / "extra.safetensors").write_bytes(b"\0")
        (work / "link.json").symlink_to("/etc/hostname")
        (work / "config.json").unlink()
        (tmp_path / "mine.json").write_bytes(hub.files["config.json"])
        (work / "config.json").symlink_to(tmp_path / "mine.json")
        (work / "sub").mkdir()
    folder = fetch(source, tmp_path)
    for name in (*weights, "config.json"):
        assert (folder / name).read_bytes() == hub.files[name]
    assert not {"extra.safetensors", "link.json", "sub"} & {each.name for each in folder.iterdir()}
    assert not (folder / "config.json").is_symlink()


def test_a_body_without_a_length_that_ends_early(
    tmp_path: Path, hub: Any, source: Any, faults: Any, weights: list[str]
) -> None:
    def close(handler: Any, content: bytes, first: int) -> bool:
        handler.begin(200, {"Connection": "close"})
        handler.wfile.write(content[:1500])
        return True

    hub.faults[weights[0]] = [close, faults.well]
    folder = fetch(source, tmp_path)
    assert (folder / weights[0]).read_bytes() == hub.files[weights[0]]
    assert ranges(hub, weights[0]) == [None, "bytes=1500-"]


def test_a_server_without_ranges_begins_anew(
    tmp_path: Path, hub: Any, source: Any, faults: Any, weights: list[str]
) -> None:
    hub.faults[weights[0]] = [faults.cut(1000), faults.whole]
    folder = fetch(source, tmp_path)
    assert (folder / weights[0]).read_bytes() == hub.files[weights[0]]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content_Range": "bytes 0-99/{size}"},
        {"Content_Range": "bytes x-y/z"},
        {"Content_Encoding": "gzip", "Content_Range": "bytes 1000-1099/{size}"},
    ],
)
def test_an_answer_for_another_range_is_not_appended(
    tmp_path: Path, hub: Any, source: Any, faults: Any, weights: list[str], headers: dict[str, str]
) -> None:
    size = len(hub.files[weights[0]])
    stated = {name: value.format(size=size) for name, value in headers.items()}
    hub.faults[weights[0]] = [faults.cut(1000), faults.body(206, b"\0" * 100, **stated)]
    with pytest.raises(NotEvaluableError):
        fetch(source, tmp_path)
    assert part_of(tmp_path, weights[0]).read_bytes() == hub.files[weights[0]][:1000]


def test_a_file_that_became_shorter_than_what_is_there(
    tmp_path: Path, hub: Any, source: Any, faults: Any, weights: list[str]
) -> None:
    hub.faults[weights[0]] = [faults.cut(1000), faults.well]
    hub.served[weights[0]] = hub.files[weights[0]]
    real = faults.cut(1000)

    def shrink(handler: Any, content: bytes, first: int) -> bool:
        hub.served[weights[0]] = content[:900]
        return bool(real(handler, content, first))

    hub.faults[weights[0]] = [shrink, faults.well]
    with pytest.raises(CheckpointError) as caught:
        fetch(source, tmp_path)
    assert "got: 900 bytes" in str(caught.value)


# No space


def test_no_space_for_all_of_it_is_said_before_anything_is_fetched(
    tmp_path: Path, hub: Any, source: Any, weights: list[str]
) -> None:
    def huge(listing: dict[str, Any]) -> Any:
        for row in listing["siblings"]:
            if row["rfilename"] == weights[1]:
                row["lfs"]["size"] = 1 << 50
        return listing

    hub.change_listing = huge
    with pytest.raises(NotEvaluableError) as caught:
        fetch(source, tmp_path)
    assert caught.value.exit_code == ExitCode.NOT_EVALUABLE
    needed = (1 << 50) + sum(
        len(hub.files[name])
        for name in (weights[0], "config.json", "tokenizer.json", "model.safetensors.index.json")
    )
    for part in (f"{needed} bytes free", "HARNESS_CACHE", str(tmp_path)):
        assert part in str(caught.value)
    assert hub.asked == []


def _start(
    source: Any, cache: Path, hub: Any, before: Callable[[], None] | None = None
) -> subprocess.Popen[str]:
    script = f"""
        import sys
        from pathlib import Path
        from harness.checkpoint.sources import fetch
        from harness.errors import HarnessError
        try:
            fetch({source!r}, Path({str(cache)!r}))
        except HarnessError as error:
            print(error)
            sys.exit(int(error.exit_code))
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "HF_ENDPOINT": hub.home, "NO_PROXY": "*"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
    )


def test_no_space_for_a_file_keeps_what_came(
    tmp_path: Path, hub: Any, source: Any, weights: list[str]
) -> None:
    size = len(hub.files[weights[0]])
    limit = 2000
    child = _start(
        source, tmp_path, hub, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    )
    out, err = child.communicate(timeout=60)
    assert child.returncode == ExitCode.NOT_EVALUABLE, err
    assert "Traceback" not in err
    for part in (
        "no disk space",
        f"{size} bytes",
        "2000 bytes are there",
        weights[0],
        "free space",
    ):
        assert part in out
    hub.requests.clear()
    folder = fetch(source, tmp_path)
    assert (folder / weights[0]).read_bytes() == hub.files[weights[0]]
    assert ranges(hub, weights[0]) == ["bytes=2000-"]


# Silence


def test_a_server_that_stalls(
    tmp_path: Path,
    hub: Any,
    source: Any,
    faults: Any,
    weights: list[str],
    monkeypatch: pytest.MonkeyPatch,
    elapsed: Callable[[], float],
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    hub.faults[weights[0]] = [faults.stall]
    with pytest.raises(NotEvaluableError) as caught:
        fetch(source, tmp_path)
    assert "Timeout" in str(caught.value)
    assert weights[0] in str(caught.value)
    assert elapsed() < 20


def test_a_server_that_trickles(
    tmp_path: Path,
    hub: Any,
    source: Any,
    faults: Any,
    weights: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub_http, "WINDOW_S", 0.1)
    hub.faults[weights[0]] = [faults.trickle]
    with pytest.raises(NotEvaluableError) as caught:
        fetch(source, tmp_path)
    assert "bytes in 0 s" in str(caught.value)


@pytest.mark.parametrize("name", ["listing", "config.json"])
def test_a_server_that_closes_at_once(tmp_path: Path, hub: Any, source: Any, name: str) -> None:
    def close(handler: Any, content: bytes, first: int) -> bool:
        handler.close_connection = True
        return True

    hub.faults[name] = [close]
    with pytest.raises(NotEvaluableError, match="attempt 4 of 4"):
        fetch(source, tmp_path)


def test_a_hub_that_cannot_be_reached(
    tmp_path: Path, hub: Any, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://user:NotToBeSeen@127.0.0.1:{port}")
    with pytest.raises(NotEvaluableError) as caught:
        fetch(source, tmp_path)
    assert "cannot be reached" in str(caught.value)
    assert "local folder" in str(caught.value)
    assert "NotToBeSeen" not in str(caught.value)
    assert no_folder(tmp_path)


def test_offline_mode_asks_for_nothing_but_the_cache(
    tmp_path: Path, hub: Any, source: Any, pins: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetch(source, tmp_path, pinned=pins)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert fetch(source, tmp_path, pinned=pins) == folder
    with pytest.raises(NotEvaluableError, match="HF_HUB_OFFLINE") as caught:
        fetch(source, tmp_path)
    assert caught.value.exit_code == ExitCode.NOT_EVALUABLE
    assert hub.requests == []
