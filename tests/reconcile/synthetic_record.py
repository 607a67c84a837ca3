"""A plan, its manifest and a complete record that passes, built in memory and figure by figure.

The figures are written down here, not computed by the code under test: one 2-tensor residency of
96 + 64 bytes, a derived table of 32, a mutable state of 64 with its snapshot, 160 bytes of staging
and the reference outputs. 5 prompt tokens in chunks of 2, three decode steps, twice, in two fresh
realizations.

The mutable state lies in two pools of pages of 2 positions, of which ``near`` lets go early ones;
with ``pools=False`` it lies in no pool, in as many bytes.
"""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.evidence import tables
from harness.evidence.record import LoadedRecord, load_record
from harness.evidence.statement import (
    ApplicabilityKey,
    BindingReference,
    Claim,
    FixtureReference,
    ModelReference,
    PlanReference,
    RecordPredicate,
    SourceIdentity,
    record_statement,
)
from harness.evidence.store import Store
from harness.evidence.tables import WrittenTable
from harness.measure.words import BLIND_SPOTS
from harness.plan import records
from harness.plan.checks import ACCEPTANCE, STATE_CHECKS, TELEMETRY
from harness.plan.documents import plan_to_document
from harness.plan.format import plan_digest, plan_file_bytes
from harness.plan.layout import CensusEntry, LayoutRequest, TensorSpec
from harness.plan.load import LoadedPlan, parse_plan
from harness.plan.manifest import ManifestEntry, manifest_bytes
from harness.plan.recipe import recipe_digest
from harness.reconcile.result import result_digest

Row = dict[str, Any]
Tables = dict[tuple[str, int | None], list[Row]]

REALIZATIONS = 2
REPETITIONS = 2
PAGE = 4096
POINTS = (
    "baseline",
    "after_staging",
    "after_allocation",
    "after_population",
    "after_release",
    "after_decode",
)
RAM, VRAM = "node0.ram", "accelerator0.vram"
REAL_RAM, REAL_VRAM = "here.ram", "here.vram"
RAM_BYTES, VRAM_BYTES = 1 << 24, 1 << 20
ALLOWANCE = 1000
FIXTURE_BYTES = 8 * 4 * 4 + 4 * 6 * 4
"""Planes of 5 + 3 rows of 4 floats, and logits of 6 after the prompt and after each decode."""

