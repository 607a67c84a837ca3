"""The end of a run: the record of what its children left, and what armed ones observed.

Apart from the supervisor, since what reads and writes tables takes long to load and nobody has to
wait for it before the children run.
"""

from collections.abc import Sequence
from pathlib import Path

from harness.canonical import read_bounded
from harness.evidence.store import Store
from harness.plan.load import MAX_PLAN_BYTES
from harness.plan.manifest import MAX_MANIFEST_BYTES, manifest_path
from harness.run.assemble import Assembly, Gathered, TableFolder, assemble
from harness.run.observed import Observed, take_observed
from harness.run.prepare import Prepared
from harness.run.processes import Outcome
from harness.run.request import RunRequest


def record_run(
    request: RunRequest,
    prepared: Prepared,
    work: Path,
    outcomes: Sequence[Outcome],
    *,
    started_at: str,
    package_root: Path,
) -> tuple[str, Gathered, Observed]:
    """Assemble the record of a run in its store.

    Args:
        request: The run.
        prepared: What it ran with.
        work: Folder in which its children left their tables.
        outcomes: How each of them ended.
        started_at: When the run began.
        package_root: Folder of the source that ran.

    Returns:
        The record's digest, what was gathered for it, and what armed producers observed.

    Raises:
        HarnessError: When it cannot be written.
    """
    checkpoint = prepared.loaded.plan.checkpoint
    assert checkpoint is not None
    manifest = manifest_path(prepared.job.plan.parent, checkpoint.manifest)
    assembly = Assembly(
        experiment=request.experiment,
        loaded=prepared.loaded,
        plan_bytes=read_bounded(prepared.job.plan, max_bytes=MAX_PLAN_BYTES),
        manifest_bytes=read_bounded(manifest, max_bytes=MAX_MANIFEST_BYTES),
        binding=prepared.binding,
        environment=prepared.environment,
        folders=_folders(prepared, work),
        outcomes=outcomes,
        package_root=package_root,
        command=request.command,
        started_at=started_at,
        planted_fault=request.planted_fault,
    )
    store = Store(request.store)
    digest, gathered = assemble(store, work, assembly)
    return digest, gathered, take_observed(store, work, prepared.num_realizations)


def _folders(prepared: Prepared, work: Path) -> list[TableFolder]:
    """Where the children of a run wrote their tables."""
    realizations = [(index, work / f"r{index}") for index in range(prepared.num_realizations)]
    found = []
    for realization, folder in [*realizations, (None, prepared.job.fixture)]:
        stages = prepared.loaded.plan.stages
        if stages is None:
            found.append(TableFolder(path=folder, realization=realization))
            continue
        found += [
            TableFolder(path=folder / stage.id, realization=realization, stage=number)
            for number, stage in enumerate(stages)
        ]
    return found
