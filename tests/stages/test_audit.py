"""One record of all stages: what it holds, and that another value, or a missing stage, is found."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest

from harness.adapters.families import layout_for
from harness.evidence.declared import TABLES
from harness.evidence.record import LoadedRecord, Rows
from harness.evidence.statement import record_statement
from harness.evidence.verify import verify_store
from harness.laboratory.replay import recompute_replay
from harness.laboratory.writing import draft
from harness.plan.checks import STAGE_CHECKS
from harness.plan.records import CheckLimit, Checks
from harness.reconcile.judge import judge
from harness.reconcile.unbound import STAGE_COLUMNS
from harness.reconcile.verdict import Verdict
from kernels.native.sources import built_digest

STAGE_TABLES = [name for name, table in TABLES.items() if table.check in STAGE_CHECKS]
Place = tuple[str, int | None, int | None]


@dataclass(frozen=True, kw_only=True)
class Changed(LoadedRecord):
    """A record some of whose rows are others."""

    held: dict[Place, Rows]

    def rows(self, name: str, realization: int | None = None, stage: int | None = None) -> Rows:
        place = (name, realization, stage)
        return self.held[place] if place in self.held else super().rows(*place)


def with_rows(record: LoadedRecord, held: dict[Place, Rows]) -> LoadedRecord:
    return Changed(**vars(record), held=held)


def judged(
    trial: Any,
    record: LoadedRecord,
    *,
    whole: bool = False,
    checks: Iterable[str] = STAGE_CHECKS,
    **workload: Any,
) -> Verdict:
    """Audit by the checks between stages alone, by others, or by all of them."""
    only = Checks(acceptance=tuple(CheckLimit(id=name) for name in checks), telemetry=())
    plan = trial.plan.plan
    asked = replace(plan, checks=only, workload=replace(plan.workload, **workload))
    loaded = trial.plan if whole else replace(trial.plan, plan=asked)
    return judge(loaded, record, layout_for=layout_for)


def failing(verdict: Verdict) -> set[str]:
    return {check.id for check in verdict.checks if check.status == "failed"}


def test_each_stage_realized_its_own_part_and_wrote_its_own_tables(passed: Any) -> None:
    assert (passed.code, passed.verdict["status"], passed.failed) == (0, "passed", set())
    assert verify_store(passed.record.store.root, plans=None) == []
    plan, record = passed.plan.plan, passed.record
    assert [row["outcome"] for row in record.rows("trials")] == ["completed"] * 5
    whole = set(plan.adapter_data.allowed_tensor_keys)
    read: list[set[str]] = []
    for number, stage in enumerate(plan.stages):
        planned = {m.id for m in plan.materializations if m.stage_id == stage.id}
        rows = record.rows("materializations", 0, number)
        assert {row["id"] for row in rows} == planned
        assert all(identifier.startswith(f"{stage.id}.") for identifier in planned)
        read.append({row["key"] for row in record.rows("fetches", 0, number)})
        layers = {int(key.split(".")[2]) for key in read[-1] if key.startswith("model.layers.")}
        assert layers == set(range(stage.start_layer, stage.end_layer))
        points = [row["point"] for row in record.rows("checkpoints", 0, number)]
        assert len(points) == 6
    assert set.union(*read) == whole
    assert set.intersection(*read) == set()
    total = sum(
        row["requested_bytes"]
        for number in range(2)
        for row in record.rows("materializations", 0, number)
        if row["memory_resource_id"] == "accelerator0.vram" and row["lifecycle"] == "live"
    )
    assert record.predicate.totals["observed_bytes"]["accelerator0.vram"] == total


def test_what_crossed_is_written_down_on_both_sides(passed: Any) -> None:
    first, last = (passed.record.rows("crossings", 0, number) for number in (0, 1))
    for sender, receiver, kind in ((first, last, "plane"), (last, first, "token")):
        sent = [row for row in sender if (row["direction"], row["kind"]) == ("sent", kind)]
        got = [row for row in receiver if (row["direction"], row["kind"]) == ("received", kind)]
        strip = [{k: v for k, v in row.items() if k not in ("direction", "peer")} for row in sent]
        assert strip == [
            {k: v for k, v in row.items() if k not in ("direction", "peer")} for row in got
        ]
    # Two chunks, then three decode steps in each of four repetitions; a token after all but one.
    kinds = [row["kind"] for row in first]
    assert kinds.count("plane") == 2 + 3 * 4
    assert kinds.count("token") == 1 + 3 * 4
    assert (kinds.count("open"), kinds.count("restore")) == (2, 2 * 4)


def test_the_checks_between_stages_pass(passed: Any) -> None:
    verdict = judged(passed, passed.record)
    assert (failing(verdict), verdict.differences) == (set(), ())


def other(value: Any) -> Any:
    if isinstance(value, str):
        return "sent" if value == "received" else value + "x"
    return 1 if value is None else value + 1


def cells() -> Iterator[Any]:
    for name in STAGE_TABLES:
        for column in TABLES[name].columns:
            yield pytest.param(name, column, id=f"{name}.{column}")


@pytest.mark.parametrize(("name", "column"), list(cells()))
def test_another_value_of_a_column_is_found(passed: Any, name: str, column: str) -> None:
    for stage in (0, 1):
        rows = [dict(row) for row in passed.record.rows(name, 0, stage)]
        rows[-1][column] = other(rows[-1][column])
        verdict = judged(passed, with_rows(passed.record, {(name, 0, stage): rows}))
        if column in STAGE_COLUMNS.get(name, {}) and name == "stage_times":
            assert verdict.differences == ()
        else:
            check = "stages.tokens" if column == "token" else TABLES[name].check
            assert check in failing(verdict)
            place = f"tables/{name}/r0/s{stage}"
            heard = f"tables/{name}/r0/s"
            assert any(d.path.startswith((place, heard)) for d in verdict.differences)


@pytest.mark.parametrize(
    ("column", "value"),
    [("width", 0), ("width", 63), ("nonce", ""), ("nonce", "f" * 31), ("nonce", "F" * 32)],
)
def test_what_all_stages_say_alike_is_held_against_the_reference_and_its_form(
    passed: Any, column: str, value: object
) -> None:
    held: dict[Place, Rows] = {
        ("stage_greetings", 0, stage): [
            row | {column: value} for row in passed.record.rows("stage_greetings", 0, stage)
        ]
        for stage in (0, 1)
    }
    verdict = judged(passed, with_rows(passed.record, held))
    assert failing(verdict) == {"stages.complete"}
    assert all(d.path.endswith(f".{column}") for d in verdict.differences)


def test_a_negative_time_is_found(passed: Any) -> None:
    rows = [dict(row) for row in passed.record.rows("stage_times", 0, 1)]
    rows[2]["received_ns"] = -1
    verdict = judged(passed, with_rows(passed.record, {("stage_times", 0, 1): rows}))
    assert failing(verdict) == {"stages.complete"}


def test_times_of_a_stage_s_parts_are_within_those_of_its_steps(passed: Any) -> None:
    for stage in (0, 1):
        rows = [dict(row) for row in passed.record.rows("stage_times", 0, stage)]
        durations = {
            tuple(row[name] for name in ("repetition", "phase", "step")): row["duration_ns"]
            for row in passed.record.rows("step_times", 0, stage)
        }
        limit = durations[rows[1]["repetition"], rows[1]["phase"], rows[1]["step"]]
        rows[1] = rows[1] | {"compute_ns": limit, "sent_ns": limit}
        verdict = judged(passed, with_rows(passed.record, {("stage_times", 0, stage): rows}))
        assert failing(verdict) == {"stages.complete"}
        assert f"at most {limit} ns" in verdict.differences[0].expected


def test_a_witness_s_tables_are_of_its_own_stage_s_process(passed: Any) -> None:
    swapped: dict[Place, Rows] = {
        ("checkpoints", 0, stage): passed.record.rows("checkpoints", 0, 1 - stage)
        for stage in (0, 1)
    }
    verdict = judged(passed, with_rows(passed.record, swapped), checks=["trials.completed"])
    named = {d.path.rpartition(".")[2] for d in verdict.differences if "process_id" in d.path}
    assert (failing(verdict), named) == ({"trials.completed"}, {"process_id"})
    # Another stage's process ran at the same time, and so its times alone say little.
    renamed: dict[Place, Rows] = {
        place: [
            row | {"read_ns": row["read_ns"] + 60 * 10**9} for row in passed.record.rows(*place)
        ]
        for place in swapped
    }
    verdict = judged(passed, with_rows(passed.record, renamed), checks=["trials.completed"])
    assert {d.path.rpartition(".")[2] for d in verdict.differences} == {"read_ns"}


@pytest.mark.parametrize("renamed", [(), ("trials",), ("trials", "lifecycle", "checkpoints")])
def test_a_realization_is_no_copy_of_another(passed: Any, renamed: tuple[str, ...]) -> None:
    """All tables of another realization, under a nonce of its own, and other processes' names."""
    record = passed.record
    of_two = {"checks": ["stages.complete", "trials.completed"], "fresh_realizations": 2}

    def told(name: str, row: Any) -> Any:
        return row | {"process_id": row["process_id"] + 10**6} if name in renamed else row

    held: dict[Place, Rows] = {
        (table.name, 1, table.stage): [
            told(table.name, row) for row in record.rows(table.name, 0, table.stage)
        ]
        for table in record.predicate.tables
        if table.realization == 0
    }
    for stage in (0, 1):
        place = ("stage_greetings", 1, stage)
        held[place] = [row | {"nonce": "0" * 32} for row in held[place]]
    trials = [row for row in record.rows("trials") if row["child"] != "fixture"]
    copied = [told("trials", row | {"realization": 1}) for row in trials]
    held["trials", None, None] = [*record.rows("trials"), *copied]
    verdict = judged(passed, with_rows(record, held), **of_two)
    assert failing(verdict) == {"trials.completed"}
    late = [d for d in verdict.differences if d.path.endswith("[order=0].at_ns")]
    assert [d.path for d in late] == [f"tables/lifecycle/r1/s{n}[order=0].at_ns" for n in (0, 1)]
    # Times that follow, in the producers' tables alone, are not those of their witnesses.
    for stage in (0, 1):
        place = ("lifecycle", 1, stage)
        held[place] = [row | {"at_ns": row["at_ns"] + 10**12} for row in held[place]]
    verdict = judged(passed, with_rows(record, held), **of_two)
    assert any(d.path.endswith(".read_ns") for d in verdict.differences)


