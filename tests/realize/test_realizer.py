from collections.abc import Sequence
from typing import Any

import pytest
from fake_family import (
    KNOWN,
    KNOWN_FORMS,
    MUTABLE,
    REQUEST,
    RESIDENT,
    SNAPSHOT,
    STAGE,
    WEIGHT,
    FakeAdapter,
    Source,
    materialization,
    memories,
    plan,
)

from harness.errors import ResourceError
from harness.plan.layout import TensorSpec
from harness.plan.records import Materialization, Plan
from harness.realize.adapter import AdapterContext, Realized, TensorSource
from harness.realize.realizer import Realizer
from harness.state.arena import Memory


class Run:
    def __init__(self, adapter: FakeAdapter, the_plan: Plan | None = None, **sizes: int) -> None:
        self.memories = memories(**sizes)
        self.adapter = adapter
        self.source = Source()
        self.points: list[str] = []
        adapter.begin(AdapterContext(request=REQUEST, memories=self.memories))
        self.realizer = Realizer(
            the_plan or plan(), adapter, self.memories, KNOWN_FORMS, self.source, self.points.append
        )
        self.realizer.realize(lambda arenas: None)
        self.rows: dict[str, dict[str, Any]] = {
            identifier: record.row() for identifier, record in self.realizer.records.items()
        }


def test_a_faithful_realization_releases_its_staging() -> None:
    run = Run(FakeAdapter())
    assert run.points == ["after_staging", "after_allocation", "after_population", "after_release"]
    stage = run.rows["stage"]
    assert stage["status"] == "TRANSIENT_RELEASED_AS_PLANNED"
    assert stage["lifecycle"] == "released"
    assert stage["bytes_before_release"] == WEIGHT.num_bytes
    assert stage["bytes_after_release"] == 0
    assert stage["released_bytes"] == WEIGHT.num_bytes
    assert stage["qualifying_ids"] == ["resident"]
    assert run.memories["ram"].allocated_bytes == 0
    for identifier in ("resident", "mutable", "snapshot"):
        assert run.rows[identifier]["status"] == "PLANNED_AND_REALIZED"
        assert run.rows[identifier]["lifecycle"] == "live"
    assert run.realizer.lineages() == [("state.s", "mutable", "state.s@epoch-1")]
    (activation,) = run.realizer.activate()
    assert activation.executor is not None
    assert run.source.reads == ["w"]


def test_plan_order_is_kept_and_staging_comes_first() -> None:
    run = Run(FakeAdapter(), plan(MUTABLE, RESIDENT, STAGE, SNAPSHOT))
    assert run.adapter.allocated == ["stage", "mutable", "resident", "snapshot"]
    assert list(run.rows) == ["mutable", "resident", "stage", "snapshot"]


class Failing(FakeAdapter):
    def populate(self, intent: Materialization, source: TensorSource) -> None:
        if intent.id == "resident":
            raise RuntimeError("device lost")
        super().populate(intent, source)


class WrongBytes(FakeAdapter):
    def specs_for(self, intent: Materialization) -> Sequence[TensorSpec]:
        if intent.id == "resident":
            return [*KNOWN["resident"], TensorSpec(name="pad", dtype="uint8", shape=(1,))]
        return super().specs_for(intent)


class WrongMemory(FakeAdapter):
    def memory_for(self, intent: Materialization) -> Memory:
        assert self.context is not None
        return self.context.memories["ram"]


class WrongRepresentation(FakeAdapter):
    def specs_for(self, intent: Materialization) -> Sequence[TensorSpec]:
        return KNOWN["transposed"] if intent.id == "resident" else super().specs_for(intent)


class UnknownRepresentation(FakeAdapter):
    def specs_for(self, intent: Materialization) -> Sequence[TensorSpec]:
        if intent.id == "resident":
            return [TensorSpec(name="w", dtype="float64", shape=(8, 16))]
        return super().specs_for(intent)


class OtherState(FakeAdapter):
    def state_for(self, intent: Materialization) -> str:
        return "state.s" if intent.id == "resident" else super().state_for(intent)


class NotPopulated(FakeAdapter):
    def unpopulated(self, intent: Materialization) -> Sequence[str]:
        return ["w.rows[3]"]


