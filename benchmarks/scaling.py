"""How the cost of checking a plan, and of auditing its record, grows with its materializations.

Each size is made and measured in a process of its own: seconds of processor time, and the peak of
its memory. Every state is staged and resident, like a layer's weights; the plan is valid and the
record passes. A fitted exponent of 1 is linear growth. What a reader refuses for its size says so.

    python -m benchmarks.scaling --sizes 1000,10000,100000
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.plan import records
from harness.plan.check import check_plan
from harness.plan.documents import plan_to_document
from harness.plan.format import plan_digest, plan_file_bytes
from harness.plan.load import LoadedPlan, load_plan, parse_plan
from harness.plan.manifest import ManifestEntry, load_manifest
from harness.reconcile.checks.ledger import declared_at, live_at
from harness.reconcile.checks.registry import CHECKS
from harness.reconcile.findings import Findings
from harness.reconcile.intent import is_transient, passing_columns, planned_bytes
from harness.reconcile.view import POINTS, Subject, View, memory_ids

PLAN = Path(__file__).resolve().parents[1] / "plans" / "tiny_llama.json"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
STEPS = ("check", "read", "audit")
AUDITED = ("realization.materializations", "realization.release", "memory.ledger")
"""The checks whose rows grow with the materializations."""
SHORT_S, MAX_REPEATS = 3.0, 5
"""What is short is repeated, and the least time counts."""
MAX_REQUIRED = 1000
"""States that one execution of a plan file may name."""
STATE_BYTES = 4096
CAPACITY_BYTES = 1 << 50
Row = dict[str, Any]


def grown(size: int) -> tuple[records.Plan, tuple[ManifestEntry, ...]]:
    """A committed plan with ``size`` materializations more, two of each new state."""
    plan = load_plan(PLAN).plan
    assert plan.checkpoint is not None
    manifest = load_manifest(PLAN.parent, plan.checkpoint.manifest)
    staging, resident = (
        next(item for item in plan.materializations if item.role == role)
        for role in ("staging", "required_residency")
    )
    unit = next(each for each in plan.logical_state_units if each.id == staging.logical_state_id)
    (execution,) = plan.execution
    names = [f"state.z{index:07d}" for index in range(size // 2)]
    added = tuple(
        replace(
            manifest[0],
            key=f"zz.{name}",
            logical_state_id=name,
            dtype="uint8",
            shape=(STATE_BYTES,),
            source_bytes=STATE_BYTES,
            expected_bytes=STATE_BYTES,
        )
        for name in names
    )
    reference = replace(
        plan.checkpoint.manifest,
        num_tensors=len(manifest) + len(added),
        source_bytes=plan.checkpoint.manifest.source_bytes + STATE_BYTES * len(added),
        expected_bytes=plan.checkpoint.manifest.expected_bytes + STATE_BYTES * len(added),
    )
    files = tuple(
        replace(file, size_bytes=CAPACITY_BYTES) if file.name == manifest[0].file else file
        for file in plan.checkpoint.files
    )
    return replace(
        plan,
        resources=replace(plan.resources, nodes=tuple(map(_roomy, plan.resources.nodes))),
        logical_state_units=(
            *plan.logical_state_units,
            *(replace(unit, id=name) for name in names),
        ),
        materializations=(
            *plan.materializations,
            *(
                replace(
                    item,
                    id=f"{name}.{item.role}",
                    logical_state_id=name,
                    expected_bytes=STATE_BYTES,
                )
                for name in names
                for item in (staging, resident)
            ),
        ),
        execution=(
            replace(
                execution,
                required_state=(
                    *execution.required_state,
                    *(replace(execution.required_state[0], logical_state_id=n) for n in names),
                ),
            ),
        ),
        adapter_data=replace(
            plan.adapter_data,
            allowed_tensor_keys=(
                *plan.adapter_data.allowed_tensor_keys,
                *(entry.key for entry in added),
            ),
        ),
        checkpoint=replace(plan.checkpoint, manifest=reference, files=files),
    ), (*manifest, *added)


def _roomy(node: records.Node) -> records.Node:
    memories = (replace(each, capacity_bytes=CAPACITY_BYTES) for each in node.memory_resources)
    return replace(node, memory_resources=tuple(memories))


class PassingRecord:
    """The tables that the audited checks read, as a faithful run of a plan would leave them."""

    def __init__(self, plan: records.Plan) -> None:
        self._plan = plan

    def rows(self, name: str, *process: int | None) -> list[Row]:
        """Rows of one table; one process ran all of the plan."""
        del process
        return list(getattr(self, f"_{name}")())

    def _materializations(self) -> Iterator[Row]:
        plan = self._plan
        copies: dict[str, list[str]] = {}
        for item in plan.materializations:
            if not is_transient(item):
                copies.setdefault(item.logical_state_id, []).append(item.id)
        for item in plan.materializations:
            gone = is_transient(item)
            yield {"id": item.id, "allocated_bytes": _pages(item)} | {
                **passing_columns(item),
                "qualifying_ids": sorted(copies[item.logical_state_id]) if gone else [],
            }

    def _arenas(self) -> Iterator[Row]:
        for point in POINTS:
            live = {item.id for item in live_at(self._plan, point)}
            for item in declared_at(self._plan, point):
                mapped = _pages(item) if item.id in live else 0
                yield {
                    "point": point,
                    "materialization_id": item.id,
                    "memory_resource_id": item.memory_resource_id,
                    "declared_bytes": _pages(item),
                    "mapped_bytes": mapped,
                    "resident_bytes": mapped,
                }

    def _ledger(self) -> Iterator[Row]:
        peaks: dict[str, int] = {}
        for point in POINTS:
            live = live_at(self._plan, point)
            requested = planned_bytes(live)
            for memory in memory_ids(self._plan.resources):
                own = [item for item in live if item.memory_resource_id == memory]
                allocated = sum(map(_pages, own))
                peaks[memory] = max(peaks.get(memory, 0), allocated)
                yield {
                    "point": point,
                    "memory_resource_id": memory,
                    "requested_bytes": requested.get(memory, 0),
                    "allocated_bytes": allocated,
                    "peak_allocated_bytes": peaks[memory],
                    "num_arenas": len(own),
                    "capacity_bytes": CAPACITY_BYTES,
                }


def _pages(item: records.Materialization) -> int:
    return -(-item.expected_bytes // 4096) * 4096


def check(size: int) -> Callable[[], None]:
    """Every rule of a plan, over the plan and its manifest."""
    plan, manifest = grown(size)
    loaded = LoadedPlan(plan=plan, document={}, file_digest="", path=None)

    def work() -> None:
        found = check_plan(loaded, environment=None, support=None, manifest=manifest)
        if found:
            raise RuntimeError(f"{len(found)} findings: {found[0]}")

    return work


def read(size: int) -> Callable[[], None]:
    """A plan file's bytes: strict JSON, schema, digest, records."""
    plan = grown(size)[0]
    (execution,) = plan.execution
    short = replace(execution, required_state=execution.required_state[:MAX_REQUIRED])
    document = plan_to_document(replace(plan, execution=(short,)))
    document["digest"] = plan_digest(document)
    data = plan_file_bytes(document)
    del document
    return lambda: _read(data)