@pytest.mark.parametrize("name", ["tensors", "steps", "crossings", "materializations", "arenas"])
def test_a_stage_without_a_table_fails(passed: Any, name: str) -> None:
    kept = tuple(
        table for table in passed.record.predicate.tables if (table.name, table.stage) != (name, 1)
    )
    record = replace(passed.record, predicate=replace(passed.record.predicate, tables=kept))
    verdict = judged(passed, record, whole=True)
    assert verdict.status == "failed"
    missing = [d.path for d in verdict.differences if d.check == "integrity.tables"]
    assert missing == [f"tables/{name}/r0/s1"]


def test_a_stage_that_tells_both_sides_otherwise_is_found_by_the_reference(passed: Any) -> None:
    """The last stage's word on its tokens, and what crossed, changed together."""
    steps = [dict(row) for row in passed.record.rows("steps", 0, 1)]
    crossings = {
        number: [dict(row) for row in passed.record.rows("crossings", 0, number)]
        for number in (0, 1)
    }
    steps[-1]["token"] += 1
    for rows in crossings.values():
        [row for row in rows if row["kind"] == "token"][-1]["token"] += 1
    held: dict[Place, Rows] = {("steps", 0, 1): steps}
    held |= {("crossings", 0, number): rows for number, rows in crossings.items()}
    verdict = judged(passed, with_rows(passed.record, held), whole=True)
    assert not failing(verdict) & STAGE_CHECKS.keys()
    assert {"steps.complete", "steps.repeat"} <= failing(verdict)


