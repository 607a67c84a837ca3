"""The fields of a record that no check determines, and what still holds them.

Listed in every verdict, so that nobody takes a figure for audited that is not. A field with a
bound is refused outside of it; inside, another value could as well have been measured.
"""

from collections.abc import Mapping

PREDICATE: Mapping[str, str] = {
    "$.experiment": "",
    "$.environment.facts": "",
    "$.source": "",
    "$.claims": "",
    "$.command": "",
    "$.started_at": "",
    "$.ended_at": "",
}
"""Fields of the predicate, and the bound of each in words."""

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "materializations": {"detail": ""},
    "sentinels": {"canary_count": "above 0", "detail": ""},
    "ledger": {
        "peak_allocated_bytes": "at least allocated, not falling, within the capacity",
        "unplanned_tensor_bytes": "0 once the population is complete",
    },
    "checkpoints": {
        "read_at": "not falling",
        "vm_hwm_bytes": "at least VmRSS",
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
        "new_files": "",
    },
    "arenas": {"resident_bytes": "at most the mapped bytes"},
    "step_times": {"duration_ns": "above 0", "sentinel_ns": "at least 0"},
    "lifecycle": {"order": "unique", "event": "", "at_ns": "", "detail": ""},
    "distributions": {"name": "unique", "version": ""},
    "trials": {"duration_ns": "", "message": ""},
}
"""Columns by table, and the bound of each in words."""


def unbound_paths() -> tuple[str, ...]:
    """Paths of everything unbound, sorted: predicate fields, and ``tables/<name>.<column>``."""
    columns = [f"tables/{table}.{column}" for table, names in COLUMNS.items() for column in names]
    return tuple(sorted([*PREDICATE, *columns]))
