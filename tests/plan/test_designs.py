"""Copies that contradict each other, or the layout that designs them: refused, and named."""

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.adapters.families import layout_for
from harness.plan.check import check_plan
from harness.plan.documents import plan_from_document
from harness.plan.load import LoadedPlan, load_plan
from harness.plan.manifest import ManifestEntry, load_manifest

Document = dict[str, Any]
Change = Callable[[Document], object]
NATIVE = ("tiny_llama", "tiny_llama_streaming", "tiny_gemma_hybrid", "tiny_qwen_nvfp4")
RAM, VRAM = "node0.ram", "accelerator0.vram"


@pytest.fixture(scope="module")
def broken(repo_root: Path) -> Callable[..., list[str]]:
    """Findings on a committed plan after changes of its document."""

    @functools.cache
    def load(name: str) -> tuple[LoadedPlan, tuple[ManifestEntry, ...]]:
        loaded = load_plan(repo_root / "plans" / f"{name}.json")
        assert loaded.plan.checkpoint is not None
        return loaded, load_manifest(repo_root / "plans", loaded.plan.checkpoint.manifest)

    def find(name: str, *changes: Change, with_layout: bool = True) -> list[str]:
        loaded, manifest = load(name)
        document = copy.deepcopy(loaded.document)
        for change in changes:
            change(document)
        changed = replace(loaded, document=document, plan=plan_from_document(document))
        layout = layout_for(loaded.plan.adapter_data.family or "") if with_layout else None
        found = check_plan(changed, environment=None, support=layout, manifest=manifest)
        return [str(finding) for finding in found]

    return find


def item(document: Document, identifier: str) -> Document:
    (found,) = [each for each in document["materializations"] if each["id"] == identifier]
    return found


def without(identifier: str) -> Change:
    return lambda document: document["materializations"].remove(item(document, identifier))


def twice(identifier: str) -> Change:
    def change(document: Document) -> None:
        again = item(document, identifier) | {"id": f"{identifier}.again"}
        document["materializations"].append(again)

    return change


def changed(identifier: str, **values: object) -> Change:
    return lambda document: item(document, identifier).update(values)


def unit(identifier: str, **values: object) -> Change:
    def change(document: Document) -> None:
        (found,) = [each for each in document["logical_state_units"] if each["id"] == identifier]
        found.update(values)

    return change


def of_copies(findings: list[str]) -> list[str]:
    return [finding for finding in findings if finding.endswith("[copies]")]


@pytest.mark.parametrize("name", [*NATIVE, "tiny_gemma_three_stages"])
def test_committed_plans_are_as_their_layouts_design_them(
    broken: Callable[..., list[str]], name: str
) -> None:
    assert broken(name) == []


STAGE, RESIDENT = "mat.weights.stage", "mat.weights.resident"
REPLAY, FIXTURE = "mat.replay.resident", "mat.fixture.host"
CASES: dict[str, tuple[Change, str]] = {
    "staging dropped": (
        without(STAGE),
        "path 'ram-to-device' begins in 'node0.ram', where nothing of 'state.weights' is staged",
    ),
    "staging moved": (
        changed(STAGE, memory_resource_id=VRAM, path_id="ram-to-device"),
        "'mat.weights.stage' is staged in simulated-vram, expected system-ram",
    ),
    "staging doubled": (
        twice(STAGE),
        "'state.weights' is staged already, as 'mat.weights.stage'",
    ),
    "staging in another form": (
        changed(STAGE, representation="rope-table-float32"),
        "is staged as 'rope-table-float32', expected as 'checkpoint-native'",
    ),
    "residency doubled": (
        twice(RESIDENT),
        "'state.weights' is in that memory in that form already, as 'mat.weights.resident'",
    ),
    "snapshot too small": (
        changed(REPLAY, expected_bytes=196544),
        "'mat.replay.resident' has 196544 bytes, its tensors have 196608",
    ),
    "snapshot elsewhere": (
        changed(REPLAY, memory_resource_id=RAM),
        "'mat.replay.resident' lies in system-ram, expected the device's own memory",
    ),
    "snapshot of another role": (
        changed(REPLAY, role="required_residency"),
        "'mat.replay.resident' has role required_residency, expected required_test_state",
    ),
    "snapshot left out": (
        changed(REPLAY, requirement="optional"),
        "lacks the copy of 'state.replay-baseline' that the adapter designs",
    ),
    "snapshot of what does not change": (
        unit("state.replay-baseline", reconstruction_inputs=["state.weights"]),
        "'state.replay-baseline' is made from state.weights, not state.kv",
    ),
    "snapshot of another state": (
        changed(REPLAY, logical_state_id="state.rope"),
        "'state.rope' cannot be 'state-snapshot' in this compute dtype",
    ),
    "fixture on the device": (
        changed(FIXTURE, memory_resource_id=VRAM),
        "'mat.fixture.host' lies in simulated-vram, expected system-ram",
    ),
    "fixture too large": (
        changed(FIXTURE, expected_bytes=1 << 20),
        "'mat.fixture.host' has 1048576 bytes, its tensors have 78336",
    ),
    "fixture dropped": (
        without(FIXTURE),
        "lacks the copy of 'state.reference-fixture' that the adapter designs",
    ),
    "table too small": (
        changed("mat.rope.resident", expected_bytes=0),
        "'mat.rope.resident' has 0 bytes, its tensors have 12288",
    ),
}


@pytest.mark.parametrize("case", list(CASES))
def test_another_set_of_copies_is_refused(broken: Callable[..., list[str]], case: str) -> None:
    change, message = CASES[case]
    found = broken("tiny_llama", change)
    assert any(message in finding for finding in found), found


def test_every_fault_is_listed(broken: Callable[..., list[str]]) -> None:
    chosen = ("staging doubled", "snapshot too small", "fixture on the device", "table too small")
    found = of_copies(broken("tiny_llama", *(CASES[case][0] for case in chosen)))
    assert all(any(CASES[case][1] in finding for finding in found) for case in chosen)
    assert found == sorted(found)


def test_what_is_there_twice_is_found_without_a_layout(broken: Callable[..., list[str]]) -> None:
    for case in ("staging doubled", "residency doubled"):
        change, message = CASES[case]
        assert any(message in each for each in broken("tiny_llama", change, with_layout=False))


@pytest.mark.parametrize(
    ("identifier", "change", "message"),
    [
        ("mat.shared-table.stage", without, "lacks the staging copy of 'state.shared-table'"),
        ("mat.weights.stage", twice, "'state.weights' is staged already"),
        (
            "mat.replay.resident",
            lambda name: changed(name, expected_bytes=104752),
            "has 104752 bytes, its tensors have 104816",
        ),
        (
            "mat.fixture.host",
            lambda name: changed(name, memory_resource_id=VRAM),
            "lies in simulated-vram, expected system-ram",
        ),
    ],
)
def test_each_stage_s_copies_are_its_own(
    broken: Callable[..., list[str]],
    identifier: str,
    change: Callable[[str], Change],
    message: str,
) -> None:
    found = of_copies(broken("tiny_gemma_three_stages", change(f"stage-0.{identifier}")))
    assert any(f"stage stage-0: {message}" in each or message in each for each in found), found
    assert all("stage stage-0: " in finding for finding in found)


def test_a_configuration_of_no_family_is_told_and_crashes_nothing(
    broken: Callable[..., list[str]],
) -> None:
    found = broken("tiny_llama", lambda d: d["adapter_data"]["config"].clear())
    assert any(finding.endswith("[layout]") for finding in found)
