"""The fields of a record that no check determines, and what still holds them.

Listed in every verdict, so that nobody takes a figure for audited that is not. A field with a
bound is refused outside of it; inside, another value could as well have been measured. A field
counts as determined when the plan gives it, or when two that wrote apart (the fixture maker, the
producer, the witness) agree on it; figures of one writer that only have to add up are listed.
"""

from collections.abc import Mapping

PREDICATE: Mapping[str, str] = {
    "$.experiment": "",
    "$.environment.facts": "",
    "$.environment.resources": "the plan binds to them; their capacities stand in the ledger",
    "$.applicability_key.instruction_set": "as in the facts of every realization",
    "$.applicability_key.torch_build": "as in the facts of every realization",
    "$.source": "package_digest as in the facts of every realization",
    "$.claims[name=cuda].detail": "",
    "$.claims[name=cuda_graph].detail": "",
    "$.command": "",
    "$.started_at": "not after any reading of the witness",
    "$.ended_at": "not before any reading of the witness",
}
"""Fields of the predicate, and the bound of each in words."""

CELLS: Mapping[str, str] = {
    "tables/facts[name=instruction_set].value": "equal in every realization, and in the key",
    "tables/facts[name=torch_build].value": "equal in every realization, and in the key",
    "tables/states[point=before_prefill].name": "equal in every realization",
    "tables/states[point=before_prefill].bytes": "the sum is the planned one",
    "tables/states[point=before_prefill].digest": "equal in every realization; not the later one",
}
"""Cells of columns that are bound elsewhere, and the bound of each in words."""

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "materializations": {"detail": ""},
    "executions": {"detail": ""},
    "sources": {
        "num_opens": "at least 1, and as many as closes",
        "num_closes": "as many as opens",
    },
    "steps": {"margin": "not negative; equal over repetitions and realizations"},
    "sentinels": {"canary_count": "above 0; about the planted bytes where bytes are counted"},
    "ledger": {
        "peak_allocated_bytes": "at least allocated, not falling, within the capacity",
        "unplanned_tensor_bytes": "system RAM only; 0 once the population is complete",
    },
    "checkpoints": {
        "read_at": "not falling; between start and end of the run, by its own machine's clock",
        "vm_rss_bytes": "the sum of its three parts",
        "vm_hwm_bytes": "at least VmRSS",
        "rss_anon_bytes": "part of VmRSS",
        "rss_file_bytes": "part of VmRSS",
        "rss_shmem_bytes": "part of VmRSS",
        "vm_swap_bytes": "at least 0",
        "uss_bytes": "at least 0",
        "max_rss_bytes": "",
        "minor_faults": "not falling",
        "major_faults": "not falling",
        "swap_in_pages": "not falling",
        "swap_out_pages": "not falling",
        "num_threads": "at least 0",
        "num_descriptors": "at least 0",
        "checkpoint_descriptors": "none after release",
        "checkpoint_mappings": "none after release",
        "private_anonymous_bytes": "growth over the baseline is part of the unplanned bytes",
        "shared_anonymous_bytes": "growth over the baseline is part of the unplanned bytes",
        "memfd_bytes": "growth over the baseline is part of the unplanned bytes",
        "new_file_bytes": "part of the unplanned bytes",
        "unplanned_bytes": "the growth of its parts; within the allowance after population",
        "new_files": "",
        "read_ns": "from the producer's event of that name to its next one",
    },
    "arenas": {"resident_bytes": "at most the mapped bytes"},
    "step_times": {
        "duration_ns": "above 0; of all steps within the time from the seal to their end",
        "sentinel_ns": "at least 0; likewise",
    },
    "lifecycle": {"at_ns": "not falling; after the realization before; within the child's time"},
    "distributions": {"name": "unique", "version": ""},
    "trials": {
        "duration_ns": "of a producer at least the time of its events",
        "message": "",
        "process_id": "of a producer as in its own table and its witness's; never one twice",
        "start_ticks": "of a producer as in its own table and its witness's",
    },
}
"""Columns by table, and the bound of each in words."""

EVICTED_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "ownership": {
        "num_evicted": "0 to the positions held; not falling; equal in every realization",
        "num_mapped": "the positions that are not evicted",
        "num_live": "the pages of the positions that are not evicted",
        "num_available": "the pages that are not live",
    },
}
"""Columns that are unbound only where a policy evicts: the auditor does not know how much."""


STAGE_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "stage_greetings": {
        "nonce": "hexadecimal; one for all stages of a realization, another for each realization",
    },
    "stage_times": dict.fromkeys(
        ("received_ns", "compute_ns", "sent_ns", "digest_ns"),
        "at least 0; together at most the step's duration",
    ),
}
"""Columns that only the stages of a chain write."""


def unbound_paths(*, evicts: bool = False, has_stages: bool = False) -> tuple[str, ...]:
    """Paths of everything unbound, sorted: predicate fields, cells, ``tables/<name>.<column>``.

    Args:
        evicts: Whether ownership is judged, and the plan has an eviction policy.
        has_stages: Whether the plan has stages.
    """
    listed = [COLUMNS, *([EVICTED_COLUMNS] * evicts), *([STAGE_COLUMNS] * has_stages)]
    columns = [
        f"tables/{table}.{column}"
        for tables in listed
        for table, names in tables.items()
        for column in names
    ]
    return tuple(sorted([*PREDICATE, *CELLS, *columns]))