SPECS: dict[str, tuple[TensorSpec, ...]] = {
    "checkpoint-native": (
        TensorSpec(name="a", dtype="float32", shape=(4, 6)),
        TensorSpec(name="b", dtype="float32", shape=(16,)),
    ),
    "merged-float32": (
        TensorSpec(name="wide", dtype="float32", shape=(4, 6)),
        TensorSpec(name="flat", dtype="float32", shape=(16,)),
    ),
    "table-float32": (TensorSpec(name="cos", dtype="float32", shape=(8,)),),
    "reference-outputs": (TensorSpec(name="all", dtype="float32", shape=(FIXTURE_BYTES // 4,)),),
}
MUTABLE_FORMS = ("cells-float32", "state-snapshot")
POOL_PAGES = {"all": 9, "near": 7}
POLICY = "evict-near/1"


def mutable_specs(pools: bool) -> tuple[TensorSpec, ...]:
    """Tensors of the mutable state and of its snapshot, 64 bytes: 24 + 24 + 9 + 7, or 32 + 32."""
    values = tuple(
        TensorSpec(name=name, dtype="float32", shape=(6 if pools else 8,)) for name in ("k", "v")
    )
    live = tuple(
        TensorSpec(name=f"{pool}.live", dtype="uint8", shape=(pages,))
        for pool, pages in POOL_PAGES.items()
    )
    return (*values, *live) if pools else values


class Layout:
    """As much of a family's layout as an audit needs: exact tensors of each representation."""

    strategy_units = frozenset({"none.prefill-decode/1"})

    def __init__(self, *, pools: bool = True) -> None:
        self.acceptance_checks = tuple(STATE_CHECKS) if pools else ()
        self._pools = pools

    def supports_representation(self, logical_state_id: str, representation: str) -> bool:
        return representation in SPECS or representation in MUTABLE_FORMS

    def tensors(
        self,
        request: LayoutRequest,
        logical_state_id: str,
        representation: str,
        census: Sequence[CensusEntry],
    ) -> tuple[TensorSpec, ...]:
        if representation in MUTABLE_FORMS:
            return mutable_specs(self._pools)
        return SPECS[representation]


def sha(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _intent(identifier: str, state: str, form: str, memory: str, size: int, role: str, **more: Any):  # type: ignore[no-untyped-def]
    values = {"requirement": "required", "persistence": "persistent"} | more
    return records.Materialization(
        id=identifier,
        logical_state_id=state,
        representation=form,
        memory_resource_id=memory,
        expected_bytes=size,
        role=role,  # type: ignore[arg-type]
        **values,
    )


STAGE = _intent(
    "mat.w.stage",
    "state.w",
    "checkpoint-native",
    RAM,
    160,
    "staging",
    persistence="transient",
    path_id="checkpoint-to-ram",
)
RESIDENT = _intent(
    "mat.w.resident",
    "state.w",
    "merged-float32",
    VRAM,
    160,
    "required_residency",
    path_id="ram-to-device",
)
TABLE = _intent(
    "mat.table.resident", "state.table", "table-float32", VRAM, 32, "required_residency"
)
KV = _intent("mat.kv.resident", "state.kv", "cells-float32", VRAM, 64, "mutable_authority")
REPLAY = _intent(
    "mat.replay.resident", "state.replay", "state-snapshot", VRAM, 64, "required_test_state"
)
FIXTURE = _intent(
    "mat.fixture.host",
    "state.fixture",
    "reference-outputs",
    RAM,
    FIXTURE_BYTES,
    "required_test_state",
)
CACHE = _intent(
    "mat.cache.host",
    "state.table",
    "table-float32",
    RAM,
    32,
    "optional_cache",
    requirement="optional",
)
INTENTS = (STAGE, RESIDENT, TABLE, KV, REPLAY, FIXTURE, CACHE)

MANIFEST = tuple(
    ManifestEntry(
        key=key,
        file=file,
        dtype="float32",
        shape=shape,
        logical_state_id="state.w",
        source_bytes=size,
        expected_bytes=size,
        sha256=sha(f"source {key}"),
        digest_source="measured",
    )
    for key, file, shape, size in (
        ("a", "one.safetensors", (4, 6), 96),
        ("b", "two.safetensors", (16,), 64),
    )
)


def make_plan(
    manifest: Sequence[ManifestEntry] = MANIFEST, *, pools: bool = True, **changes: Any
) -> LoadedPlan:
    """The plan of the synthetic record; ``changes`` replace fields of its record type."""
    data = manifest_bytes(manifest)
    plan = records.Plan(
        schema="harness.plan/1",
        plan_version="synthetic-1",
        digest=sha("filled in below"),
        model_repository="none/synthetic",
        model_revision="0" * 40,
        resources=records.Resources(
            swarm_id="local",
            nodes=(
                records.Node(
                    id="node0",
                    compute_units=(
                        records.ComputeUnit(
                            id="accelerator0",
                            kind="simulated-accelerator",
                            device_uuid=None,
                            memory_resources=(RAM, VRAM),
                        ),
                    ),
                    memory_resources=(
                        records.MemoryResource(id=RAM, kind="system-ram", capacity_bytes=1 << 20),
                        records.MemoryResource(
                            id=VRAM, kind="simulated-vram", capacity_bytes=1 << 16
                        ),
                    ),
                ),
            ),
            backing_sources=(
                records.BackingSource(
                    id="checkpoint",
                    kind="checkpoint",
                    repository="none/synthetic",
                    revision="0" * 40,
                ),
            ),
            links=(
                records.Link(
                    id="checkpoint-to-ram", kind="bounded-read", source="checkpoint", target=RAM
                ),
                records.Link(id="ram-to-device", kind="host-to-device", source=RAM, target=VRAM),
            ),
        ),
        logical_state_units=(
            records.StateUnit(
                id="state.w", semantic_class="immutable_source", backing_source_id="checkpoint"
            ),
            records.StateUnit(
                id="state.table",
                semantic_class="derived_reconstructible",
                reconstruction_inputs=("checkpoint",),
            ),
            records.StateUnit(id="state.kv", semantic_class="mutable_authoritative"),
            records.StateUnit(
                id="state.replay",
                semantic_class="derived_reconstructible",
                reconstruction_inputs=("state.kv",),
            ),
            records.StateUnit(
                id="state.fixture",
                semantic_class="derived_reconstructible",
                reconstruction_inputs=("state.w",),
            ),
        ),
        materializations=INTENTS,
        authorities=(
            records.Authority(
                logical_state_id="state.kv",
                materialization_id="mat.kv.resident",
                lineage="state.kv@epoch-1",
            ),
        ),
        execution=(
            records.Execution(
                id="exec.model",
                strategy_unit="none.prefill-decode/1",
                compute_unit_id="accelerator0",
                required_state=(
                    records.RequiredState(
                        logical_state_id="state.w",
                        representations=("merged-float32",),
                        memory_resources=(VRAM,),
                    ),
                ),
            ),
        ),
        forbidden_persistent_materializations=(
            records.ForbiddenMaterialization(logical_state_id="state.w", memory_resource_id=RAM),
        ),
        memory_expectations=records.MemoryExpectations(
            persistent_optional_bytes=0,
            unplanned_persistent_bytes=0,
            unexplained_persistent_host_mirror_bytes=0,
        ),
        adapter_data=records.AdapterData(
            spec=records.ModelRange(
                start_layer=0,
                end_layer=1,
                owns_embeddings=True,
                owns_final_norm_head=True,
                model_repository="none/synthetic",
                revision="0" * 40,
            ),
            allowed_tensor_keys=("a", "b"),
            family="none",
            config={"layers": 1},
        ),
        checkpoint=records.Checkpoint(
            source={"kind": "directory", "path": "model"},
            files=tuple(
                records.CheckpointFile(name=name, size_bytes=size, sha256=sha(name))
                for name, size in (
                    ("config.json", 10),
                    ("one.safetensors", 200),
                    ("two.safetensors", 150),
                )
            ),
            manifest=records.ManifestReference(
                digest="sha256:" + hashlib.sha256(data).hexdigest(),
                num_tensors=2,
                source_bytes=160,
                expected_bytes=160,
            ),
        ),
        workload=records.Workload(
            prompt_token_ids=(5, 4, 3, 2, 1),
            chunk_rows=2,
            decode_steps=3,
            repetitions=REPETITIONS,
            fresh_realizations=REALIZATIONS,
            sampling="greedy",
            max_positions=8,
            page_size=2 if pools else None,
        ),
        reference_fixture=records.FixtureRecipe(
            loader="unselective-safetensors",
            outputs=("plane", "logits"),
            dtype="float32",
            num_threads=2,
        ),
        determinism=records.Determinism(
            dtype="float32",
            num_threads=2,
            deterministic_algorithms=True,
            batch_invariant=True,
            kernel_set="torch-cpu/1",
        ),
        checks=records.Checks(
            acceptance=tuple(
                records.CheckLimit(id=name, limit=ALLOWANCE if name == "memory.unplanned" else None)
                for name in (*ACCEPTANCE, *(STATE_CHECKS if pools else ()))
            ),
            telemetry=tuple(records.CheckLimit(id=name) for name in TELEMETRY),
        ),
        timeouts=records.TimeoutsS(fixture_s=60, realization_s=60, audit_s=60),
        memory_allowances=records.MemoryAllowances(unplanned_host_bytes=ALLOWANCE),
        eviction_policy=POLICY if pools else None,
        scope=records.Scope(proves=("nothing real",), does_not_prove=("anything",)),
    )
    document = plan_to_document(replace(plan, **changes))
    document["digest"] = plan_digest(document)
    return parse_plan(plan_file_bytes(document), where="synthetic")


ENVIRONMENT: Row = {
    "schema": "harness.environment/1",
    "resources": {
        "swarm_id": "here",
        "nodes": [
            {
                "id": "here",
                "compute_units": [
                    {
                        "id": "here.device",
                        "kind": "simulated-accelerator",
                        "device_uuid": None,
                        "memory_resources": [REAL_RAM, REAL_VRAM],
                    }
                ],
                "memory_resources": [
                    {"id": REAL_RAM, "kind": "system-ram", "capacity_bytes": RAM_BYTES},
                    {"id": REAL_VRAM, "kind": "simulated-vram", "capacity_bytes": VRAM_BYTES},
                ],
            }
        ],
    },
    "facts": {"cpu": "synthetic"},
}
PACKAGE = sha("package")
CLAIMS = (
    Claim(name="cuda", label="not_executed", detail="no such device"),
    Claim(name="cuda_graph", label="not_executed", detail="no such graph"),
    *(Claim(name="memory.blind_spot", label="not_evaluated", detail=spot) for spot in BLIND_SPOTS),
)
KEY = ApplicabilityKey(
    device_class="simulated-accelerator",
    instruction_set="NONE",
    torch_build="0.0.0",
    num_threads=2,
    dtype="float32",
    kernel_set="torch-cpu/1",
    geometry="prefill=2x2+1x1,decode=3,positions=8",
)
FACTS = {
    "device_class": "simulated-accelerator",
    "instruction_set": "NONE",
    "torch_build": "0.0.0",
    "num_threads": "2",
    "dtype": "float32",
    "kernel_set": "torch-cpu/1",
    "geometry": "prefill=2x2+1x1,decode=3,positions=8",
    "deterministic_algorithms": "true",
    "interop_threads": "1",
    "package_digest": PACKAGE,
}

# (phase, step, start position, rows, token): 5 prompt tokens in chunks of 2, then 3 decode steps.
STEPS = (
    ("prefill", 0, 0, 2, None),
    ("prefill", 1, 2, 2, None),
    ("prefill", 2, 4, 1, 7),
    ("decode", 0, 5, 1, 8),
    ("decode", 1, 6, 1, 9),
    ("decode", 2, 7, 1, 7),
)


def keyed_steps() -> list[tuple[int, str, int, int, int, int | None]]:
    rows = [(0, *step) for step in STEPS[:3]]
    return rows + [(rep, *step) for rep in range(REPETITIONS) for step in STEPS[3:]]


def outputs_of(token: int | None) -> tuple[str, ...]:
    return ("plane",) if token is None else ("plane", "logits")


def output_digest(phase: str, step: int, output: str) -> str:
    return sha(f"{phase} {step} {output}")


def _materializations() -> list[Row]:
    rows = []
    for intent in INTENTS:
        row: Row = {
            "id": intent.id,
            "status": "PLANNED_AND_REALIZED",
            "lifecycle": "live",
            "logical_state_id": intent.logical_state_id,
            "representation": intent.representation,
            "memory_resource_id": intent.memory_resource_id,
            "requested_bytes": intent.expected_bytes,
            "allocated_bytes": PAGE,
            "bytes_before_release": None,
            "bytes_after_release": None,
            "released_bytes": None,
            "qualifying_ids": [],
            "detail": None,
        }
        if intent is STAGE:
            row |= {
                "status": "TRANSIENT_RELEASED_AS_PLANNED",
                "lifecycle": "released",
                "requested_bytes": 0,
                "allocated_bytes": 0,
                "bytes_before_release": 160,
                "bytes_after_release": 0,
                "released_bytes": 160,
                "qualifying_ids": ["mat.w.resident"],
            }
        if intent is CACHE:
            row |= dict.fromkeys(("logical_state_id", "representation", "memory_resource_id"))
            row |= {
                "status": "OPTIONAL_NOT_REALIZED",
                "lifecycle": "absent",
                "requested_bytes": 0,
                "allocated_bytes": 0,
            }
        rows.append(row)
    return rows


def _expected_tensors() -> list[Row]:
    return [
        {
            "representation": form,
            "name": spec.name,
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "bytes": spec.num_bytes,
            "digest": sha(f"resident {spec.name}"),
        }
        for form in ("merged-float32", "table-float32")
        for spec in SPECS[form]
    ]


def _tensors() -> list[Row]:
    owner = {"merged-float32": "mat.w.resident", "table-float32": "mat.table.resident"}
    return [
        {"materialization_id": owner[row["representation"]], "point": point}
        | {column: row[column] for column in ("name", "dtype", "shape", "bytes", "digest")}
        for point in ("after_population", "after_decode")
        for row in _expected_tensors()
    ]


def _fixture_outputs() -> list[Row]:
    return [
        {
            "phase": phase,
            "step": step,
            "output": output,
            "dtype": "float32",
            "shape": [rows, 4] if output == "plane" else [6],
            "bytes": rows * 16 if output == "plane" else 24,
            "digest": output_digest(phase, step, output),
            "token": token,
        }
        for phase, step, _start, rows, token in STEPS
        for output in outputs_of(token)
    ]


def _steps() -> list[Row]:
    return [
        {
            "repetition": repetition,
            "phase": phase,
            "step": step,
            "start_position": start,
            "num_rows": rows,
            "token": token,
            "plane_digest": output_digest(phase, step, "plane"),
            "logits_digest": None if token is None else output_digest(phase, step, "logits"),
            "num_nan": 0,
            "num_inf": 0,
            "margin": None if token is None else 0.5,
        }
        for repetition, phase, step, start, rows, token in keyed_steps()
    ]


def _correctness() -> list[Row]:
    return [
        {
            "repetition": repetition,
            "phase": phase,
            "step": step,
            "output": output,
            "num_elements": rows * 4 if output == "plane" else 6,
            "num_different": 0,
            "max_abs": 0.0,
            "max_rel": 0.0,
            "num_nan": 0,
            "num_inf": 0,
            "fixture_digest": output_digest(phase, step, output),
        }
        for repetition, phase, step, _start, rows, token in keyed_steps()
        for output in outputs_of(token)
    ]


def _states(pools: bool) -> list[Row]:
    points = [(0, "before_prefill", "empty"), (0, "after_prefill", "prompt")]
    for repetition in range(REPETITIONS):
        points += [(repetition, "after_restore", "prompt"), (repetition, "after_decode", "decoded")]
    return [
        {
            "repetition": repetition,
            "point": point,
            "name": spec.name,
            "bytes": spec.num_bytes,
            "digest": sha(f"{content} {spec.name}"),
        }
        for repetition, point, content in points
        for spec in mutable_specs(pools)
    ]


def _fixture_states(pools: bool) -> list[Row]:
    return [
        {
            "point": point,
            "name": spec.name,
            "bytes": spec.num_bytes,
            "digest": sha(f"{content} {spec.name}"),
        }
        for point, content in (("after_prefill", "prompt"), ("after_decode", "decoded"))
        for spec in mutable_specs(pools)
    ]


# Positions held after a step -> (live pages of "all"; live pages of "near", positions evicted).
OWNED = {2: (1, 1, 0), 4: (2, 1, 2), 5: (3, 2, 2), 6: (3, 1, 4), 7: (4, 2, 4), 8: (4, 1, 6)}


def ownership_row(where: Row, pool: str, held: int, live: int, evicted: int) -> Row:
    """One row of a pool in which every position that is not evicted has its slot."""
    pages = POOL_PAGES[pool]
    return where | {
        "pool": pool,
        "page_size": 2,
        "num_pages": pages,
        "num_live": live,
        "num_available": pages - 1 - live,
        "num_positions": held,
        "num_mapped": held - evicted,
        "num_aliased": 0,
        "num_evicted": evicted,
        "num_leaked": 0,
        "num_stale": 0,
    }


def _ownership() -> list[Row]:
    rows = []
    for repetition, phase, step, start, count, _token in keyed_steps():
        where: Row = {"repetition": repetition, "phase": phase, "step": step}
        held = start + count
        live, near_live, evicted = OWNED[held]
        rows.append(ownership_row(where, "all", held, live, 0))
        rows.append(ownership_row(where, "near", held, near_live, evicted))
    return rows


def _sentinels() -> list[Row]:
    both = (
        "staging_tensors_alive",
        "staging_mappings_alive",
        "checkpoint_descriptors",
        "checkpoint_mappings",
        "unplanned_tensors",
        "unplanned_pages",
    )
    keys = [(name, point) for point in ("after_release", "after_decode") for name in both]
    keys += [(n, "after_decode") for n in ("plan_accesses", "source_accesses", "nan", "inf")]
    counted = {"unplanned_tensors": 1 << 20, "unplanned_pages": (1 << 20) - ALLOWANCE}
    return [
        {"name": name, "point": point, "canary_count": counted.get(name, 1), "count": 0}
        for name, point in keys
    ]


# Point -> (live in RAM, live in VRAM): requested bytes and number of arenas of one page each.
LIVE = {
    "baseline": ((0, 0), (0, 0)),
    "after_staging": ((160, 1), (0, 0)),
    "after_allocation": ((160 + FIXTURE_BYTES, 2), (320, 4)),
    "after_population": ((160 + FIXTURE_BYTES, 2), (320, 4)),
    "after_release": ((FIXTURE_BYTES, 1), (320, 4)),
    "after_decode": ((FIXTURE_BYTES, 1), (320, 4)),
}


def _ledger() -> list[Row]:
    peaks = {RAM: 0, VRAM: 0}
    rows = []
    for point, figures in LIVE.items():
        for memory, capacity, (requested, arenas) in zip(
            (RAM, VRAM), (RAM_BYTES, VRAM_BYTES), figures, strict=True
        ):
            peaks[memory] = max(peaks[memory], arenas * PAGE)
            rows.append(
                {
                    "point": point,
                    "memory_resource_id": memory,
                    "requested_bytes": requested,
                    "allocated_bytes": arenas * PAGE,
                    "peak_allocated_bytes": peaks[memory],
                    "capacity_bytes": capacity,
                    "num_arenas": arenas,
                    "unplanned_tensor_bytes": 0 if memory == RAM else None,
                }
            )
    return rows


def _arenas() -> list[Row]:
    rows = []
    for point in POINTS[1:]:
        for intent in INTENTS[:-1]:
            if point == "after_staging" and intent is not STAGE:
                continue
            is_gone = intent is STAGE and point in ("after_release", "after_decode")
            rows.append(
                {
                    "point": point,
                    "materialization_id": intent.id,
                    "memory_resource_id": intent.memory_resource_id,
                    "declared_bytes": PAGE,
                    "mapped_bytes": 0 if is_gone else PAGE,
                    "resident_bytes": 0 if is_gone else PAGE,
                }
            )
    return rows


EVENTS = (*POINTS[:-1], "seal", POINTS[-1])
BETWEEN_NS = 100
STEPS_NS = 950
"""From the seal to the end of the steps; 9 steps take 105 each."""


def _process(realization: int) -> Row:
    return {"process_id": 20 + realization, "start_ticks": 700 + 60 * realization}


def _lifecycle(realization: int) -> list[Row]:
    began = 10_000 * (1 + realization)
    return [
        {
            "order": order,
            "event": event,
            "at_ns": began + (BETWEEN_NS * order if order < 6 else BETWEEN_NS * 5 + STEPS_NS),
            **_process(realization),
        }
        for order, event in enumerate(EVENTS)
    ]


def _checkpoints(realization: int) -> list[Row]:
    asked = {row["event"]: row["at_ns"] for row in _lifecycle(realization)}
    return [
        {
            "point": point,
            "read_at": f"2026-01-01T00:00:0{index}.000000Z",
            "vm_rss_bytes": 10_000 + 100 * index,
            "vm_hwm_bytes": 20_000 + 100 * index,
            "rss_anon_bytes": 5_000 + 100 * index,
            "rss_file_bytes": 3_000,
            "rss_shmem_bytes": 2_000,
            "vm_swap_bytes": 0,
            "uss_bytes": 6_000,
            "max_rss_bytes": 20_000 + 100 * index,
            "minor_faults": 50 + index,
            "major_faults": 5 + index,
            "swap_in_pages": 1 + index,
            "swap_out_pages": 1 + index,
            "num_threads": 4,
            "num_descriptors": 9,
            "checkpoint_descriptors": ["one.safetensors"] if index in (1, 2, 3) else [],
            "checkpoint_mappings": [],
            # At the second point every kind has shrunk, which must not hide the file's growth.
            "private_anonymous_bytes": 3_900 if index == 1 else 4_000 + 10 * index,
            "shared_anonymous_bytes": 90 if index == 1 else 100 + 10 * index,
            "memfd_bytes": 3 if index == 1 else 5 + 10 * index,
            "new_file_bytes": 10 * index,
            "unplanned_bytes": 10 if index == 1 else 40 * index,
            "new_files": [],
            "read_ns": asked[point] + 7,
            **_process(realization),
        }
        for index, point in enumerate(POINTS)
    ]


def _realization(pools: bool, index: int) -> dict[str, list[Row]]:
    pooled = {"ownership": _ownership()} if pools else {}
    return {
        "materializations": _materializations(),
        "authorities": [
            {
                "logical_state_id": "state.kv",
                "materialization_id": "mat.kv.resident",
                "lineage": "state.kv@epoch-1",
                "memory_resource_id": VRAM,
                "point": point,
            }
            for point in ("after_population", "after_decode")
        ],
        "executions": [
            {
                "id": "exec.model",
                "strategy_unit": "none.prefill-decode/1",
                "compute_unit_id": "accelerator0",
                "status": "ACTIVE",
                "detail": None,
            }
        ],
        "fetches": [
            {
                "key": key,
                "file": file,
                "dtype": "float32",
                "shape": shape,
                "bytes": size,
                "digest": sha(f"source {key}"),
                "num_fetches": 1,
            }
            for key, file, shape, size in (
                ("a", "one.safetensors", [4, 6], 96),
                ("b", "two.safetensors", [16], 64),
            )
        ],
        "sources": [
            {"file": name, "size_bytes": size, "num_opens": 1, "num_closes": 1}
            for name, size in (("one.safetensors", 200), ("two.safetensors", 150))
        ],
        "tensors": _tensors(),
        "steps": _steps(),
        "correctness": _correctness(),
        "states": _states(pools),
        **pooled,
        "sentinels": _sentinels(),
        "ledger": _ledger(),
        "checkpoints": _checkpoints(index),
        "arenas": _arenas(),
        "step_times": [
            {"repetition": r, "phase": phase, "step": step, "duration_ns": 100, "sentinel_ns": 5}
            for r, phase, step, *_rest in keyed_steps()
        ],
        "facts": [{"name": name, "value": value} for name, value in FACTS.items()],
        "lifecycle": _lifecycle(index),
        "distributions": [{"name": "torch", "version": "0.0.0"}],
    }


def make_tables(*, pools: bool = True) -> Tables:
    """Every table of the passing record, by name and realization."""
    found: Tables = {
        (name, index): rows
        for index in range(REALIZATIONS)
        for name, rows in _realization(pools, index).items()
    }
    children = [("fixture", 0)]
    children += [(child, r) for r in range(REALIZATIONS) for child in ("producer", "witness")]
    found["trials", None] = [
        {
            "child": child,
            "realization": index,
            "outcome": "completed",
            "exit_code": 0,
            "signal": None,
            "duration_ns": 2000,
            "message": None,
            **(
                _process(index)
                if child == "producer"
                else {"process_id": {"fixture": 10, "witness": 30}[child] + index, "start_ticks": 5}
            ),
        }
        for child, index in children
    ]
    found["expected_tensors", None] = _expected_tensors()
    found["fixture_outputs", None] = _fixture_outputs()
    found["fixture_states", None] = _fixture_states(pools)
    return found


def by_name(rows: Tables) -> dict[str, dict[int | None, list[Row]]]:
    named: dict[str, dict[int | None, list[Row]]] = {}
    for (name, realization), listed in rows.items():
        named.setdefault(name, {})[realization] = listed
    return named


def _fixture_reference(
    plan: LoadedPlan, written: Sequence[WrittenTable]
) -> FixtureReference | None:
    outputs = [table.digest for table in written if table.name == "fixture_outputs"]
    if "reference_fixture" not in plan.document or not outputs:
        return None
    return FixtureReference(recipe_digest=recipe_digest(plan.document), digest=outputs[0])


def make_predicate(
    plan: LoadedPlan, rows: Tables, written: Sequence[WrittenTable] | None = None, **changes: Any
) -> RecordPredicate:
    """The predicate of the passing record; ``changes`` replace fields."""
    if written is None:
        written = [
            WrittenTable(
                name=name, realization=index, digest=sha(name), num_rows=len(listed), size_bytes=1
            )
            for (name, index), listed in rows.items()
        ]
    assert plan.plan.checkpoint is not None
    predicate = RecordPredicate(
        experiment="synthetic",
        plan=PlanReference(
            digest=plan.plan.digest,
            file_digest=plan.file_digest,
            schema="harness.plan/1",
            plan_version="synthetic-1",
            model=ModelReference(repository="none/synthetic", revision="0" * 40),
        ),
        manifest_digest=plan.plan.checkpoint.manifest.digest,
        binding=BindingReference(
            compute_units={"accelerator0": "here.device"},
            memories={RAM: REAL_RAM, VRAM: REAL_VRAM},
        ),
        environment=copy.deepcopy(ENVIRONMENT),
        applicability_key=KEY,
        fixture=_fixture_reference(plan, written),
        source=SourceIdentity(package_digest=PACKAGE),
        tables=tuple(written),
        totals={
            "planned_bytes": {RAM: FIXTURE_BYTES, VRAM: 320},
            "observed_bytes": {RAM: FIXTURE_BYTES, VRAM: 320},
            "num_steps": REALIZATIONS * (3 + REPETITIONS * 3),
            # No kind shrank at a settled point, and the least growth there was 120.
            "smallest_visible_mirror_bytes": ALLOWANCE + 1 - 120,
        },
        claims=CLAIMS,
        command=("harness", "run"),
        started_at="2026-01-01T00:00:00Z",
        ended_at="2026-01-01T00:01:00Z",
        result_digest=None,
    )
    if "result_digest" not in changes:
        changes["result_digest"] = result_digest(plan, KEY, by_name(rows))
    return replace(predicate, **changes)


@dataclass(frozen=True, kw_only=True)
class MemoryRecord(LoadedRecord):
    """A record whose rows are at hand; what is not in ``held`` is missing."""

    held: Mapping[tuple[str, int | None], list[Row]]

    def rows(
        self, name: str, realization: int | None = None, stage: int | None = None
    ) -> list[Row]:
        assert stage is None
        if self.table(name, realization) is None or (name, realization) not in self.held:
            return super().rows(name, realization)
        return self.held[name, realization]


def make_record(plan: LoadedPlan, rows: Tables, **changes: Any) -> MemoryRecord:
    """A record in memory, without the statement that would hold its predicate."""
    return MemoryRecord(
        digest=sha("record"),
        statement={},
        predicate=make_predicate(plan, rows, **changes),
        store=Store(Path("/nowhere")),
        held=rows,
    )


def write_record(
    root: Path, plan: LoadedPlan, rows: Tables, manifest: Sequence[ManifestEntry] = MANIFEST
) -> LoadedRecord:
    """Write the record into a store, and load it from there."""
    store = Store(root)
    store.put_plan(plan_file_bytes(plan.document))
    store.put_manifest(manifest_bytes(manifest))
    written = []
    for (name, realization), listed in rows.items():
        data, num_rows = tables.encode(name, listed)
        written.append(
            WrittenTable(
                name=name,
                realization=realization,
                digest=store.put_table(data),
                num_rows=num_rows,
                size_bytes=len(data),
            )
        )
    digest = store.put_record(record_statement(make_predicate(plan, rows, written)))
    return load_record(digest, store)
