"""Decode steps that are recorded and replayed, in whole runs of every family's smallest model."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.evidence.record import load_record
from harness.plan.load import LoadedPlan


@pytest.fixture(scope="module")
def recorded(run_plan: Callable[..., Any], freeze_plan: Callable[..., LoadedPlan]) -> Any:
    return run_plan(freeze_plan(workload__decode_mode="recorded"))


def facts(trial: Any) -> dict[str, str]:
    (digest,) = trial.store.digests("records")
    predicate = trial.store.read_record(digest)["predicate"]
    (table,) = [each for each in predicate["tables"] if each["name"] == "facts"]
    rows = load_record(digest, trial.store).rows(table["name"], table["realization"])
    return {row["name"]: row["value"] for row in rows}


@pytest.mark.slow
def test_replayed_steps_have_the_reference_s_bits(recorded: Any, passed: Any) -> None:
    assert recorded.code == 0
    assert facts(recorded)["replayed_steps"] == str(3 * 2)
    assert "replayed_steps" not in facts(passed)


@pytest.mark.slow
def test_the_host_claims_no_graph(recorded: Any) -> None:
    (digest,) = recorded.store.digests("records")
    claims = recorded.store.read_record(digest)["predicate"]["claims"]
    (graph,) = [claim for claim in claims if claim["name"] == "cuda_graph"]
    assert graph["label"] == "not_executed"


def test_what_a_step_takes_and_gives_is_planned(freeze_plan: Callable[..., LoadedPlan]) -> None:
    plan = freeze_plan(workload__decode_mode="recorded").plan
    (buffers,) = [m for m in plan.materializations if m.representation == "static-buffers"]
    assert buffers.expected_bytes == 8 + 8 + 128 * 4 + 256 * 4
    assert buffers.persistence == "persistent"
    states = {each.logical_state_id for each in plan.execution[0].required_state}
    assert buffers.logical_state_id in states
