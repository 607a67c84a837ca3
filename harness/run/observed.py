"""What armed producers left, taken into the store: their tables, and files of kept tensors.

Knows a run's work folder; nothing of what was observed.
"""

from dataclasses import dataclass, field
from pathlib import Path

from harness.evidence.store import Store
from harness.evidence.studies import StoredTensors
from harness.run.assemble import Gathered, gather
from harness.run.job import ARMED_FOLDER, KEPT_FILE


@dataclass(kw_only=True)
class Observed:
    """Armed tables with their rows, and kept tensors, by realization."""

    gathered: Gathered = field(default_factory=Gathered)
    tensors: list[StoredTensors] = field(default_factory=list)


def take_observed(store: Store, work: Path, num_realizations: int) -> Observed:
    """Take what every armed producer finished; one that did not come so far left nothing."""
    observed = Observed()
    for realization in range(num_realizations):
        folder = work / f"r{realization}" / ARMED_FOLDER
        gather(store, folder, realization, observed.gathered)
        path = folder / KEPT_FILE
        if path.is_file():
            digest, size_bytes = store.put_tensors(path)
            observed.tensors.append(
                StoredTensors(
                    case=None, realization=realization, digest=digest, size_bytes=size_bytes
                )
            )
    return observed
