"""Scenarios: what an audit says of whole stories, not only of single cells."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from synthetic_record import (
    ALLOWANCE,
    CLAIMS,
    ENVIRONMENT,
    FIXTURE_BYTES,
    INTENTS,
    KEY,
    MANIFEST,
    RAM,
    RESIDENT,
    STAGE,
    VRAM,
    Layout,
    MemoryRecord,
    Row,
    Tables,
    by_name,
    make_plan,
    make_predicate,
    make_record,
    make_tables,
    sha,
)

from harness.errors import InvalidInputError
from harness.evidence.declared import TABLES
from harness.evidence.statement import (
    Claim,
    FixtureReference,
    ModelReference,
    PlanReference,
    SourceIdentity,
)
from harness.plan.checks import (
    ACCEPTANCE,
    DEVICE_CHECKS,
    NODE_CHECKS,
    STAGE_CHECKS,
    STATE_CHECKS,
    TELEMETRY,
)
from harness.plan.load import LoadedPlan
from harness.plan.records import CheckLimit, Checks, MemoryAllowances
from harness.reconcile.audit import audit
from harness.reconcile.checks.registry import CHECKS
from harness.reconcile.intent import qualifying_ids, recomputed_status, residencies
from harness.reconcile.result import result_digest
from harness.reconcile.unbound import unbound_paths
from harness.reconcile.verdict import Verdict

UNBOUND_FACTS = ("instruction_set", "torch_build")
PLAN = make_plan()
DECISIVE = [check.id for check in PLAN.plan.checks.acceptance]  # type: ignore[union-attr]


def judged(rows: Tables, plan: LoadedPlan = PLAN, **changes: Any) -> Verdict:
    changes.setdefault("result_digest", None)
    return audit(plan, MANIFEST, make_record(plan, rows, **changes), layout=Layout())  # type: ignore[arg-type]


def faithful(rows: Tables, **changes: Any) -> Verdict:
    """Audit rows whose recorded digest and totals were made from these very rows."""
    return judged(rows, result_digest=result_digest(PLAN, KEY, by_name(rows)), **changes)


def row(rows: Tables, table: str, number: int | None, /, **key: Any) -> Row:
    matching = [r for r in rows[table, number] if all(r[k] == v for k, v in key.items())]
    assert len(matching) == 1
    return matching[0]


def failing(verdict: Verdict) -> set[str]:
    return {check.id for check in verdict.checks if check.status == "failed"}


def paths(verdict: Verdict, check: str) -> list[str]:
    return [difference.path for difference in verdict.differences if difference.check == check]


def test_checks_of_the_audit_are_those_a_plan_can_declare() -> None:
    assert set(CHECKS) == {
        *ACCEPTANCE,
        *STATE_CHECKS,
        *DEVICE_CHECKS,
        *STAGE_CHECKS,
        *NODE_CHECKS,
        *TELEMETRY,
    }


def test_all_checks_are_reported_with_the_kind_that_the_plan_gives_them() -> None:
    verdict = faithful(make_tables())
    assert verdict.status == "passed"
    assert [check.id for check in verdict.checks] == [*ACCEPTANCE, *STATE_CHECKS, *TELEMETRY]
    kinds = {check.id: check.kind for check in verdict.checks}
    assert kinds.pop("step.times") == kinds.pop("memory.resident") == "telemetry"
    assert set(kinds.values()) == {"acceptance"}


def test_a_failing_telemetry_check_does_not_fail_the_verdict() -> None:
    rows = make_tables()
    row(rows, "step_times", 1, repetition=0, phase="prefill", step=0)["duration_ns"] = 0
    verdict = faithful(rows)
    assert (verdict.status, failing(verdict)) == ("passed", {"step.times"})
    assert paths(verdict, "step.times") == [
        "tables/step_times/r1[repetition=0,phase=prefill,step=0].duration_ns"
    ]


def with_checks(*acceptance: str, telemetry: tuple[str, ...] = ()) -> LoadedPlan:
    """A plan of other checks, past the rules that would refuse it."""
    checks = Checks(
        acceptance=tuple(CheckLimit(id=name) for name in acceptance),
        telemetry=tuple(CheckLimit(id=name) for name in telemetry),
    )
    return replace(PLAN, plan=replace(PLAN.plan, checks=checks))


def tables_of(plan: LoadedPlan) -> Tables:
    """The passing tables, without those that only belong to a check which the plan lacks."""
    checks = plan.plan.checks
    assert checks is not None
    declared = {check.id for check in (*checks.acceptance, *checks.telemetry)}
    return {
        key: rows
        for key, rows in make_tables().items()
        if TABLES[key[0]].check in (None, *declared)
    }


@pytest.mark.parametrize("name", DECISIVE)
def test_a_plan_that_leaves_a_check_out_cannot_have_a_passing_record(name: str) -> None:
    others = [each for each in DECISIVE if each not in (name, "plan.binding")]
    digest = result_digest(PLAN, KEY, by_name(make_tables()))
    for telemetry in ((), (name,)):
        plan = with_checks(*others, telemetry=telemetry)
        verdict = judged(tables_of(plan), plan, result_digest=digest)
        # As telemetry, the rule itself is judged too, and decides nothing.
        assert failing(verdict) <= {"plan.binding"}
        assert verdict.status == "not_evaluated"
    if name != "plan.binding":
        # The rule is judged too.
        plan = with_checks(*others, "plan.binding")
        verdict = judged(tables_of(plan), plan, result_digest=digest)
        assert verdict.status == "failed"
        assert "plan/$.checks.acceptance" in paths(verdict, "plan.binding")


def test_a_check_nobody_has_fails_and_no_check_at_all_is_not_evaluated() -> None:
    assert judged(make_tables(), with_checks("integrity.tables", "no.such")).status == "failed"
    for plan in (with_checks("integrity.tables"), with_checks()):
        assert judged(tables_of(plan), plan).status == "not_evaluated"


def test_a_plan_without_checks_cannot_be_audited_by() -> None:
    bare = replace(PLAN, plan=replace(PLAN.plan, checks=None))
    with pytest.raises(InvalidInputError, match="declares no checks"):
        judged(make_tables(), bare)


def test_differences_are_complete_and_sorted() -> None:
    rows = make_tables()
    for realization in (0, 1):
        for step in rows["steps", realization]:
            step["num_nan"] = 1
    verdict = faithful(rows)
    assert len(paths(verdict, "numbers.finite")) == 18
    assert list(verdict.differences) == sorted(verdict.differences)
    assert {c.num_differences for c in verdict.checks if c.id == "numbers.finite"} == {18}


# The plan and its conditions


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"manifest_digest": sha("other")}, "$.manifest_digest"),
        ({"manifest_digest": None}, "$.manifest_digest"),
        ({"fixture": None}, "$.fixture"),
        ({"applicability_key": None}, "$.applicability_key"),
        ({"applicability_key": replace(KEY, version=2)}, "$.applicability_key.version"),
        ({"applicability_key": replace(KEY, dtype="bfloat16")}, "$.applicability_key.dtype"),
        ({"applicability_key": replace(KEY, num_threads=3)}, "$.applicability_key.num_threads"),
    ],
)
def test_a_record_under_other_conditions_fails(changes: dict[str, Any], path: str) -> None:
    verdict = judged(make_tables(), **changes)
    assert path in paths(verdict, "plan.binding")


@pytest.mark.parametrize("field", ["digest", "file_digest", "schema", "plan_version", "model"])
def test_a_record_of_another_plan_fails(field: str) -> None:
    reference = make_predicate(PLAN, make_tables()).plan
    other: Any = sha("other") if "digest" in field else "other"
    if field == "model":
        other = ModelReference(repository="none/other", revision="0" * 40)
    changed: PlanReference = replace(reference, **{field: other})
    record = make_record(PLAN, make_tables())
    record = replace(record, predicate=replace(record.predicate, plan=changed))
    verdict = audit(PLAN, MANIFEST, record, layout=Layout())  # type: ignore[arg-type]
    found = paths(verdict, "plan.binding")
    assert found == [f"$.plan.{field}" if field != "model" else "$.plan.model.repository"]


def test_the_binding_is_recomputed() -> None:
    reference = make_predicate(PLAN, make_tables()).binding
    swapped = replace(reference, memories={RAM: "here.vram", VRAM: "here.ram"})
    found = paths(judged(make_tables(), binding=swapped), "plan.binding")
    assert found == ['$.binding.memories["accelerator0.vram"]', '$.binding.memories["node0.ram"]']


def test_an_environment_that_does_not_meet_the_plan_fails_with_each_requirement() -> None:
    small = copy.deepcopy(ENVIRONMENT)
    small["resources"]["nodes"][0]["memory_resources"][1]["capacity_bytes"] = 10
    verdict = judged(make_tables(), environment=small)
    found = [d for d in verdict.differences if d.check == "plan.binding"]
    assert [d.path for d in found] == ["$.environment"]
    assert VRAM in found[0].got
    broken = judged(make_tables(), environment={"schema": "harness.environment/1"})
    assert "$.environment" in paths(broken, "plan.binding")


def test_realizations_that_measured_other_conditions_fail() -> None:
    rows = make_tables()
    row(rows, "facts", 1, name="interop_threads")["value"] = "2"
    assert paths(faithful(rows), "plan.binding") == ["tables/facts/r1[name=interop_threads].value"]


@pytest.mark.parametrize(
    ("outcome", "exit_code", "signal"),
    [("killed", None, "SIGKILL"), ("failed", 70, None), ("timed_out", None, None)],
)
def test_a_child_that_did_not_complete_fails(
    outcome: str, exit_code: int | None, signal: str | None
) -> None:
    rows = make_tables()
    ended = {"outcome": outcome, "exit_code": exit_code, "signal": signal}
    row(rows, "trials", None, child="producer", realization=1).update(ended)
    verdict = faithful(rows)
    assert failing(verdict) == {"trials.completed"}
    assert paths(verdict, "trials.completed")[0].startswith(
        "tables/trials[child=producer,realization=1]"
    )


def test_a_killed_producer_leaves_a_record_that_fails_and_names_what_is_missing() -> None:
    rows = make_tables()
    row(rows, "trials", None, child="producer", realization=1).update(
        outcome="killed", exit_code=None, signal="SIGKILL"
    )
    written = ("checkpoints", "arenas")
    rows = {key: listed for key, listed in rows.items() if key[1] != 1 or key[0] in written}
    verdict = judged(rows)
    assert verdict.status == "failed"
    assert verdict.result_digest is None
    missing = set(paths(verdict, "integrity.tables"))
    assert {"tables/steps/r1", "tables/materializations/r1", "tables/ledger/r1"} <= missing
    assert "$.result_digest" in paths(verdict, "result.digest")


def test_tables_of_a_realization_that_was_not_planned_fail() -> None:
    rows = make_tables()
    rows["steps", 2] = rows["steps", 1]
    assert paths(faithful(rows), "integrity.tables") == ["tables/steps/r2"]


# Sources


def test_a_manifest_without_digests_is_not_evaluated_and_never_a_full_pass() -> None:
    open_ended = tuple(replace(e, sha256=None, digest_source="none") for e in MANIFEST)
    plan = make_plan(manifest=open_ended)
    record = make_record(plan, make_tables())
    verdict = audit(plan, open_ended, record, layout=Layout())  # type: ignore[arg-type]
    assert verdict.status == "not_evaluated"
    assert [(d.path, d.status) for d in verdict.differences] == [
        ("manifest[a].sha256", "not_evaluated"),
        ("manifest[b].sha256", "not_evaluated"),
    ]
    rows = make_tables()
    rows["steps", 0][0]["num_inf"] = 1
    failed = audit(plan, open_ended, make_record(plan, rows), layout=Layout())  # type: ignore[arg-type]
    assert failed.status == "failed"


def test_a_manifest_that_cannot_be_had_fails() -> None:
    verdict = audit(PLAN, None, make_record(PLAN, make_tables()), layout=None)
    assert failing(verdict) == {"integrity.source"}


# Materializations and release


STORIES: dict[str, tuple[Callable[[Tables], None], set[str]]] = {}


def story(*checks: str) -> Callable[[Callable[[Tables], None]], Callable[[Tables], None]]:
    def add(change: Callable[[Tables], None]) -> Callable[[Tables], None]:
        STORIES[change.__name__.replace("_", " ")] = (change, set(checks))
        return change

    return add


def final(rows: Tables) -> Row:
    return row(rows, "materializations", 1, id="mat.w.resident")


def staging(rows: Tables) -> Row:
    return row(rows, "materializations", 1, id="mat.w.stage")


@story("realization.materializations", "realization.release")
def a_final_of_another_memory_does_not_qualify(rows: Tables) -> None:
    final(rows).update(memory_resource_id=RAM, status="REALIZATION_FAILED")


@story("realization.materializations", "realization.release")
def a_final_of_other_bytes_does_not_qualify(rows: Tables) -> None:
    final(rows).update(requested_bytes=159, status="REALIZATION_FAILED")


@story("realization.materializations", "realization.release")
def a_final_of_another_representation_does_not_qualify(rows: Tables) -> None:
    final(rows).update(representation="checkpoint-native", status="REALIZATION_FAILED")


@story("realization.materializations", "realization.release")
def a_final_of_another_state_does_not_qualify(rows: Tables) -> None:
    final(rows).update(logical_state_id="state.table", status="REALIZATION_FAILED")


@story("realization.materializations", "realization.release")
def a_final_that_is_not_live_does_not_qualify(rows: Tables) -> None:
    final(rows).update(lifecycle="absent", status="REALIZATION_FAILED")


@story("realization.release")
def the_staging_itself_does_not_qualify(rows: Tables) -> None:
    staging(rows)["qualifying_ids"] = ["mat.w.stage"]


@story("realization.release")
def an_optional_copy_does_not_qualify(rows: Tables) -> None:
    staging(rows)["qualifying_ids"] = ["mat.cache.host", "mat.w.resident"]


@story("realization.release")
def nothing_qualified(rows: Tables) -> None:
    staging(rows)["qualifying_ids"] = []


@story("realization.materializations", "realization.release")
def the_staging_was_released_though_nothing_qualified(rows: Tables) -> None:
    final(rows).update(requested_bytes=159, status="REALIZATION_FAILED")
    staging(rows)["qualifying_ids"] = []


@story("realization.materializations", "realization.release")
def the_staging_stayed(rows: Tables) -> None:
    staging(rows).update(
        status="TRANSIENT_RELEASE_NOT_AUTHORIZED",
        lifecycle="live",
        requested_bytes=160,
        allocated_bytes=4096,
        bytes_before_release=None,
        bytes_after_release=None,
        released_bytes=None,
        qualifying_ids=[],
    )


@story("realization.materializations", "realization.release")
def the_release_left_something(rows: Tables) -> None:
    staging(rows).update(
        status="RELEASE_INCOMPLETE",
        lifecycle="live",
        allocated_bytes=4096,
        bytes_after_release=4096,
        released_bytes=160 - 4096,
    )


@story("realization.materializations", "realization.release")
def the_staging_was_smaller_than_planned(rows: Tables) -> None:
    staging(rows).update(bytes_before_release=100, released_bytes=100, status="REALIZATION_FAILED")


@story("realization.release", "memory.ledger", "memory.release")
def the_witness_still_sees_the_staging_after_decode(rows: Tables) -> None:
    arena = row(rows, "arenas", 1, point="after_decode", materialization_id="mat.w.stage")
    arena.update(mapped_bytes=4096, resident_bytes=4096)


@story("realization.materializations")
def an_unplanned_copy_lives_in_forbidden_memory(rows: Tables) -> None:
    rows["materializations", 1].append(
        final(rows) | {"id": "mat.mirror", "memory_resource_id": RAM}
    )


@story("realization.materializations")
def the_optional_copy_was_realized_against_the_plan(rows: Tables) -> None:
    row(rows, "materializations", 1, id="mat.cache.host").update(
        final(rows)
        | {"id": "mat.cache.host", "status": "REALIZATION_FAILED", "requested_bytes": 32}
    )


@story("realization.authorities")
def the_wrong_copy_owns_the_state(rows: Tables) -> None:
    for point in ("after_population", "after_decode"):
        row(rows, "authorities", 1, point=point)["materialization_id"] = "mat.replay.resident"


@story("realization.authorities")
def the_lineage_changed_during_decode(rows: Tables) -> None:
    row(rows, "authorities", 1, point="after_decode")["lineage"] = "state.kv@epoch-2"


@story("realization.executions")
def the_execution_was_not_activated(rows: Tables) -> None:
    rows["executions", 1][0]["status"] = "NOT_ACTIVATED"


@story("tensors.expected")
def a_resident_tensor_is_wrong_from_the_start(rows: Tables) -> None:
    for tensor in rows["tensors", 1]:
        if tensor["name"] == "wide":
            tensor["digest"] = sha("wrong")


@story("tensors.unchanged")
def decode_wrote_into_a_resident_tensor(rows: Tables) -> None:
    row(rows, "tensors", 1, name="wide", point="after_decode")["digest"] = sha("written")


@story("tensors.expected")
def fixture_and_producer_leave_out_the_same_tensor(rows: Tables) -> None:
    for key in (("expected_tensors", None), ("tensors", 0), ("tensors", 1)):
        rows[key] = [tensor for tensor in rows[key] if tensor["name"] != "flat"]


@story("memory.unplanned")
def a_mirror_beyond_the_allowance(rows: Tables) -> None:
    point = row(rows, "checkpoints", 1, point="after_decode")
    point["private_anonymous_bytes"] += ALLOWANCE
    point["unplanned_bytes"] += ALLOWANCE


@story("memory.unplanned")
def a_mirror_that_the_witness_sum_leaves_out(rows: Tables) -> None:
    row(rows, "checkpoints", 1, point="after_decode")["memfd_bytes"] += 1 << 20


@story("memory.unplanned")
def a_tensor_outside_every_arena(rows: Tables) -> None:
    ledger = row(rows, "ledger", 1, point="after_decode", memory_resource_id=RAM)
    ledger["unplanned_tensor_bytes"] = 4


@story("memory.release")
def a_descriptor_of_the_checkpoint_stays_open(rows: Tables) -> None:
    point = row(rows, "checkpoints", 1, point="after_release")
    point["checkpoint_descriptors"] = ["two.safetensors"]


@story("memory.invariants")
def checkpoints_out_of_order(rows: Tables) -> None:
    rows["checkpoints", 1].reverse()


@story("steps.complete", "steps.repeat", "correctness.exact")
def one_realization_chose_another_token(rows: Tables) -> None:
    step = row(rows, "steps", 1, repetition=1, phase="decode", step=1)
    step.update(token=3, logits_digest=sha("other logits"), plane_digest=sha("other plane"))


@story("steps.complete")
def every_realization_left_the_reference_alike(rows: Tables) -> None:
    for realization in (0, 1):
        for step in rows["steps", realization]:
            if (step["phase"], step["step"]) == ("decode", 1):
                step["token"] = 3


@story("state.selfproof")
def restore_did_not_bring_the_state_back(rows: Tables) -> None:
    for realization in (0, 1):
        for state in rows["states", realization]:
            if (state["repetition"], state["point"]) == (1, "after_restore"):
                state["digest"] = sha(f"decoded {state['name']}")


@story("state.selfproof")
def restore_brought_back_the_same_wrong_state_everywhere(rows: Tables) -> None:
    for realization in (0, 1):
        for state in rows["states", realization]:
            if state["point"] == "after_restore":
                state["digest"] = sha(f"other {state['name']}")


@story("state.selfproof")
def decode_changed_nothing(rows: Tables) -> None:
    for realization in (0, 1):
        for state in rows["states", realization]:
            if state["point"] == "after_decode":
                state["digest"] = sha(f"prompt {state['name']}")


@story("state.selfproof")
def prefill_changed_nothing(rows: Tables) -> None:
    for realization in (0, 1):
        for state in rows["states", realization]:
            if state["point"] == "before_prefill":
                state["digest"] = sha(f"prompt {state['name']}")


@story("state.selfproof")
def a_state_tensor_is_left_out_everywhere(rows: Tables) -> None:
    for realization in (0, 1):
        rows["states", realization] = [s for s in rows["states", realization] if s["name"] == "k"]


@story("correctness.exact")
def an_output_within_any_tolerance_is_not_exact(rows: Tables) -> None:
    rows["correctness", 1][-1].update(num_different=1, max_abs=1e-9, max_rel=1e-9)


@story("sentinels.canaries")
def a_canary_that_did_not_fire(rows: Tables) -> None:
    row(rows, "sentinels", 1, name="unplanned_pages", point="after_decode")["canary_count"] = 0


@story("sentinels.canaries", "sentinels.zero")
def a_sentinel_that_was_not_read(rows: Tables) -> None:
    rows["sentinels", 1] = [s for s in rows["sentinels", 1] if s["name"] != "plan_accesses"]


@story("sentinels.zero")
def the_plan_was_read_during_decode(rows: Tables) -> None:
    row(rows, "sentinels", 1, name="plan_accesses", point="after_decode")["count"] = 1


@story("summaries.agree")
def a_status_that_its_row_does_not_deserve(rows: Tables) -> None:
    final(rows)["status"] = "REALIZATION_FAILED"


@pytest.mark.parametrize("name", STORIES)
def test_a_story_fails_by_its_checks(name: str) -> None:
    change, checks = STORIES[name]
    rows = make_tables()
    change(rows)
    verdict = faithful(rows)
    assert verdict.status == "failed"
    assert checks <= failing(verdict)
    for check in checks:
        assert any(path.startswith("tables/") for path in paths(verdict, check))


def test_sentinels_that_can_only_count_in_decode_may_also_be_read_after_release() -> None:
    rows = make_tables()
    for realization in (0, 1):
        rows["sentinels", realization] += [
            {"name": n, "point": "after_release", "canary_count": 1, "count": 0}
            for n in ("nan", "inf", "plan_accesses", "source_accesses")
        ]
    assert faithful(rows).status == "passed"
    row(rows, "sentinels", 1, name="plan_accesses", point="after_release")["count"] = 1
    assert failing(faithful(rows)) == {"sentinels.zero"}


@pytest.mark.parametrize("name", ["plan_accesses", "source_accesses"])
def test_accesses_are_to_be_read_after_decode(name: str) -> None:
    rows = make_tables()
    row(rows, "sentinels", 1, name=name)["point"] = "after_release"
    verdict = faithful(rows)
    assert failing(verdict) == {"sentinels.canaries", "sentinels.zero"}
    assert paths(verdict, "sentinels.zero") == [
        f"tables/sentinels/r1[name={name},point=after_decode]"
    ]


def test_the_allowance_itself_is_within_the_allowance() -> None:
    rows = make_tables()
    for point in rows["checkpoints", 1]:
        if point["point"] == "after_decode":
            point["memfd_bytes"] += ALLOWANCE - point["unplanned_bytes"]
            point["unplanned_bytes"] = ALLOWANCE
    assert faithful(rows).status == "passed"
    tighter = make_plan(memory_allowances=MemoryAllowances(unplanned_host_bytes=ALLOWANCE - 1))
    assert "memory.unplanned" in failing(judged(rows, tighter))


def test_a_release_that_nothing_qualified_is_named_where_the_ids_stand() -> None:
    rows = make_tables()
    the_staging_was_released_though_nothing_qualified(rows)
    found = paths(faithful(rows), "realization.release")
    assert found == ["tables/materializations/r1[id=mat.w.stage].qualifying_ids"]


def test_a_live_persistent_copy_in_forbidden_memory_is_named_by_its_memory() -> None:
    rows = make_tables()
    final(rows)["memory_resource_id"] = RAM
    (found,) = [
        d
        for d in faithful(rows).differences
        if d.check == "realization.materializations" and d.path.endswith("].memory_resource_id")
    ]
    assert "no persistent copy of state.w in node0.ram" in found.expected


def test_a_live_copy_that_no_plan_names_counts_as_kept_in_forbidden_memory() -> None:
    rows = make_tables()
    an_unplanned_copy_lives_in_forbidden_memory(rows)
    staging(rows).update(lifecycle="live")
    found = paths(faithful(rows), "realization.materializations")
    # The staging itself is a copy in that memory that is allowed while it lasts.
    assert [path for path in found if path.endswith("].memory_resource_id")] == [
        "tables/materializations/r1[id=mat.mirror].memory_resource_id"
    ]


@pytest.mark.parametrize("error", [ValueError, AttributeError, TypeError, KeyError, OverflowError])
def test_a_check_that_trips_over_rows_has_failed(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def trip(subject: object, findings: object) -> None:
        raise error("these rows make no sense")

    monkeypatch.setitem(CHECKS, "numbers.finite", trip)  # type: ignore[arg-type]
    verdict = faithful(make_tables())
    assert verdict.status == "failed"
    assert failing(verdict) == {"numbers.finite"}
    assert "these rows make no sense" in verdict.differences[0].got


def test_totals_are_recomputed() -> None:
    totals = {
        "planned_bytes": {RAM: FIXTURE_BYTES, VRAM: 321},
        "observed_bytes": {RAM: FIXTURE_BYTES - 1, VRAM: 320},
        "num_steps": 17,
        "num_passed": 3,
    }
    found = paths(faithful(make_tables(), totals=totals), "summaries.agree")
    assert found == [
        "$.totals.num_passed",
        "$.totals.num_steps",
        "$.totals.observed_bytes.node0.ram",
        "$.totals.planned_bytes.accelerator0.vram",
        "$.totals.smallest_visible_mirror_bytes",
    ]


def test_a_wrong_result_digest_fails_alone() -> None:
    verdict = judged(make_tables(), result_digest=sha("other"))
    assert failing(verdict) == {"result.digest"}


def test_the_fixture_reference_need_not_be_there_without_a_fixture() -> None:
    plan = replace(PLAN, plan=replace(PLAN.plan, reference_fixture=None))
    rows = make_tables()
    del rows["fixture_outputs", None]
    verdict = judged(rows, plan, fixture=None)
    assert "plan.binding" not in failing(verdict)
    assert {c.id for c in verdict.checks if c.status == "not_evaluated"} == {"correctness.exact"}
    with_reference = FixtureReference(recipe_digest=sha("r"), digest=sha("d"))
    assert "$.fixture" in paths(judged(rows, plan, fixture=with_reference), "plan.binding")


@pytest.mark.parametrize("field", ["recipe_digest", "digest"])
def test_the_fixture_reference_is_recomputed(field: str) -> None:
    fixture = replace(make_predicate(PLAN, make_tables()).fixture, **{field: sha("other")})
    assert f"$.fixture.{field}" in paths(judged(make_tables(), fixture=fixture), "plan.binding")


def mirror_path(rows: Tables, recorded: int | None) -> list[str]:
    """Paths of ``summaries.agree`` when a record says this smallest visible mirror."""
    totals = dict(make_predicate(PLAN, rows).totals)
    del totals["smallest_visible_mirror_bytes"]
    if recorded is not None:
        totals["smallest_visible_mirror_bytes"] = recorded
    return paths(faithful(rows, totals=totals), "summaries.agree")


MIRROR = ["$.totals.smallest_visible_mirror_bytes"]
LEAST_GROWTH = 120


def test_the_smallest_visible_mirror_is_recomputed() -> None:
    rows = make_tables()
    assert mirror_path(rows, ALLOWANCE + 1 - LEAST_GROWTH) == []
    for wrong in (ALLOWANCE - LEAST_GROWTH, ALLOWANCE + 1, 0, None):
        assert mirror_path(rows, wrong) == MIRROR


def test_a_mirror_can_hide_in_what_the_process_gave_back() -> None:
    rows = make_tables()
    # 4000 at the baseline, 4050 here: it gives back 350 bytes net, and the memory file 5 of 5.
    changed = row(rows, "checkpoints", 1, point="after_decode")
    changed.update(private_anonymous_bytes=3650, memfd_bytes=0)
    # What is left of the growth: 50 shared, and 50 of files.
    changed["unplanned_bytes"] = 100
    assert failing(faithful(rows)) <= {"summaries.agree"}
    assert mirror_path(rows, ALLOWANCE + 1 - 100 + 350 + 5) == []
    assert mirror_path(rows, ALLOWANCE + 1 - 100) == MIRROR


def test_the_smallest_visible_mirror_is_never_negative() -> None:
    rows = make_tables()
    for realization in (0, 1):
        for point in rows["checkpoints", realization]:
            if point["point"] in ("after_population", "after_release", "after_decode"):
                point["new_file_bytes"] += 5000
                point["unplanned_bytes"] += 5000
    assert mirror_path(rows, 0) == []


def test_a_run_without_a_gpu_says_that_cuda_was_not_executed() -> None:
    def claimed(plan: LoadedPlan, *labels: str) -> list[str]:
        claims = tuple(Claim(name="cuda", label=label, detail="d") for label in labels)  # type: ignore[arg-type]
        claims += CLAIMS[1:]
        found = paths(judged(make_tables(), plan, claims=claims), "summaries.agree")
        return [path for path in found if path.startswith("$.claims")]

    assert claimed(PLAN, "not_executed") == []
    assert claimed(PLAN) == ["$.claims.cuda"]
    assert claimed(PLAN, "measured") == ["$.claims.cuda"]
    assert claimed(PLAN, "not_executed", "measured") == ["$.claims.cuda"]
    (node,) = PLAN.plan.resources.nodes
    gpu = replace(node, compute_units=(replace(node.compute_units[0], kind="cuda-gpu"),))
    resources = replace(PLAN.plan.resources, nodes=(gpu,))
    on_gpu = replace(PLAN, plan=replace(PLAN.plan, resources=resources))
    assert claimed(on_gpu) == claimed(on_gpu, "measured") == []
    assert claimed(on_gpu, "not_executed") == ["$.claims.cuda"]


def test_exactly_the_expected_claims_are_made() -> None:
    def found(*claims: Claim) -> list[str]:
        listed = paths(faithful(make_tables(), claims=claims), "summaries.agree")
        return [path for path in listed if path.startswith("$.claims")]

    cuda, graph, *spots = CLAIMS
    assert found(*reversed(CLAIMS)) == []
    assert found(cuda, replace(graph, detail="other"), *spots) == []
    assert found(cuda, *spots) == ["$.claims.cuda_graph"]
    assert found(cuda, graph, graph, *spots) == ["$.claims.cuda_graph"]
    assert found(cuda, replace(graph, label="measured"), *spots) == ["$.claims.cuda_graph"]
    blind = ["$.claims.memory.blind_spot"]
    assert found(cuda, graph, *spots[1:]) == blind
    assert found(*CLAIMS, spots[0]) == blind
    assert found(*CLAIMS[:-1], replace(spots[-1], label="measured")) == blind
    assert found(*CLAIMS[:-1], replace(spots[-1], detail="nowhere")) == blind
    assert found(*CLAIMS, Claim(name="speed", label="measured", detail="d")) == ["$.claims.speed"]


def arena_of(rows: Tables, identifier: str, size: int) -> None:
    """Give one arena another size, wherever it is said."""
    for realization in (0, 1):
        memories = {}
        for arena in rows["arenas", realization]:
            if arena["materialization_id"] == identifier:
                arena["declared_bytes"] = size
                if arena["mapped_bytes"]:
                    arena["mapped_bytes"] = size
                    memories[arena["point"]] = arena["memory_resource_id"]
        peaks: dict[str, int] = {}
        for reading in rows["ledger", realization]:
            memory = reading["memory_resource_id"]
            if memories.get(reading["point"]) == memory:
                reading["allocated_bytes"] += size - 4096
            peaks[memory] = max(peaks.get(memory, 0), reading["allocated_bytes"])
            reading["peak_allocated_bytes"] = peaks[memory]
        for realized in rows["materializations", realization]:
            if realized["id"] == identifier and realized["lifecycle"] == "live":
                realized["allocated_bytes"] = size


@pytest.mark.parametrize(
    ("identifier", "bound"),
    [("mat.w.resident", 160 + 2 * 64 + 65536), ("mat.w.stage", 160 + 2 * 64 + 65536)],
)
def test_an_arena_has_room_for_its_tensors_only(identifier: str, bound: int) -> None:
    rows = make_tables()
    arena_of(rows, identifier, bound - 1)
    small = [d for d in faithful(rows).differences if d.check == "memory.ledger"]
    assert small == []
    rows = make_tables()
    arena_of(rows, identifier, bound)
    found = paths(faithful(rows), "memory.ledger")
    assert found
    assert all(f"materialization_id={identifier}].declared_bytes" in path for path in found)


def test_the_ledger_allocates_what_its_arenas_declare() -> None:
    rows = make_tables()
    for realization in (0, 1):
        for reading in rows["ledger", realization]:
            if reading["memory_resource_id"] == VRAM and reading["allocated_bytes"]:
                reading["allocated_bytes"] += 4096
                reading["peak_allocated_bytes"] += 4096
    found = paths(faithful(rows), "memory.ledger")
    assert found
    assert all(path.endswith(f"{VRAM}].allocated_bytes") for path in found)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"started_at": "2026-01-01T00:00:00.000000Z"}, set()),
        ({"ended_at": "2026-01-01T00:00:05.000000Z"}, set()),
        ({"started_at": "2026-01-01T00:00:00.000001Z"}, {"baseline"}),
        ({"ended_at": "2026-01-01T00:00:04.999999Z"}, {"after_decode"}),
        ({"started_at": "2026-01-01T00:00:00"}, {"$.started_at"}),
        ({"ended_at": "soon"}, {"$.ended_at"}),
    ],
)
def test_every_reading_lies_between_start_and_end(
    changes: dict[str, str], expected: set[str]
) -> None:
    found = paths(faithful(make_tables(), **changes), "memory.invariants")
    places = {
        f"tables/checkpoints/r{number}[point={name}].read_at"
        for name in expected
        for number in (0, 1)
        if not name.startswith("$")
    }
    assert set(found) == places | {name for name in expected if name.startswith("$")}


@pytest.mark.parametrize(
    ("name", "least"),
    [("unplanned_tensors", 1 << 20), ("unplanned_pages", (1 << 20) - ALLOWANCE - 65536)],
)
def test_a_canary_of_bytes_counts_about_what_was_planted(name: str, least: int) -> None:
    rows = make_tables()
    sentinel = row(rows, "sentinels", 1, name=name, point="after_decode")
    sentinel["canary_count"] = least
    assert faithful(rows).status == "passed"
    sentinel["canary_count"] = least - 1
    assert paths(faithful(rows), "sentinels.canaries") == [
        f"tables/sentinels/r1[name={name},point=after_decode].canary_count"
    ]


def test_under_a_large_allowance_a_canary_of_pages_still_has_to_fire() -> None:
    plan = make_plan(memory_allowances=MemoryAllowances(unplanned_host_bytes=1 << 21))
    for count, is_enough in ((1, True), (0, False)):
        rows = make_tables()
        row(rows, "sentinels", 1, name="unplanned_pages", point="after_decode").update(
            canary_count=count
        )
        assert (paths(judged(rows, plan), "sentinels.canaries") == []) == is_enough


def test_every_realization_states_the_code_that_ran() -> None:
    rows = make_tables()
    other = SourceIdentity(package_digest=sha("other code"))
    fact = "[name=package_digest]"
    assert paths(faithful(rows, source=other), "plan.binding") == [
        f"tables/facts/r{number}{fact}.value" for number in (0, 1)
    ]
    assert faithful(rows, source=SourceIdentity()).status == "passed"
    for realization in (0, 1):
        rows["facts", realization] = [
            each for each in rows["facts", realization] if each["name"] != "package_digest"
        ]
    for source in (SourceIdentity(), other):
        assert paths(faithful(rows, source=source), "plan.binding") == [
            f"tables/facts/r{number}{fact}" for number in (0, 1)
        ]


def test_mutable_state_is_that_of_the_reference() -> None:
    def found(change: Callable[[list[Row]], None]) -> set[str]:
        rows = make_tables()
        change(rows["fixture_states", None])
        listed = paths(faithful(rows), "state.selfproof")
        return {path.partition("repetition=")[2].partition(",name")[0] for path in listed} - {""}

    assert found(lambda rows: rows[0].update(digest=sha("x"))) == {"0,point=after_prefill"}
    decoded = {"0,point=after_decode", "1,point=after_decode"}
    assert found(lambda rows: rows[-1].update(digest=sha("x"))) == decoded
    assert found(lambda rows: rows[-1].update(bytes=31)) == decoded
    assert found(lambda rows: rows[-1].update(name="w")) == decoded
    rows = make_tables()
    rows["fixture_states", None].pop()
    assert paths(faithful(rows), "state.selfproof") == [
        "tables/fixture_states[point=after_decode,name=near.live]"
    ]
    rows = make_tables()
    extra = rows["fixture_states", None][0] | {"point": "before_prefill"}
    rows["fixture_states", None].append(extra)
    assert paths(faithful(rows), "state.selfproof") == [
        "tables/fixture_states[point=before_prefill,name=k]"
    ]


@pytest.mark.parametrize("kind", ["xxh3-128:", ""])
@pytest.mark.parametrize("where", ["steps", "fixture", "both"])
def test_digests_of_another_kind_are_not_skipped(kind: str, where: str) -> None:
    rows = make_tables()
    other = kind + "0" * 32
    if where != "fixture":
        row(rows, "steps", 1, repetition=0, phase="decode", step=1)["plane_digest"] = other
    if where != "steps":
        row(rows, "fixture_outputs", None, phase="decode", step=1, output="plane")["digest"] = other
        for realization in (0, 1):
            for compared in rows["correctness", realization]:
                if (compared["phase"], compared["step"], compared["output"]) == (
                    "decode",
                    1,
                    "plane",
                ):
                    compared["fixture_digest"] = other
    found = [d for d in faithful(rows).differences if d.check == "correctness.exact"]
    step = "tables/steps/r1[repetition=0,phase=decode,step=1].plane_digest"
    reference = "tables/fixture_outputs[phase=decode,step=1,output=plane].digest"
    expected = {"steps": [step], "fixture": [reference], "both": [reference, step]}[where]
    assert [d.path for d in found] == expected
    assert all(d.got == other and "sha256:" in d.expected for d in found)


def test_tensors_outside_arenas_are_counted_for_the_host_only() -> None:
    def found(point: str, memory: str, value: int | None) -> list[str]:
        rows = make_tables()
        ledger = row(rows, "ledger", 1, point=point, memory_resource_id=memory)
        ledger["unplanned_tensor_bytes"] = value
        return paths(faithful(rows), "memory.unplanned")

    def place(point: str, memory: str) -> list[str]:
        key = f"point={point},memory_resource_id={memory}"
        return [f"tables/ledger/r1[{key}].unplanned_tensor_bytes"]

    assert found("after_staging", RAM, 1 << 20) == []
    assert found("after_staging", RAM, -1) == place("after_staging", RAM)
    assert found("after_staging", RAM, None) == place("after_staging", RAM)
    assert found("after_release", RAM, None) == place("after_release", RAM)
    assert found("after_release", RAM, 1) == place("after_release", RAM)
    for point in ("baseline", "after_decode"):
        assert found(point, VRAM, 0) == place(point, VRAM)


@pytest.mark.parametrize("name", UNBOUND_FACTS)
def test_a_fact_that_no_plan_gives_may_be_another_everywhere_and_is_listed(name: str) -> None:
    assert f"tables/facts[name={name}].value" in unbound_paths()
    rows = make_tables()
    for realization in (0, 1):
        row(rows, "facts", realization, name=name)["value"] = "other"
    key = replace(KEY, **{name: "other"}) if hasattr(KEY, name) else KEY
    digest = result_digest(PLAN, key, by_name(rows))
    assert judged(rows, applicability_key=key, result_digest=digest).status == "passed"
    row(rows, "facts", 1, name=name)["value"] = "third"
    assert "plan.binding" in failing(faithful(rows))


def test_a_fact_that_the_plan_gives_is_not_listed() -> None:
    rows = make_tables()
    for fact in rows["facts", 0]:
        is_listed = f"tables/facts[name={fact['name']}].value" in unbound_paths()
        assert is_listed == (fact["name"] in UNBOUND_FACTS)


def test_a_larger_machine_serves_as_well_and_its_resources_are_listed() -> None:
    assert "$.environment.resources" in unbound_paths()
    larger = copy.deepcopy(ENVIRONMENT)
    larger["resources"]["nodes"][0]["memory_resources"][0]["capacity_bytes"] *= 2
    rows = make_tables()
    for realization in (0, 1):
        for reading in rows["ledger", realization]:
            if reading["memory_resource_id"] == RAM:
                reading["capacity_bytes"] *= 2
    assert faithful(rows, environment=larger).status == "passed"
    assert "memory.ledger" in failing(faithful(make_tables(), environment=larger))


# Rules by themselves


def observed(intent: Any, **changes: Any) -> Row:
    values = {
        "lifecycle": "live",
        "logical_state_id": intent.logical_state_id,
        "representation": intent.representation,
        "memory_resource_id": intent.memory_resource_id,
        "requested_bytes": intent.expected_bytes,
        "bytes_before_release": None,
        "bytes_after_release": None,
        "status": "PLANNED_AND_REALIZED",
    }
    return values | changes


GONE = {"lifecycle": "released", "requested_bytes": 0, "bytes_before_release": 160}


@pytest.mark.parametrize(
    ("intent", "changes", "status"),
    [
        (RESIDENT, {}, "PLANNED_AND_REALIZED"),
        (RESIDENT, {"requested_bytes": 159}, "REALIZATION_FAILED"),
        (RESIDENT, {"lifecycle": "absent"}, "REALIZATION_FAILED"),
        (RESIDENT, {"lifecycle": "released"}, "REALIZATION_FAILED"),
        (RESIDENT, {"logical_state_id": None}, "REALIZATION_FAILED"),
        (STAGE, {}, "TRANSIENT_RELEASE_NOT_AUTHORIZED"),
        (STAGE, GONE | {"bytes_after_release": 0}, "TRANSIENT_RELEASED_AS_PLANNED"),
        (STAGE, GONE | {"bytes_after_release": 1}, "RELEASE_INCOMPLETE"),
        (
            STAGE,
            GONE | {"bytes_after_release": 4096, "lifecycle": "live"},
            "RELEASE_INCOMPLETE",
        ),
        (STAGE, GONE | {"bytes_after_release": None}, "RELEASE_INCOMPLETE"),
        (
            STAGE,
            GONE | {"bytes_after_release": 0, "bytes_before_release": 159},
            "REALIZATION_FAILED",
        ),
        (STAGE, {"lifecycle": "absent"}, "REALIZATION_FAILED"),
        (INTENTS[-1], {"lifecycle": "absent", "requested_bytes": 0}, "OPTIONAL_NOT_REALIZED"),
        (INTENTS[-1], {}, "REALIZATION_FAILED"),
        (replace(INTENTS[-1], realize=True), {}, "PLANNED_AND_REALIZED"),
    ],
)
def test_the_status_follows_from_observed_columns(intent: Any, changes: Row, status: str) -> None:
    # The producer's word is not looked at.
    for claimed in ("PLANNED_AND_REALIZED", "anything"):
        assert recomputed_status(intent, observed(intent, **changes, status=claimed)) == status


def test_qualifying_ids_are_sorted_and_need_an_observed_copy() -> None:
    second = replace(RESIDENT, id="mat.a.second")
    plan = replace(PLAN.plan, materializations=(*INTENTS, second))
    staying = residencies(plan)[STAGE.logical_state_id]
    rows = {RESIDENT.id: observed(RESIDENT), second.id: observed(second)}
    assert qualifying_ids(staying, STAGE, rows) == ["mat.a.second", "mat.w.resident"]
    assert qualifying_ids(staying, STAGE, {}) == []
    rows[second.id] = observed(second, requested_bytes=1)
    assert qualifying_ids(staying, STAGE, rows) == ["mat.w.resident"]


def test_values_no_check_can_digest_fail_it_and_crash_nothing() -> None:
    rows = make_tables()
    rows["fixture_outputs", None][0]["shape"] = [-(2**62), 2**62, 3]
    rows["tensors", 0][0]["bytes"] = -(2**62)
    rows["checkpoints", 0][0]["vm_rss_bytes"] = -1
    verdict = judged(rows)
    assert verdict.status == "failed"
    assert verdict.result_digest is None


class Damaged(MemoryRecord):
    """A record of which one table cannot be read."""

    def rows(
        self, name: str, realization: int | None = None, stage: int | None = None
    ) -> list[Row]:
        if (name, realization) == ("states", 1):
            raise InvalidInputError("file was changed", where="somewhere")
        return super().rows(name, realization, stage)


def test_a_table_that_cannot_be_read_is_a_difference_of_each_check_that_needs_it() -> None:
    whole = make_record(PLAN, make_tables())
    damaged = Damaged(**vars(whole))
    verdict = audit(PLAN, MANIFEST, damaged, layout=Layout())  # type: ignore[arg-type]
    assert failing(verdict) == {"integrity.tables", "state.selfproof", "result.digest"}
    assert paths(verdict, "state.selfproof") == ["tables/states/r1"]


def listing(*partition: tuple[int, int]) -> LoadedPlan:
    assert PLAN.plan.workload is not None
    return make_plan(workload=replace(PLAN.plan.workload, prefill_partition=partition))


def test_listed_chunks_are_those_that_are_judged() -> None:
    same = listing((0, 2), (2, 4), (4, 5))
    digest = result_digest(same, KEY, by_name(make_tables()))
    assert judged(make_tables(), same, result_digest=digest).status == "passed"
    other = judged(make_tables(), listing((0, 1), (1, 3), (3, 5)))
    first = "tables/steps/r0[repetition=0,phase=prefill,step=0].num_rows"
    second = "tables/steps/r0[repetition=0,phase=prefill,step=1].start_position"
    assert {first, second} <= set(paths(other, "steps.complete"))
    assert "$.applicability_key.geometry" in paths(other, "plan.binding")
    assert paths(other, "state.ownership")
    fewer = judged(make_tables(), listing((0, 2), (2, 5)))
    assert "tables/steps/r0[repetition=0,phase=prefill,step=2]" in paths(fewer, "steps.complete")
    gap = judged(make_tables(), listing((0, 2), (3, 5)))
    assert "plan/$.workload.prefill_partition[1]" in paths(gap, "plan.binding")


@pytest.mark.parametrize(
    "changes",
    [{"fresh_realizations": 2**50}, {"decode_steps": 2**50}, {"repetitions": 2**50}],
)
def test_a_plan_that_implies_any_number_of_rows_is_refused(changes: dict[str, int]) -> None:
    assert PLAN.plan.workload is not None
    workload = replace(PLAN.plan.workload, **changes)  # type: ignore[arg-type]
    absurd = replace(PLAN, plan=replace(PLAN.plan, workload=workload))
    with pytest.raises(InvalidInputError, match="too large to be audited"):
        judged(make_tables(), absurd)


def test_a_plan_that_breaks_a_rule_cannot_have_a_passing_record() -> None:
    resident = replace(RESIDENT, memory_resource_id=RAM)
    intents = tuple(resident if intent is RESIDENT else intent for intent in INTENTS)
    plan = make_plan(materializations=intents)
    found = paths(judged(make_tables(), plan), "plan.binding")
    assert any(path.startswith("plan/$.") for path in found)
