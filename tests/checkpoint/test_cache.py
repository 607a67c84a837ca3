import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.checkpoint.cache import MARKER_NAME, default_cache, folder_name, obtain
from harness.errors import CheckpointError, ExitCode, NotEvaluableError


def silent(message: str, fraction: float | None) -> None:
    del message, fraction


def make(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "x").mkdir()
    (folder / "x" / "model.safetensors").write_bytes(b"12345")


def get(cache: Path, name: str = "wheel-1") -> Path:
    return obtain(cache, name, {"kind": "test"}, make, progress=silent)


def never(folder: Path) -> None:
    raise AssertionError(f"made again: {folder}")


def again(cache: Path) -> Path:
    return obtain(cache, "wheel-1", {"kind": "test"}, never, progress=silent)


def test_made_once(tmp_path: Path) -> None:
    folder = get(tmp_path / "new" / "cache")
    assert folder == tmp_path / "new" / "cache" / "wheel-1"
    assert again(tmp_path / "new" / "cache") == folder
    marker = json.loads((folder / MARKER_NAME).read_text())
    assert marker["source"] == {"kind": "test"}
    assert [(file["name"], file["size_bytes"]) for file in marker["files"]] == [
        ("config.json", 2),
        ("x/model.safetensors", 5),
    ]
    assert os.listdir(folder.parent / ".staging") == []


@pytest.mark.parametrize("damage", ["edit", "swap", "shorten", "remove", "add", "link", "marker"])
def test_damage_is_named_and_not_repaired_silently(tmp_path: Path, damage: str) -> None:
    folder = get(tmp_path)
    weights = folder / "x" / "model.safetensors"
    if damage == "edit":
        weights.write_bytes(b"12346")
        message = "x/model.safetensors has other bytes"
    elif damage == "swap":
        (folder / "new").write_bytes(b"99999")
        (folder / "new").rename(weights)
        message = "x/model.safetensors has other bytes"
    elif damage == "shorten":
        weights.write_bytes(b"1")
        message = "x/model.safetensors has 1 bytes, not 5"
    elif damage == "remove":
        weights.unlink()
        message = "x/model.safetensors is missing"
    elif damage == "add":
        (folder / "extra.safetensors").write_bytes(b"")
        message = "extra.safetensors was added"
    elif damage == "link":
        (folder / "extra").symlink_to("config.json")
        message = "extra was added"
    else:
        (folder / MARKER_NAME).unlink()
        message = "missing or not valid"
    with pytest.raises(CheckpointError) as caught:
        again(tmp_path)
    assert message in str(caught.value)
    assert "delete this folder" in str(caught.value)


def test_a_copied_cache_with_other_times_is_accepted(tmp_path: Path) -> None:
    weights = get(tmp_path) / "x" / "model.safetensors"
    os.utime(weights, ns=(5, 5))
    again(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "other", "files": []}', "\udc80"])
def test_a_marker_that_is_not_one(tmp_path: Path, text: str) -> None:
    (get(tmp_path) / MARKER_NAME).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match="not as it was"):
        again(tmp_path)


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        make(folder)
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        obtain(tmp_path, "wheel-1", {}, fail, progress=silent)
    assert not (tmp_path / "wheel-1").exists()
    assert os.listdir(tmp_path / ".staging") == []
    get(tmp_path)


def test_links_are_not_kept(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a regular file"):
        obtain(
            tmp_path,
            "wheel-1",
            {},
            lambda folder: (folder / "link").symlink_to("/etc/hostname"),
            progress=silent,
        )
    assert not (tmp_path / "wheel-1").exists()


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotEvaluableError, match="cannot be written") as caught:
        get(tmp_path / "file")
    assert caught.value.exit_code == ExitCode.NOT_EVALUABLE
    assert "HARNESS_CACHE" in str(caught.value)


KILLED_AT_EACH_STEP = '''
"""Forks one fetch after another and kills the n-th at its n-th step on the cache."""
import os, signal, sys
from pathlib import Path
from harness.checkpoint.sources import fetch
import harness.checkpoint.synthetic

SOURCE = {
    "kind": "synthetic", "generator": "shake256/1", "seed": 1, "family": "f",
    "config": {"vocab_size": 4}, "tensors": [{"key": "a.weight", "shape": [4, 4]}],
}
STEPS = {"open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.scandir",
         "fcntl.flock", "shutil.rmtree"}
cache = Path(sys.argv[1])
step = 0
while True:
    step += 1
    child = os.fork()
    if child == 0:
        left = step
        def hook(event, args):
            global left
            touches = event == "fcntl.flock" or str(cache) in str(args)
            if event in STEPS and touches:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        fetch(SOURCE, cache)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    made = sorted(p.name for p in cache.iterdir() if p.name[0] != ".") if cache.exists() else []
    for name in made:
        names = sorted(p.name for p in (cache / name).iterdir())
        assert names == [".complete.json", "config.json", "model.safetensors", "tokenizer.json"]
    print(step, os.WIFSIGNALED(status), len(made), flush=True)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        break
    if made:
        # Finished before it was killed: start over, so that later steps are of a whole fetch.
        import shutil
        shutil.rmtree(cache / made[0])
'''


def run_script(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_killed_at_each_step(tmp_path: Path) -> None:
    result = run_script(KILLED_AT_EACH_STEP, str(tmp_path / "cache"))
    assert result.returncode == 0, result.stderr
    steps = [line.split() for line in result.stdout.splitlines()]
    assert len(steps) > 20
    assert steps[-1][1:] == ["False", "1"]
    assert {"0", "1"} == {made for _, killed, made in steps if killed == "True"}
    assert os.listdir(tmp_path / "cache" / ".staging") == []


TOGETHER = '''
"""Makes a folder slowly and says when it began, so that others can start meanwhile."""
import os, sys, time
from pathlib import Path
from harness.checkpoint.cache import obtain

cache, go = Path(sys.argv[1]), Path(sys.argv[2])

def make(folder):
    (folder / "maker").write_text(str(os.getpid()))
    with (cache / "log").open("a") as log:
        log.write("made\\n")
    while not go.exists():
        time.sleep(0.01)

def progress(message, fraction):
    print(message, flush=True)

obtain(cache, "wheel-1", {}, make, progress=progress)
print("done", flush=True)
'''


def test_several_at_once_make_it_once(tmp_path: Path) -> None:
    cache, go = tmp_path / "cache", tmp_path / "go"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, str(cache), str(go)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    # Two wait for the one that makes it, and say so; only then may it finish.
    waiting = 0
    import select

    streams = {child.stdout for child in children if child.stdout is not None}
    while waiting < 2:
        ready, _, _ = select.select(list(streams), [], [], 60)
        assert ready, "no one waits"
        for stream in ready:
            assert "waiting" in stream.readline()
            streams.discard(stream)
            waiting += 1
    go.touch()
    outputs = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert [output.split()[-1] for output in outputs] == ["done"] * 3
    assert (cache / "log").read_text() == "made\n"
    assert sorted(os.listdir(cache / "wheel-1")) == [MARKER_NAME, "maker"]


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HARNESS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert default_cache() == tmp_path / ".cache/inference-harness"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache() == Path("/xdg/inference-harness")
    monkeypatch.setenv("HARNESS_CACHE", "/chosen")
    assert default_cache() == Path("/chosen")


def test_names_depend_on_everything() -> None:
    first = folder_name("wheel", {"a": 1, "b": "2"})
    assert first == folder_name("wheel", {"b": "2", "a": 1})
    assert len({first, folder_name("wheel", {"a": 1}), folder_name("hub", {"a": 1, "b": "2"})}) == 3