def test_a_table_that_two_stages_hold_must_be_one(
    passed: Any, staged_plan: Callable[..., Any]
) -> None:
    """The rotary table is on every stage: another one on the last is found there."""
    rows = [dict(row) for row in passed.record.rows("tensors", 0, 1)]
    changed = [row for row in rows if row["name"] == "cos"]
    assert len(changed) == 2
    for row in changed:
        row["digest"] = "sha256:" + "0" * 64
    verdict = judged(passed, with_rows(passed.record, {("tensors", 0, 1): rows}))
    assert failing(verdict) == {"stages.shared_state"}
    assert all(d.path.startswith("tables/tensors/r0/s1") for d in verdict.differences)


def test_a_stage_that_read_or_holds_another_stages_part_fails(passed: Any) -> None:
    """Tables of both stages change places: nothing is missing, and each is the wrong one's."""
    for name, check in (
        ("fetches", "integrity.source"),
        ("materializations", "realization.materializations"),
        ("authorities", "realization.authorities"),
        ("executions", "realization.executions"),
        ("tensors", "tensors.expected"),
        ("states", "state.selfproof"),
        ("steps", "steps.complete"),
    ):
        rows = [passed.record.rows(name, 0, number) for number in (1, 0)]
        held: dict[Place, Rows] = {(name, 0, number): rows[number] for number in (0, 1)}
        assert check in failing(judged(passed, with_rows(passed.record, held), whole=True)), name