def _read(data: bytes) -> None:
    parse_plan(data, where="a grown plan")


def audit(size: int) -> Callable[[], None]:
    """The growing checks of an audit, over tables in memory."""
    plan = grown(size)[0]
    record: Any = PassingRecord(plan)
    real = dict.fromkeys(memory_ids(plan.resources), CAPACITY_BYTES)
    conditions: Any = type("Known", (), {"capacities": lambda self: real})()
    loaded = LoadedPlan(plan=plan, document={}, file_digest="", path=None)

    def work() -> None:
        subject = Subject(
            loaded=loaded,
            manifest=None,
            record=record,
            view=View(record, 1),
            conditions=conditions,
            support=None,
            specs=None,
            result_digest=None,
            result_problem="",
        )
        for identifier in AUDITED:
            findings = Findings(identifier)
            CHECKS[identifier](subject, findings)
            if findings.differences:
                first = findings.differences[0]
                raise RuntimeError(f"{identifier}: {len(findings.differences)}, first {first}")

    return work


def measure(step: str, size: int) -> dict[str, Any]:
    """One size in this process."""
    work = {"check": check, "read": read, "audit": audit}[step](size)
    seconds: list[float] = []
    try:
        while sum(seconds) < SHORT_S and len(seconds) < MAX_REPEATS:
            began = time.process_time()
            work()
            seconds.append(time.process_time() - began)
    except HarnessError as error:
        return {"refused": "; ".join(str(error).split("\n")[:3])[:150]}
    return {
        "seconds": min(seconds),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Slope of the line through logarithms, by least squares."""
    xs, ys = ([math.log(value) for value in values] for values in (sizes, seconds))
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum(
        (a - x) ** 2 for a in xs
    )


def table(found: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> Iterator[str]:
    """One line a step and size, and the exponent of each step."""
    yield f"{'step':<8} {'materializations':>16} {'seconds':>10} {'peak MiB':>9}"
    for step, rows in found.items():
        measured = {size: row for size, row in rows.items() if "seconds" in row}
        for size, row in rows.items():
            if size in measured:
                peak = row["peak_bytes"] / 2**20
                yield f"{step:<8} {size:>16,} {row['seconds']:>10.3f} {peak:>9,.0f}"
            else:
                yield f"{step:<8} {size:>16,} not measured: {row['refused']}"
        if len(measured) > 1:
            slope = exponent(list(measured), [row["seconds"] for row in measured.values()])
            yield f"{step:<8} exponent {slope:.3f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every step and size, print and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one size")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("STEP", "SIZE"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]))))
        return 0
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for step in args.steps.split(","):
        found[step] = {}
        for size in map(int, args.sizes.split(",")):
            found[step][size] = _in_a_process(step, size, args.timeout)
    print("\n".join(table(found)))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def _in_a_process(step: str, size: int, timeout_s: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scaling", "--one", step, str(size)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return {"refused": f"took longer than {timeout_s:g} s"}
    if done.returncode:
        return {"refused": (done.stderr.strip().splitlines() or [str(done.returncode)])[-1]}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    sys.exit(main())
