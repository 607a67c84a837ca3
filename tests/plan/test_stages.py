"""Plans with stages: each rule broken once, derivation from layouts, and each stage's own part."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.adapters.families import layout_for
from harness.errors import InvalidInputError, PlanError
from harness.plan.check import check_plan
from harness.plan.documents import plan_from_document
from harness.plan.format import plan_digest, plan_file_bytes
from harness.plan.load import LoadedPlan, load_plan, parse_plan
from harness.plan.manifest import ManifestEntry, load_manifest
from harness.plan.request import layout_request, planned_tensors
from harness.plan.schema import schema_findings
from harness.plan.stages import stage_range, stage_view, stage_views

Document = dict[str, Any]
LAYOUT = layout_for("gemma")


@pytest.fixture(scope="module")
def committed(repo_root: Path) -> LoadedPlan:
    return load_plan(repo_root / "plans" / "tiny_gemma_three_stages.json")


@pytest.fixture(scope="module")
def manifest(committed: LoadedPlan) -> tuple[ManifestEntry, ...]:
    assert committed.path is not None
    assert committed.plan.checkpoint is not None
    return load_manifest(committed.path.parent, committed.plan.checkpoint.manifest)


def broken(
    committed: LoadedPlan, manifest: tuple[ManifestEntry, ...], change: Callable[[Document], object]
) -> list[str]:
    """Findings of the committed plan after a change of its document."""
    document = copy.deepcopy(committed.document)
    change(document)
    assert schema_findings("urn:harness:plan:1", document) == []
    loaded = replace(committed, document=document, plan=plan_from_document(document))
    found = check_plan(loaded, environment=None, support=LAYOUT, manifest=manifest)
    return [str(finding) for finding in found]


def item(document: Document, identifier: str) -> Document:
    (found,) = [each for each in document["materializations"] if each["id"] == identifier]
    return found


def links(document: Document) -> list[Document]:
    return document["resources"]["links"]


def without(listed: list[Document], identifier: str) -> None:
    listed[:] = [each for each in listed if each["id"] != identifier]


def second_boundary(document: Document) -> None:
    (link,) = [each for each in links(document) if each["id"] == "stage-0-to-stage-1"]
    links(document).append({**link, "id": "again"})


def swap_stage(document: Document) -> None:
    item(document, "stage-1.mat.kv.resident")["stage_id"] = "stage-2"


def test_the_committed_plan_keeps_every_rule(
    committed: LoadedPlan, manifest: tuple[ManifestEntry, ...]
) -> None:
    assert broken(committed, manifest, lambda document: None) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda d: d["stages"][1].update(start_layer=3),
            ["$.stages[1].start_layer: starts at layer 3, expected 2 [stages]"],
        ),
        (
            lambda d: d["stages"][1].update(start_layer=1),
            ["$.stages[1].start_layer: starts at layer 1, expected 2 [stages]"],
        ),
        (
            lambda d: d["stages"][1].update(end_layer=2),
            [
                "$.stages[1].end_layer: layers [2, 2) are none [stages]",
                "$.stages[2].start_layer: starts at layer 4, expected 2 [stages]",
            ],
        ),
        (
            lambda d: d["stages"][2].update(end_layer=5),
            ["$.stages[2].end_layer: ends at layer 5, expected 6, the end of the range [stages]"],
        ),
        (
            lambda d: d["stages"][2].update(id="stage-1"),
            [
                "$.stages[2].id: duplicate 'stage-1' [stages]",
                "'stage-2.mat.kv.resident' is of stage 'stage-2', which the plan has not",
            ],
        ),
        (
            lambda d: d["stages"][1].update(compute_unit_id="nowhere"),
            [
                "$.stages[1].compute_unit_id: compute unit 'nowhere' does not exist",
                "$.stages[1].compute_unit_id: 'stage-1.exec.model' is on 'accelerator0' [stages]",
            ],
        ),
        (
            lambda d: d["stages"][1].update(execution_id="nothing"),
            [
                "$.stages[1].execution_id: execution 'nothing' does not exist in the plan",
                "$.execution[1].id: 'stage-1.exec.model' is the execution of no stage [stages]",
            ],
        ),
        (
            lambda d: d["execution"][1].update(stage_id="stage-2"),
            ["$.stages[1].execution_id: 'stage-1.exec.model' is of stage 'stage-2'"],
        ),
        (
            lambda d: d["materializations"][0].pop("stage_id"),
            ["$.materializations[0].stage_id: 'stage-0.mat.shared-table.stage' is of stage None"],
        ),
        # A copy in another stage's hands: what each stage lacks or has twice is found there.
        (
            swap_stage,
            [
                "stage stage-1: no required persistent materialization of 'state.kv'",
                "stage stage-2: mutable_authoritative state 'state.kv' has 2 lineages, expected 1",
            ],
        ),
        (
            lambda d: without(links(d), "stage-1-to-stage-2"),
            ["$.resources.links: lacks the process-boundary from 'stage-1' to 'stage-2'"],
        ),
        (
            lambda d: without(links(d), "token-to-stage-0"),
            ["$.resources.links: lacks the token-return from 'stage-2' to 'stage-0'"],
        ),
        (
            second_boundary,
            ["$.resources.links[5]: a second process-boundary from 'stage-0' to 'stage-1'"],
        ),
        (
            lambda d: links(d)[2].update(target="stage-2"),
            [
                "$.resources.links[2]: no process-boundary goes from 'stage-0' to 'stage-2'",
                "$.resources.links: lacks the process-boundary from 'stage-0' to 'stage-1'",
            ],
        ),
        (
            lambda d: d["timeouts"].pop("stage_wait_s"),
            ["$.timeouts.stage_wait_s: is absent; a wait for another stage must have a bound"],
        ),
        (
            lambda d: d["timeouts"].update(stage_wait_s=601),
            ["$.timeouts.stage_wait_s: 601 s is more than stage_start_s, 600 s [stages]"],
        ),
        (
            lambda d: d["timeouts"].update(stage_wait_s=2**53 - 1, stage_start_s=2**53 - 1),
            [
                "$.timeouts.stage_start_s: 9007199254740991 s is more than 604800 s, a week",
                "$.timeouts.stage_wait_s: 9007199254740991 s is more than 604800 s, a week",
            ],
        ),
        (
            lambda d: d["workload"].update(fresh_realizations=3),
            ["$.workload.fresh_realizations: 3 stages in 3 realizations are more than the 8"],
        ),
        (
            lambda d: d["workload"].update(decode_mode="recorded"),
            ["$.workload.decode_mode: steps of a plan with stages are not recorded [stages]"],
        ),
        (
            lambda d: item(d, "stage-1.mat.weights.resident").update(expected_bytes=1),
            ["$.materializations[9].expected_bytes: stage stage-1: 'stage-1.mat.weights.resident'"],
        ),
        (
            lambda d: without(d["checks"]["acceptance"], "stages.tokens"),
            ["$.checks.acceptance: lacks 'stages.tokens'"],
        ),
        (
            lambda d: d.pop("stages"),
            [
                "$.materializations[0].stage_id: is set, and the plan has no stages [stages]",
                "$.execution[0].stage_id: is set, and the plan has no stages [stages]",
                "$.resources.links[2].kind: 'stage-0-to-stage-1' is a process-boundary, and",
                "$.timeouts.stage_start_s: is set, and the plan has no stages [stages]",
            ],
        ),
    ],
)
def test_a_broken_chain_is_named(
    committed: LoadedPlan,
    manifest: tuple[ManifestEntry, ...],
    change: Callable[[Document], object],
    expected: list[str],
) -> None:
    found = broken(committed, manifest, change)
    for text in expected:
        assert any(text in finding for finding in found), "\n".join(found)


def test_each_stage_is_a_plan_of_its_own_range(
    committed: LoadedPlan, manifest: tuple[ManifestEntry, ...]
) -> None:
    views = stage_views(committed.plan, LAYOUT, manifest)
    assert [view.stage.id for view in views] == ["stage-0", "stage-1", "stage-2"]
    for view in views:
        spec = view.plan.adapter_data.spec
        assert spec == stage_range(committed.plan, view.number)
        assert view.plan.digest == committed.plan.digest
        assert view.plan.stages is None
        assert view.manifest is not None
        assert tuple(entry.key for entry in view.manifest) == LAYOUT.tensor_keys(
            view.plan.adapter_data.config, spec
        )
        # Bytes of every planned copy, from the exact tensors of the stage's range.
        tensors = planned_tensors(view.plan, LAYOUT, view.manifest)
        for each in view.plan.materializations:
            form = each.logical_state_id, each.representation
            assert sum(spec.num_bytes for spec in tensors[form]) == each.expected_bytes
    edges = [(v.plan.adapter_data.spec.owns_embeddings, v.number) for v in views]
    assert [owns for owns, _ in edges] == [True, False, False]
    heads = [view.plan.adapter_data.spec.owns_final_norm_head for view in views]
    assert heads == [False, False, True]
    # The tied table is read by the first and the last stage, everything else by one.
    keys = [key for view in views for key in view.plan.adapter_data.allowed_tensor_keys]
    twice = {key for key in keys if keys.count(key) > 1}
    assert twice == {"model.embed_tokens.weight"}
    assert set(keys) == set(committed.plan.adapter_data.allowed_tensor_keys)


def test_there_is_no_view_of_a_stage_that_is_not(
    committed: LoadedPlan, manifest: tuple[ManifestEntry, ...], repo_root: Path
) -> None:
    for number in (-1, 3):
        with pytest.raises(InvalidInputError, match="no such stage"):
            stage_view(committed.plan, number, LAYOUT, manifest)
    whole = load_plan(repo_root / "plans" / "tiny_gemma_hybrid.json").plan
    assert stage_views(whole, LAYOUT, manifest) == ()
    with pytest.raises(InvalidInputError, match="no such stage"):
        stage_view(whole, 0, LAYOUT, manifest)


def test_the_same_weights_are_planned_as_without_stages(
    committed: LoadedPlan, repo_root: Path
) -> None:
    whole = load_plan(repo_root / "plans" / "tiny_gemma_hybrid.json").plan
    assert whole.checkpoint == committed.plan.checkpoint

    def resident(plan: Any, state: str) -> list[int]:
        return [
            each.expected_bytes
            for each in plan.materializations
            if (each.logical_state_id, each.role) == (state, "required_residency")
        ]

    assert sum(resident(committed.plan, "state.weights")) == resident(whole, "state.weights")[0]
    table = resident(whole, "state.shared-table")
    assert resident(committed.plan, "state.shared-table") == table * 2
    for one, other in pairwise(committed.plan.stages or ()):
        assert one.end_layer == other.start_layer
    assert layout_request(committed.plan).spec == whole.adapter_data.spec


def test_a_plan_with_stages_reads_back_as_it_was_written(committed: LoadedPlan) -> None:
    document = json.loads(plan_file_bytes(committed.document))
    assert plan_digest(document) == committed.plan.digest
    document["stages"] = document["stages"][:1]
    document["digest"] = plan_digest(document)
    with pytest.raises(PlanError, match="not a valid plan"):
        parse_plan(plan_file_bytes(document), where="one stage")


def test_a_chain_of_no_stages_is_a_finding_not_a_crash(
    committed: LoadedPlan, manifest: tuple[ManifestEntry, ...]
) -> None:
    plan = replace(committed, plan=replace(committed.plan, stages=()))
    messages = [
        each.message
        for each in check_plan(plan, environment=None, support=LAYOUT, manifest=manifest)
    ]
    assert any("execution of no stage" in message for message in messages)


def test_without_a_manifest_no_stage_is_said_to_lack_tensors(committed: LoadedPlan) -> None:
    assert check_plan(committed, environment=None, support=LAYOUT, manifest=None) == []