def test_without_a_layout_what_stages_share_is_not_evaluated(passed: Any) -> None:
    verdict = judge(passed.plan, passed.record)
    assert verdict.status == "not_evaluated"
    open_checks = {check.id for check in verdict.checks if check.status == "not_evaluated"}
    assert open_checks == {"integrity.source", "stages.shared_state"}
    assert failing(verdict) == set()


def test_records_without_stages_name_none(passed: Any) -> None:
    tables = passed.record.statement["predicate"]["tables"]
    assert {table.get("stage", "all") for table in tables} == {0, 1, "all"}
    assert [table["name"] for table in tables if "stage" not in table] == ["trials"]
    names = [subject["name"] for subject in passed.record.statement["subject"]]
    assert "tables/steps/r0/s1" in names
    places = [(t["name"], t["realization"], t.get("stage")) for t in tables]
    keys = [tuple(-1 if part is None else part for part in place) for place in places]
    assert all(one < two for one, two in pairwise(keys))


def test_a_replay_compares_every_stage(passed: Any) -> None:
    record = passed.record
    again = record_statement(replace(record.predicate, experiment="again"))
    study = draft(
        kind="replay",
        experiment="staged",
        parameters={},
        records=(record.digest, record.store.put_record(again)),
        command=(),
        started_at=record.predicate.started_at,
    )
    rows, findings = recompute_replay(record.store, study)
    assert findings["counts"]["not_reproduced"] == 0
    planes = [row for row in rows if (row["table"], row["column"]) == ("steps", "plane_digest")]
    assert len({row["place"] for row in planes}) == len(planes) == 2 * (2 + 3 * 4)
    assert {row["place"].split()[0] for row in planes} == {"stage=0", "stage=1"}


@pytest.mark.slow
@pytest.mark.skipif(built_digest() is None, reason="the native kernels are not built")
def test_stages_say_which_library_computes(
    staged_plan: Callable[..., Any], run_staged: Callable[..., Any]
) -> None:
    kernel_set = ("determinism.kernel_set=native-cpu/1", "determinism.batch_invariant=true")
    trial = run_staged(staged_plan("tiny_llama", 2, *kernel_set))
    assert (trial.code, trial.verdict["status"], trial.failed) == (0, "passed", set())
    for row in trial.record.rows("stage_greetings", 0, 1):
        assert "; library sha256:" in row["instruction_set"]
