"""What an armed producer writes beside its ordinary tables, and under which names.

Knows an armed pass that has run; knows no plan and no store.
"""

from pathlib import Path

from safetensors.torch import save_file

from harness.evidence import tables
from harness.realize.armed import ArmedPass
from harness.run.job import ARMED_FOLDER, KEPT_FILE


def write_armed(armed: ArmedPass, out: Path) -> None:
    """Write the pass's tables and kept tensors, and let the tensors go."""
    folder = out / ARMED_FOLDER
    for name, rows in (
        ("boundaries", armed.boundaries),
        ("armed_steps", armed.steps),
        ("replay_states", armed.states),
        ("armed_times", armed.times),
    ):
        tables.write(folder, name, rows)
    if armed.kept:
        save_file(armed.kept, folder / KEPT_FILE)
        armed.kept.clear()
