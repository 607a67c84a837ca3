"""The whole path as a user runs it: processes, tables, record, verdict."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.canonical import sha256_digest
from harness.errors import InvalidInputError, NotEvaluableError, PlanError, ResourceError
from harness.evidence.diff import compare_records
from harness.evidence.record import load_record
from harness.evidence.verify import verify_store
from harness.measure.environment import DeviceRequest
from harness.plan.load import LoadedPlan
from harness.run.request import RunRequest
from harness.run.supervisor import run


def test_a_faithful_run_passes_and_leaves_only_a_clean_store(passed: Any) -> None:
    assert passed.code == 0
    assert passed.verdict["status"] == "passed"
    assert passed.failed == set()
    assert not list(passed.store.root.glob(".*"))
    assert verify_store(passed.store.root, plans=None) == []
    (digest,) = passed.store.digests("records")
    record = load_record(digest, passed.store)
    bytes_ = passed.store.path("records", digest).read_bytes()
    assert sha256_digest(bytes_) == digest
    assert record.predicate.result_digest == passed.verdict["result_digest"]
    assert len(bytes_) < 64 << 10


def test_what_is_recorded_is_what_happened(passed: Any) -> None:
    (digest,) = passed.store.digests("records")
    record = load_record(digest, passed.store)
    steps = record.rows("steps", 0)
    assert [row["num_rows"] for row in steps if row["phase"] == "prefill"] == [4, 1]
    assert sum(row["phase"] == "decode" for row in steps) == 2 * 3
    sentinels = record.rows("sentinels", 0)
    assert {row["point"] for row in sentinels} == {"after_release", "after_decode"}
    assert all(row["canary_count"] > 0 for row in sentinels)
    assert all(row["count"] == 0 for row in sentinels)
    arenas = {(row["point"], row["materialization_id"]): row for row in record.rows("arenas", 0)}
    stage = arenas["after_population", "mat.weights.stage"]
    assert stage["mapped_bytes"] == stage["declared_bytes"] > 0
    assert stage["resident_bytes"] >= 2**20
    assert arenas["after_release", "mat.weights.stage"]["mapped_bytes"] == 0
    assert arenas["after_decode", "mat.weights.resident"]["resident_bytes"] > 0
    claims = {claim.name: claim.label for claim in record.predicate.claims}
    assert claims["cuda"] == "not_executed"
    assert passed.summary["status"] == "passed"
    assert passed.summary["tokens"] == [
        row["token"] for row in steps if row["repetition"] == 0 and row["token"] is not None
    ]


def test_two_runs_of_one_plan_have_one_result(
    run_plan: Callable[..., Any], small_plan: LoadedPlan, passed: Any, tmp_path: Path
) -> None:
    shutil.copytree(passed.store.root, tmp_path / "store")
    trial = run_plan(small_plan, store=tmp_path / "store")
    records = [load_record(digest, trial.store) for digest in trial.store.digests("records")]
    assert len(records) == 2
    assert len({record.predicate.result_digest for record in records}) == 1
    assert compare_records(*records).results_agree


def test_streaming_passes_too(
    run_plan: Callable[..., Any], freeze_plan: Callable[..., LoadedPlan]
) -> None:
    plan = freeze_plan(
        realization__staging="streaming", realization__staging_window_bytes=256 << 10
    )
    trial = run_plan(plan)
    assert trial.code == 0
    (digest,) = trial.store.digests("records")
    rows = {row["id"]: row for row in load_record(digest, trial.store).rows("materializations", 0)}
    assert rows["mat.weights.stage"]["representation"] == "checkpoint-window"
    assert rows["mat.weights.stage"]["bytes_before_release"] == 256 << 10
    assert rows["mat.weights.stage"]["status"] == "TRANSIENT_RELEASED_AS_PLANNED"


@pytest.mark.slow
def test_a_range_without_a_head_is_fed_listed_tokens(
    freeze_plan: Callable[..., LoadedPlan], run_plan: Callable[..., Any]
) -> None:
    plan = freeze_plan(
        model__range={"end_layer": 1, "owns_final_norm_head": False},
        workload__decode_token_ids=[4, 200, 31],
    )
    trial = run_plan(plan)
    assert (trial.code, trial.failed) == (0, set())
    (digest,) = trial.store.digests("records")
    rows = load_record(digest, trial.store).rows("steps", 0)
    assert {(row["token"], row["logits_digest"]) for row in rows} == {(None, None)}
    assert len({row["plane_digest"] for row in rows if row["phase"] == "decode"}) == 3


def test_a_range_without_a_head_lists_its_tokens(freeze_plan: Callable[..., LoadedPlan]) -> None:
    for changes in ({}, {"workload__decode_token_ids": [4]}):
        with pytest.raises(PlanError) as error:
            freeze_plan(model__range={"owns_final_norm_head": False}, **changes)
        assert [f.path for f in error.value.findings] == ["$.workload.decode_token_ids"]


def test_a_range_without_embeddings_is_derived_and_not_run(
    freeze_plan: Callable[..., LoadedPlan], run_plan: Callable[..., Any]
) -> None:
    plan = freeze_plan(model__range={"start_layer": 1, "owns_embeddings": False})
    with pytest.raises(NotEvaluableError, match="without embeddings"):
        run_plan(plan)


def test_the_plain_cpu(freeze_plan: Callable[..., LoadedPlan], tmp_path: Path, cache: Path) -> None:
    device = {"kind": "cpu", "simulated_vram_bytes": None, "system_ram_limit_bytes": 512 << 20}
    plan = freeze_plan(device=device)
    assert plan.path is not None
    assert not any(item.role == "staging" for item in plan.plan.materializations)
    code = run(
        RunRequest(
            experiment="cpu",
            plan_path=plan.path,
            plan_digest=plan.plan.digest,
            store=tmp_path / "store",
            cache=cache,
            device=DeviceRequest(**device),  # type: ignore[arg-type]
            as_json=True,
        )
    )
    assert code == 0


def request(plan: LoadedPlan, tmp_path: Path, cache: Path, **changes: Any) -> RunRequest:
    assert plan.path is not None
    values: dict[str, Any] = {
        "experiment": "small",
        "plan_path": plan.path,
        "plan_digest": plan.plan.digest,
        "store": tmp_path / "store",
        "cache": cache,
        "device": DeviceRequest(
            kind="simulated", simulated_vram_bytes=64 << 20, system_ram_limit_bytes=512 << 20
        ),
        "as_json": True,
    }
    return RunRequest(**(values | changes))


def test_another_digest_than_the_pinned_one_is_refused_before_anything(
    small_plan: LoadedPlan, tmp_path: Path, cache: Path
) -> None:
    other = "sha256:" + "1" * 64
    with pytest.raises(InvalidInputError, match="pins"):
        run(request(small_plan, tmp_path, cache, plan_digest=other))
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("kind", ["file", "below a file"])
def test_a_store_that_cannot_be_written_is_one_message(
    small_plan: LoadedPlan, tmp_path: Path, cache: Path, kind: str
) -> None:
    (tmp_path / "taken").write_text("")
    store = tmp_path / "taken" / ("below" if kind == "below a file" else "")
    with pytest.raises(NotEvaluableError, match="store cannot be written"):
        run(request(small_plan, tmp_path, cache, store=store))


def test_the_next_run_clears_what_a_killed_one_left(tmp_path: Path) -> None:
    from harness.run.workplace import work_folder

    dead = tmp_path / ".run.999999999.0123abcd.tmp"
    dead.mkdir()
    with work_folder(tmp_path) as first, work_folder(tmp_path) as second:
        assert not dead.exists()
        assert first.is_dir()
        assert second.is_dir()
        assert first != second
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"workload__decode_steps": None},
        {"workload__decode_steps": [1]},
        {"workload__decode_steps": 1.5},
        {"workload__decode_steps": True},
        {"workload__max_positions": None},
        {"workload__prompt_token_ids": "abc"},
        {"workload__prompt_token_ids": [1, 2.5]},
        {"determinism__num_threads": 100_000},
        {"determinism__dtype": 3},
        {"timeouts__audit_s": "soon"},
    ],
    ids=str,
)
def test_settings_of_another_type_are_refused(
    freeze_plan: Callable[..., LoadedPlan], changes: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInputError, match="settings do not fit"):
        freeze_plan(**changes)


def test_a_changed_plan_is_refused(small_plan: LoadedPlan, tmp_path: Path, cache: Path) -> None:
    document = json.loads(json.dumps(small_plan.document))
    document["workload"]["decode_steps"] = 2
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    with pytest.raises(PlanError, match="digest"):
        run(request(small_plan, tmp_path, cache, plan_path=path))


def test_too_small_a_device_cannot_be_evaluated_here(
    small_plan: LoadedPlan, tmp_path: Path, cache: Path
) -> None:
    device = DeviceRequest(
        kind="simulated", simulated_vram_bytes=1 << 20, system_ram_limit_bytes=512 << 20
    )
    with pytest.raises(ResourceError, match=r"accelerator0\.vram"):
        run(request(small_plan, tmp_path, cache, device=device))


@pytest.mark.parametrize(
    ("field", "value"), [("kernel_set", "torch-cpu/99"), ("batch_invariant", True)]
)
def test_what_is_not_built_cannot_be_evaluated_and_is_not_replaced(
    freeze_plan: Callable[..., LoadedPlan], tmp_path: Path, cache: Path, field: str, value: object
) -> None:
    plan = freeze_plan(**{f"determinism__{field}": value})
    with pytest.raises(NotEvaluableError, match="kernel set"):
        run(request(plan, tmp_path, cache))
    assert not (tmp_path / "store").exists()
