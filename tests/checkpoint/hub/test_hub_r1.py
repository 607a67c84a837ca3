"""The R1 experiment's own command against a hub with the real name, commit, headers and sizes."""

import json
import mmap
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.plan.load import load_plan
from harness.plan.manifest import load_manifest

REPOSITORY = "nvidia/Qwen3.6-35B-A3B-NVFP4"
REVISION = "491c2f1ea524c639598bf8fa787a93fed5a6fbce"


@pytest.fixture
def headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoint with holes for content."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "adapters")
    import qwen_real

    folder = tmp_path / "headers"
    folder.mkdir()
    # Shards enough for some to hold nothing of the range.
    qwen_real.write_headers(folder, num_shards=8)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def content(path: Path) -> bytes | mmap.mmap:
    if path.suffix == ".json":
        return path.read_bytes()
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@pytest.mark.slow
@pytest.mark.long
def test_the_plan_is_derived_from_headers_alone(
    hub: Any, headers: Path, tmp_path: Path, repo_root: Path
) -> None:
    hub.repository_id, hub.revision = REPOSITORY, REVISION
    hub.files = {path.name: content(path) for path in headers.iterdir()}
    weights = sorted(name for name in hub.files if name.endswith(".safetensors"))
    hub.declared = {name: f"{number:064x}" for number, name in enumerate(weights)}
    out = tmp_path / "plan.json"
    words = ["plan", "derive", "experiment=r1_block_a", f"cache={tmp_path / 'cache'}"]
    assert main([*words, "--config-dir", str(repo_root / "experiments"), "--out", str(out)]) == 0

    plan = load_plan(out).plan
    assert (plan.model_repository, plan.model_revision) == (REPOSITORY, REVISION)
    resident = {
        each.logical_state_id: each.expected_bytes
        for each in plan.materializations
        if each.role == "required_residency"
    }
    assert resident["state.routed-experts"] == 8_636_596_224
    assert resident["state.common"] == 1_689_347_736

    index = json.loads(hub.files["model.safetensors.index.json"])["weight_map"]
    manifest = load_manifest(out.parent, plan.checkpoint.manifest)
    assert len(manifest) == 44_362
    wanted = {entry.file for entry in manifest}
    assert wanted == {index[entry.key] for entry in manifest}
    pinned = {file.name for file in plan.checkpoint.files if file.name in weights}
    assert wanted == pinned < set(weights)
    read = [request for request in hub.contents if request.name in weights]
    assert all(request.range is not None for request in read)
    last_bytes = [int(request.range.split("-")[1]) for request in read]
    assert max(last_bytes) < 16 << 20