@pytest.mark.parametrize(
    ("adapter", "status", "detail"),
    [
        (Failing(), "REALIZATION_FAILED", "RuntimeError: device lost"),
        (WrongBytes(), "REALIZATION_FAILED", "bytes: expected 1024, got 1025"),
        (WrongMemory(), "REALIZATION_FAILED", "memory: expected vram, got ram"),
        (
            WrongRepresentation(),
            "REALIZATION_FAILED",
            "representation: expected resident, got transposed",
        ),
        (
            UnknownRepresentation(),
            "REALIZATION_FAILED",
            "representation: expected resident, got unidentified",
        ),
        (OtherState(), "REALIZATION_FAILED", "logical state: expected state.w, got state.s"),
        (NotPopulated(), "PLANNED_AND_REALIZED", None),
    ],
)
def test_a_planted_final_keeps_the_staging(
    adapter: FakeAdapter, status: str, detail: str | None
) -> None:
    run = Run(adapter)
    assert run.rows["resident"]["status"] == status
    if detail is not None:
        assert detail in run.rows["resident"]["detail"]
    stage = run.rows["stage"]
    assert stage["status"] == "TRANSIENT_RELEASE_NOT_AUTHORIZED"
    assert stage["lifecycle"] == "live"
    assert stage["bytes_after_release"] is None
    assert stage["qualifying_ids"] == []
    assert any(arena.owner == "stage" for arena in run.memories["ram"].arenas)


def test_an_optional_final_does_not_qualify() -> None:
    optional = materialization("resident", requirement="optional", realize=True)
    run = Run(FakeAdapter(), plan(STAGE, optional, MUTABLE, SNAPSHOT))
    assert run.rows["resident"]["status"] == "PLANNED_AND_REALIZED"
    assert run.rows["stage"]["status"] == "TRANSIENT_RELEASE_NOT_AUTHORIZED"


def test_the_staging_itself_does_not_qualify() -> None:
    kept = materialization(
        "stage",
        representation="native",
        memory_resource_id="ram",
        role="staging",
        persistence="transient",
    )
    run = Run(FakeAdapter(), plan(kept, MUTABLE, SNAPSHOT))
    assert run.rows["stage"]["status"] == "TRANSIENT_RELEASE_NOT_AUTHORIZED"


def test_an_unasked_optional_is_absent() -> None:
    optional = materialization("cache", requirement="optional", role="optional_cache")
    run = Run(FakeAdapter(), plan(STAGE, RESIDENT, MUTABLE, SNAPSHOT, optional))
    assert run.rows["cache"]["status"] == "OPTIONAL_NOT_REALIZED"
    assert run.rows["cache"]["lifecycle"] == "absent"
    assert run.rows["cache"]["requested_bytes"] == 0
    assert "cache" not in run.adapter.allocated


def test_a_staging_that_is_not_as_planned_is_not_released() -> None:
    wrong = materialization(
        "stage",
        representation="native",
        memory_resource_id="ram",
        role="staging",
        persistence="transient",
        expected_bytes=7,
    )
    run = Run(FakeAdapter(), plan(wrong, RESIDENT, MUTABLE, SNAPSHOT))
    assert run.rows["stage"]["status"] == "TRANSIENT_RELEASE_NOT_AUTHORIZED"
    assert "bytes: expected 7" in run.rows["stage"]["detail"]


class KeepsStaging(FakeAdapter):
    def release(self, intent: Materialization) -> None:
        self.hoard = self.realized[intent.id].arena.tensors["w.raw"]


def test_a_kept_staging_tensor_is_measured() -> None:
    run = Run(KeepsStaging())
    stage = run.rows["stage"]
    assert stage["status"] == "RELEASE_INCOMPLETE"
    assert stage["lifecycle"] == "live"
    assert stage["bytes_before_release"] == stage["bytes_after_release"] == WEIGHT.num_bytes
    assert stage["released_bytes"] == 0
    assert stage["allocated_bytes"] > 0


def test_exhaustion_is_an_error_and_not_a_status() -> None:
    with pytest.raises(ResourceError, match="vram is exhausted"):
        Run(FakeAdapter(), vram_bytes=4096)


def test_executions_need_their_required_state() -> None:
    (activation,) = Run(WrongRepresentation()).realizer.activate()
    assert activation.executor is None
    assert activation.detail is not None
    assert "state.w" in activation.detail


def test_a_copy_that_changes_later_loses_its_status() -> None:
    run = Run(FakeAdapter())
    arena: Realized = run.adapter.realized["resident"]
    arena.arena._tensors["extra"] = arena.arena.tensors["w"][:1]
    run.realizer.observe_again()
    assert run.realizer.records["resident"].status == "REALIZATION_FAILED"
