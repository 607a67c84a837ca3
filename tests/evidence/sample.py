"""A small, complete record to test with, written through the code under test.

Also run as part of child processes, where this folder is on the path.
"""

import hashlib
import json
from dataclasses import replace
from typing import Any

from harness.canonical import canonical_bytes, sha256_digest
from harness.evidence.statement import (
    ApplicabilityKey,
    AuditorIdentity,
    BindingReference,
    CheckResult,
    Claim,
    DifferencesReference,
    FixtureReference,
    ModelReference,
    PlanReference,
    RecordPredicate,
    SourceIdentity,
    VerdictPredicate,
    WrittenTable,
    record_statement,
    verdict_statement,
)
from harness.evidence.store import Store
from harness.evidence.tables import encode

MANIFEST = b'{"key":"a.weight"}\n{"key":"b.weight"}\n'


def digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _plan() -> dict[str, Any]:
    plan: dict[str, Any] = {
        "schema": "harness.plan/1",
        "plan_version": "1",
        "model": {"repository": "synthetic/tiny", "revision": "1"},
        "checkpoint": {"manifest": {"digest": sha256_digest(MANIFEST), "num_tensors": 2}},
    }
    return {**plan, "digest": sha256_digest(canonical_bytes(plan))}


PLAN = _plan()
PLAN_BYTES = (json.dumps(PLAN, indent=2, sort_keys=True) + "\n").encode()


def step_rows(salt: str = "", *, num_steps: int = 3) -> list[dict[str, Any]]:
    return [
        {
            "repetition": 0,
            "phase": "prefill" if step == 0 else "decode",
            "step": step,
            "start_position": step,
            "num_rows": 1,
            "token": 40 + step,
            "plane_digest": digest(f"plane {step}{salt}"),
            "logits_digest": digest(f"logits {step}{salt}"),
            "num_nan": 0,
            "num_inf": 0,
            "margin": 0.5,
        }
        for step in range(num_steps)
    ]


def time_rows(base_ns: int) -> list[dict[str, Any]]:
    return [
        {
            "repetition": 0,
            "phase": "decode",
            "step": step,
            "duration_ns": base_ns + step,
            "sentinel_ns": 5,
        }
        for step in range(2)
    ]


def trial_rows(message: str | None = None) -> list[dict[str, Any]]:
    return [
        {
            "child": "producer",
            "realization": 0,
            "outcome": "completed",
            "exit_code": 0,
            "signal": None,
            "duration_ns": 12,
            "message": message,
            "process_id": 7,
            "start_ticks": 9,
        }
    ]


def put_rows(
    store: Store, name: str, rows: list[dict[str, Any]], realization: int | None = None
) -> WrittenTable:
    data, num_rows = encode(name, rows)
    return WrittenTable(
        name=name,
        realization=realization,
        digest=store.put_table(data),
        num_rows=num_rows,
        size_bytes=len(data),
    )


def predicate(store: Store, tables: list[WrittenTable], **changes: Any) -> RecordPredicate:
    made = RecordPredicate(
        experiment="tiny",
        plan=PlanReference(
            digest=PLAN["digest"],
            file_digest=sha256_digest(PLAN_BYTES),
            schema="harness.plan/1",
            plan_version="1",
            model=ModelReference(repository="synthetic/tiny", revision="1"),
        ),
        manifest_digest=sha256_digest(MANIFEST),
        binding=BindingReference(
            compute_units={"accelerator0": "accelerator0"}, memories={"node0.ram": "node0.ram"}
        ),
        environment={
            "schema": "harness.environment/1",
            "resources": {
                "swarm_id": "local",
                "nodes": [
                    {
                        "id": "node0",
                        "compute_units": [
                            {
                                "id": "accelerator0",
                                "kind": "simulated-accelerator",
                                "device_uuid": None,
                                "memory_resources": ["node0.ram"],
                            }
                        ],
                        "memory_resources": [
                            {"id": "node0.ram", "kind": "system-ram", "capacity_bytes": 4096}
                        ],
                    }
                ],
            },
            "facts": {"python": "3.11", "cores": 2, "gpu": None, "turbo": False},
        },
        applicability_key=ApplicabilityKey(
            device_class="simulated-accelerator",
            instruction_set="AVX2",
            torch_build="2.13.0+cpu",
            num_threads=2,
            dtype="float32",
            kernel_set="torch-cpu/1",
            geometry="prompt=4",
        ),
        fixture=FixtureReference(recipe_digest=digest("recipe"), digest=digest("fixture")),
        source=SourceIdentity(package_digest=digest("package")),
        tables=tuple(tables),
        totals={
            "planned_bytes": {"node0.ram": 64},
            "observed_bytes": {"node0.ram": 64},
            "num_steps": 3,
        },
        claims=(Claim(name="gpu", label="not_executed", detail="no GPU here"),),
        command=("harness", "run", "experiment=tiny"),
        started_at="2026-01-02T03:04:05Z",
        ended_at="2026-01-02T03:04:06Z",
        result_digest=digest("result"),
    )
    return replace(made, **changes)


def put_record(store: Store, *, salt: str = "", message: str | None = None, **changes: Any) -> str:
    """Write one complete record of two realizations; returns its digest."""
    tables = [
        put_rows(store, "trials", trial_rows(message)),
        *(put_rows(store, "steps", step_rows(salt), number) for number in (0, 1)),
        *(put_rows(store, "step_times", time_rows(100 + number), number) for number in (0, 1)),
    ]
    store.put_plan(PLAN_BYTES)
    store.put_manifest(MANIFEST)
    return store.put_record(record_statement(predicate(store, tables, **changes)))


def put_verdict(store: Store, record: str, *, failed: bool = False, **changes: Any) -> str:
    rows = [
        {
            "check": "steps.repeat",
            "status": "failed",
            "path": "steps/r1[0].plane_digest",
            "expected": "a",
            "got": "b",
        }
    ]
    table = put_rows(store, "differences", rows if failed else [])
    status: Any = "failed" if failed else "passed"
    made = VerdictPredicate(
        plan_digest=PLAN["digest"],
        record_digest=record,
        auditor=AuditorIdentity(version="0.1.0", package_digest=digest("package")),
        status=status,
        checks=(
            CheckResult(
                id="steps.repeat", kind="acceptance", status=status, num_differences=int(failed)
            ),
            CheckResult(id="step.times", kind="telemetry", status="passed", num_differences=0),
        ),
        differences=DifferencesReference(
            digest=table.digest, num_rows=table.num_rows, size_bytes=table.size_bytes
        ),
        result_digest=digest("result"),
        unbound=("trials.duration_ns",),
    )
    return store.put_verdict(verdict_statement(replace(made, **changes)))
