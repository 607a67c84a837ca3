"""The declared tables of a record: who writes each, its key, its columns and their labels.

One declaration per table, used by every writer and by the auditor. A table is either *result*
(what each faithful run of a plan repeats) or *telemetry* (times, resident memory, process ids).
Data only: knows nothing of how the columns were observed, judged, written or read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from harness.evidence.columns import ARROW_TYPES


@dataclass(frozen=True, kw_only=True)
class Table:
    """Declaration of one table. ``columns`` maps a name to a type; ``?`` marks a nullable one."""

    name: str
    writer: str
    """Who writes it: ``producer``, ``witness``, ``fixture``, ``supervisor`` or ``auditor``."""
    kind: str
    """``result`` or ``telemetry``."""
    key: tuple[str, ...]
    """Columns that identify a row within one table file."""
    columns: Mapping[str, str]
    check: str | None = None
    """The check whose plans alone have the table; ``None`` where every record has it."""
    later: frozenset[str] = frozenset()
    """Columns that tables written by earlier releases lack, all of them or none."""

    def label(self, column: str) -> str:
        """How a column's values came to be: ``measured`` unless :data:`LABELS` says otherwise."""
        return LABELS.get(f"{self.name}.{column}", "measured")

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema of the columns, in order."""
        return _schema(self.columns)

    @cached_property
    def earlier_schema(self) -> pa.Schema:
        """The same without the later columns: of tables that earlier releases wrote."""
        return _schema({k: kind for k, kind in self.columns.items() if k not in self.later})


def _schema(columns: Mapping[str, str]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, ARROW_TYPES[kind.removesuffix("?")], nullable=kind.endswith("?"))
            for name, kind in columns.items()
        ]
    )


def _table(
    name: str,
    writer: str,
    kind: str,
    key: str,
    columns: Mapping[str, str],
    check: str | None = None,
    later: str = "",
) -> tuple[str, Table]:
    return name, Table(
        name=name,
        writer=writer,
        kind=kind,
        key=tuple(key.split()),
        columns=columns,
        check=check,
        later=frozenset(later.split()),
    )


TABLES: Mapping[str, Table] = dict(
    [
        _table(
            "materializations",
            "producer",
            "result",
            "id",
            {
                "id": "str",
                "status": "str",
                "lifecycle": "str",  # live, released, absent
                "logical_state_id": "str?",  # the actual ones, null when absent
                "representation": "str?",
                "memory_resource_id": "str?",
                "requested_bytes": "int",
                "allocated_bytes": "int",
                "bytes_before_release": "int?",
                "bytes_after_release": "int?",
                "released_bytes": "int?",
                "qualifying_ids": "strs",
                "detail": "str?",
            },
        ),
        _table(
            "authorities",
            "producer",
            "result",
            "logical_state_id materialization_id point",
            {
                "logical_state_id": "str",
                "materialization_id": "str",
                "lineage": "str",
                "memory_resource_id": "str?",
                "point": "str",  # after_population, after_decode
            },
        ),
        _table(
            "executions",
            "producer",
            "result",
            "id",
            {
                "id": "str",
                "strategy_unit": "str?",  # as the executor names itself; null when not activated
                "compute_unit_id": "str?",
                "status": "str",
                "detail": "str?",  # why nothing was activated
            },
        ),
        _table(
            "fetches",
            "producer",
            "result",
            "key",
            {
                "key": "str",
                "file": "str",
                "dtype": "str",
                "shape": "ints",
                "bytes": "int",
                "digest": "str",
                "num_fetches": "int",
            },
        ),
        _table(
            "sources",
            "producer",
            "result",
            "file",
            {"file": "str", "size_bytes": "int", "num_opens": "int", "num_closes": "int"},
        ),
        _table(
            "tensors",
            "producer",
            "result",
            "materialization_id name point",
            {
                "materialization_id": "str",
                "name": "str",
                "point": "str",  # after_population, after_decode
                "dtype": "str",
                "shape": "ints",
                "bytes": "int",
                "digest": "str",
            },
        ),
        _table(
            "expected_tensors",
            "fixture",
            "result",
            "representation name",
            {
                "representation": "str",
                "name": "str",
                "dtype": "str",
                "shape": "ints",
                "bytes": "int",
                "digest": "str",
            },
        ),
        _table(
            "fixture_outputs",
            "fixture",
            "result",
            "phase step output",
            {
                "phase": "str",
                "step": "int",
                "output": "str",  # plane, logits
                "dtype": "str",
                "shape": "ints",
                "bytes": "int",
                "digest": "str",
                "token": "int?",
            },
        ),
        _table(
            "fixture_states",
            "fixture",
            "result",
            "point name",
            {
                "point": "str",  # after_prefill, after_decode
                "name": "str",
                "bytes": "int",
                "digest": "str",
            },
        ),
        _table(
            "steps",
            "producer",
            "result",
            "repetition phase step",
            {
                "repetition": "int",  # 0 for the one prefill of a realization
                "phase": "str",  # prefill, decode
                "step": "int",  # chunk index of a prefill, else decode step
                "start_position": "int",
                "num_rows": "int",
                "token": "int?",  # greedy choice after the step; null inside a prompt
                "plane_digest": "str",
                "logits_digest": "str?",
                "num_nan": "int",
                "num_inf": "int",
                "margin": "float?",  # top logit minus the second
            },
        ),
        _table(
            "correctness",
            "producer",
            "result",
            "repetition phase step output",
            {
                "repetition": "int",
                "phase": "str",
                "step": "int",
                "output": "str",
                "num_elements": "int",
                "num_different": "int",  # elements whose bits differ from the fixture
                "max_abs": "float",
                "max_rel": "float",
                "num_nan": "int",
                "num_inf": "int",
                "fixture_digest": "str",
            },
        ),
        _table(
            "states",
            "producer",
            "result",
            "repetition point name",
            {
                "repetition": "int",
                "point": "str",  # before_prefill, after_prefill, after_restore, after_decode
                "name": "str",
                "bytes": "int",
                "digest": "str",
            },
        ),
        _table(
            "ownership",
            "producer",
            "result",
            "repetition phase step pool",
            {
                "repetition": "int",
                "phase": "str",  # prefill, decode
                "step": "int",
                "pool": "str",
                "page_size": "int",
                "num_pages": "int",  # page 0, the sentinel, included
                "num_live": "int",  # pages
                "num_available": "int",  # pages
                "num_positions": "int",  # positions held after the step
                "num_mapped": "int",  # positions with a slot of their own
                "num_aliased": "int",  # positions that share a slot, or have one nobody can own
                "num_evicted": "int",  # positions let go by the plan's policy
                "num_leaked": "int",  # live pages without a position
                "num_stale": "int",  # entries of the mapping without a position
            },
            check="state.ownership",
        ),
        _table(
            "sentinels",
            "producer",
            "telemetry",
            "name point",
            {
                "name": "str",
                "point": "str",
                "canary_count": "int",  # what the sentinel counted of its planted canary
                "count": "int",  # what it counted of the real thing; good is 0
            },
        ),
        _table(
            "ledger",
            "producer",
            "telemetry",
            "point memory_resource_id",
            {
                "point": "str",
                "memory_resource_id": "str",
                "requested_bytes": "int",
                "allocated_bytes": "int",
                "peak_allocated_bytes": "int",
                "capacity_bytes": "int",
                "num_arenas": "int",
                "unplanned_tensor_bytes": "int?",  # live tensors in no arena; system RAM only
            },
        ),
        _table(
            "checkpoints",
            "witness",
            "telemetry",
            "point",
            {
                "point": "str",
                "read_at": "str",
                "vm_rss_bytes": "int",
                "vm_hwm_bytes": "int",
                "rss_anon_bytes": "int",
                "rss_file_bytes": "int",
                "rss_shmem_bytes": "int",
                "vm_swap_bytes": "int",
                "uss_bytes": "int",
                "max_rss_bytes": "int?",  # ru_maxrss, as the producer reports it
                "minor_faults": "int",
                "major_faults": "int",
                "swap_in_pages": "int",
                "swap_out_pages": "int",
                "num_threads": "int",
                "num_descriptors": "int",
                "checkpoint_descriptors": "strs",  # names of open checkpoint files
                "checkpoint_mappings": "strs",  # names of mapped checkpoint files
                # Resident pages outside the declared arenas, by kind of mapping:
                "private_anonymous_bytes": "int",
                "shared_anonymous_bytes": "int",
                "memfd_bytes": "int",
                "new_file_bytes": "int",  # growth of mapped files, file by file
                "unplanned_bytes": "int",  # growth of the above over the baseline
                "new_files": "strs",
                "process_id": "int?",  # of the process that was read, and when it started
                "start_ticks": "int?",
                "read_ns": "int?",  # by the clock of the producer's events
            },
            later="process_id start_ticks read_ns",
        ),
        _table(
            "arenas",
            "witness",
            "telemetry",
            "point materialization_id",
            {
                "point": "str",
                "materialization_id": "str",
                "memory_resource_id": "str",
                "declared_bytes": "int",
                "mapped_bytes": "int",  # what /proc shows at the address; 0 when unmapped
                "resident_bytes": "int",
            },
        ),
        _table(
            "device_arenas",
            "producer",
            "telemetry",
            "point materialization_id",
            {
                "point": "str",
                "materialization_id": "str",
                "memory_resource_id": "str",
                "requested_bytes": "int",  # from the allocator's snapshot, of the arena's own pool
                "block_bytes": "int",
                "segment_bytes": "int",
            },
            check="memory.device",
        ),
        _table(
            "device_memory",
            "producer",
            "telemetry",
            "point memory_resource_id",
            {
                "point": "str",
                "memory_resource_id": "str",
                "other_block_bytes": "int",  # blocks in use that are no arena's
                "other_segment_bytes": "int",
                "peak_block_bytes": "int",  # most in use at once since the point before
                "used_bytes": "int",  # of the device, by anyone
            },
            check="memory.device",
        ),
        _table(
            "step_times",
            "producer",
            "telemetry",
            "repetition phase step",
            {
                "repetition": "int",
                "phase": "str",
                "step": "int",
                "duration_ns": "int",
                "sentinel_ns": "int",  # digests and counters of the step, apart from duration
            },
        ),
        _table(
            "stage_greetings",
            "producer",
            "telemetry",
            "stage",
            {
                "stage": "int",  # who said so, to this stage and to all others
                "num_stages": "int",
                "nonce": "str",  # made for one realization
                "plan_digest": "str",
                "start_layer": "int",
                "end_layer": "int",
                "dtype": "str",  # of the planes between stages
                "width": "int",
                "package_digest": "str",
                "instruction_set": "str",
                "torch_build": "str",
            },
            check="stages.complete",
        ),
        _table(
            "crossings",
            "producer",
            "result",
            "direction peer sequence",
            {
                "direction": "str",  # sent, received
                "peer": "int",  # the other stage
                "sequence": "int",  # of frames in this direction, from 0
                "kind": "str",  # open, plane, token, restore
                "session": "int",
                "start_position": "int",
                "num_rows": "int",
                "dtype": "str",
                "bytes": "int",
                "digest": "str?",  # of a plane
                "token": "int?",
            },
            check="stages.crossings",
        ),
        _table(
            "stage_times",
            "producer",
            "telemetry",
            "repetition phase step",
            {
                "repetition": "int",
                "phase": "str",
                "step": "int",
                "received_ns": "int",  # until the plane before this stage was here
                "compute_ns": "int",
                "sent_ns": "int",  # until the plane was taken, and the token came or went
                "digest_ns": "int",  # of what crossed; in none of the others
            },
            check="stages.complete",
        ),
        _table(
            "machine",
            "producer",
            "telemetry",
            "name",
            {"name": "str", "value": "str?"},  # as this stage's own process observed it
            check="stages.machines",
        ),
        _table(
            "facts",
            "producer",
            "result",
            "name",
            {"name": "str", "value": "str"},  # what the child measured of its own conditions
        ),
        _table(
            "lifecycle",
            "producer",
            "telemetry",
            "order",
            {
                "order": "int",
                "event": "str",
                "at_ns": "int",
                "process_id": "int?",  # the producer's own, and when it started
                "start_ticks": "int?",
            },
            later="process_id start_ticks",
        ),
        _table(
            "distributions",
            "producer",
            "telemetry",
            "name",
            {"name": "str", "version": "str"},
        ),
        _table(
            "trials",
            "supervisor",
            "telemetry",
            "child realization",
            {
                "child": "str",  # fixture, producer, witness
                "realization": "int",
                "outcome": "str",  # completed, failed, killed, timed_out, not_started
                "exit_code": "int?",
                "signal": "str?",
                "duration_ns": "int",
                "message": "str?",
                "process_id": "int?",  # null for a child that was not started
                "start_ticks": "int?",  # of the kernel's clock, since the machine's start
            },
            later="process_id start_ticks",
        ),
        _table(
            "differences",
            "auditor",
            "result",
            "check path",
            {
                "check": "str",
                "status": "str",  # failed, not_evaluated
                "path": "str",
                "expected": "str",
                "got": "str",
            },
        ),
    ]
)
"""Every table, by name."""


LABELS: Mapping[str, str] = {
    "materializations.status": "calculated",
    "materializations.released_bytes": "calculated",
    "materializations.qualifying_ids": "calculated",
    "materializations.logical_state_id": "declared",
    "authorities.lineage": "declared",
    "executions.compute_unit_id": "calculated",
    "executions.strategy_unit": "declared",
    "executions.status": "calculated",
    "sentinels.count": "calculated",
    "sentinels.canary_count": "calculated",
    "ledger.capacity_bytes": "declared",
    "checkpoints.max_rss_bytes": "declared",
    "checkpoints.unplanned_bytes": "calculated",
    "arenas.declared_bytes": "declared",
    "arenas.memory_resource_id": "declared",
    "trials.outcome": "calculated",
}
"""Columns that are not plain measurements. *Declared* is the word of the owner or the producer."""
