"""The check of a device's own memory, over tables that are written here by hand."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from harness.plan.layout import TensorSpec
from harness.plan.records import (
    ComputeUnit,
    Materialization,
    MemoryAllowances,
    MemoryResource,
    Node,
    Resources,
)
from harness.reconcile.checks.device import device
from harness.reconcile.findings import Findings, KeyedRows
from harness.reconcile.view import POINTS

MIB = 1 << 20
VRAM = "gpu0.vram"
ALLOWED = 4096
LIVE = POINTS[2:]
"""Points at which the persistent copy is there."""


def plan(kind: str = "accelerator-vram") -> Any:
    resident = Materialization(
        id="mat.weights.resident",
        logical_state_id="state.weights",
        representation="merged-float32",
        memory_resource_id=VRAM,
        path_id=None,
        expected_bytes=1000,
        role="required_residency",
        requirement="required",
        persistence="persistent",
    )
    memory = MemoryResource(id=VRAM, kind=kind, capacity_bytes=64 * MIB)
    unit = ComputeUnit(id="gpu0", kind="cuda-gpu", device_uuid=None, memory_resources=(VRAM,))
    node = Node(id="node0", compute_units=(unit,), memory_resources=(memory,))
    return SimpleNamespace(
        materializations=(resident,),
        resources=Resources(swarm_id="local", nodes=(node,)),
        memory_allowances=MemoryAllowances(unplanned_host_bytes=0, unplanned_device_bytes=ALLOWED),
    )


def arenas() -> list[dict[str, Any]]:
    return [
        {
            "point": point,
            "materialization_id": "mat.weights.resident",
            "memory_resource_id": VRAM,
            "requested_bytes": 1024,
            "block_bytes": 1024,
            "segment_bytes": 2 * MIB,
        }
        for point in LIVE
    ]


def memory() -> list[dict[str, Any]]:
    return [
        {
            "point": point,
            "memory_resource_id": VRAM,
            "other_block_bytes": 512,
            "other_segment_bytes": 2 * MIB,
            "peak_block_bytes": 4096,
            "used_bytes": 8 * MIB,
        }
        for point in POINTS
    ]


def ledger() -> list[dict[str, Any]]:
    return [
        {
            "point": point,
            "memory_resource_id": VRAM,
            "allocated_bytes": 2 * MIB if point in LIVE else 0,
        }
        for point in POINTS
    ]


@dataclass
class Tables:
    """One realization's tables, as the auditor's view gives them."""

    device_arenas: list[dict[str, Any]] = field(default_factory=arenas)
    device_memory: list[dict[str, Any]] = field(default_factory=memory)
    ledger: list[dict[str, Any]] = field(default_factory=ledger)

    def table(self, findings: Findings, name: str, realization: int) -> KeyedRows:
        keys = ("point", "materialization_id" if name == "device_arenas" else "memory_resource_id")
        return KeyedRows(f"tables/{name}/r{realization}", keys, getattr(self, name))

    def each(self, findings: Findings, name: str) -> Iterator[tuple[int, KeyedRows]]:
        yield 0, self.table(findings, name, 0)


def found(tables: Tables, kind: str = "accelerator-vram") -> list[str]:
    findings = Findings("memory.device")
    tensor = TensorSpec(name="w", dtype="float32", shape=(250,))
    subject = SimpleNamespace(
        plan=plan(kind), view=tables, specs={("state.weights", "merged-float32"): (tensor,)}
    )
    device(subject, findings)  # type: ignore[arg-type]
    return [difference.path for difference in findings.differences]


def test_what_the_allocator_should_say_passes() -> None:
    assert found(Tables()) == []


@pytest.mark.parametrize("point", LIVE)
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("requested_bytes", 999),
        ("requested_bytes", 1065),
        ("block_bytes", 1023),
        ("segment_bytes", 1000),
        ("memory_resource_id", "another"),
    ],
)
def test_another_block_is_found(point: str, column: str, value: object) -> None:
    tables = Tables()
    (row,) = [row for row in tables.device_arenas if row["point"] == point]
    row[column] = value
    assert any(point in path for path in found(tables))


def test_missing_and_extra_arenas_are_found() -> None:
    tables = Tables()
    removed = tables.device_arenas.pop()
    assert any(removed["point"] in path for path in found(tables))
    tables = Tables()
    tables.device_arenas.append(tables.device_arenas[0] | {"materialization_id": "mat.mirror"})
    assert any("mat.mirror" in path for path in found(tables))
    tables = Tables()
    tables.device_arenas.append(tables.device_arenas[0] | {"point": "baseline"})
    assert any("baseline" in path for path in found(tables))


@pytest.mark.parametrize("point", POINTS)
def test_a_ledger_that_counts_other_segments_is_found(point: str) -> None:
    tables = Tables()
    (row,) = [row for row in tables.ledger if row["point"] == point]
    row["allocated_bytes"] += 1
    assert f"tables/ledger/r0[point={point},memory_resource_id={VRAM}].allocated_bytes" in found(
        tables
    )


@pytest.mark.parametrize("point", POINTS[3:])
def test_blocks_beyond_the_allowance_are_found(point: str) -> None:
    tables = Tables()
    (row,) = [row for row in tables.device_memory if row["point"] == point]
    row |= {"other_block_bytes": 512 + ALLOWED, "peak_block_bytes": 2 * ALLOWED}
    row["other_segment_bytes"] += ALLOWED
    assert found(tables) == []
    for column in ("other_block_bytes", "other_segment_bytes"):
        row[column] += 1
        assert any(
            path.endswith(f"{point},memory_resource_id={VRAM}].{column}") for path in found(tables)
        )
        row[column] -= 1


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("other_block_bytes", -1),
        ("other_segment_bytes", 511),
        ("peak_block_bytes", 511),
        ("used_bytes", MIB),
    ],
)
def test_figures_that_contradict_each_other_are_found(column: str, value: int) -> None:
    tables = Tables()
    tables.device_memory[-1][column] = value
    assert any("after_decode" in path for path in found(tables))


def test_readings_are_complete() -> None:
    tables = Tables()
    tables.device_memory.pop(2)
    assert any(POINTS[2] in path for path in found(tables))


def test_a_plan_without_such_a_memory_has_nothing_to_check() -> None:
    assert "$.resources" in found(Tables(), kind="simulated-vram")
