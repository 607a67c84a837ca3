"""What this machine brings to a run: resources that a plan is bound to, and the checkpoint's files.

Observes the machine and loads nothing; knows nothing of other machines.
"""

from pathlib import Path

from harness.adapters.families import layout_for
from harness.checkpoint.census import verify_files
from harness.checkpoint.sources import fetch
from harness.errors import CheckpointError
from harness.measure.environment import probe_environment
from harness.plan.bind import bind
from harness.plan.records import Checkpoint, Plan
from harness.run.job import Job
from harness.run.processes import child_environment
from harness.run.progress import Progress
from harness.run.request import RunRequest


def job_here(request: RunRequest, plan: Plan, work: Path) -> Job:
    """Observe this machine, and bind to what it has what is realized here.

    Args:
        request: The run.
        plan: The whole plan, or one stage's part of it, to bind.
        work: Folder of the run.

    Returns:
        The job, with the cache for a checkpoint, until that is in place.

    Raises:
        ResourceError: When this machine has not what the plan asks for.
    """
    determinism = plan.determinism
    assert determinism is not None
    # The variables are those that the children get, not this process's own.
    environment = probe_environment(
        request.device, variables=child_environment(determinism.num_threads)
    )
    return Job(
        plan=request.plan_path.resolve(),
        checkpoint=request.cache.resolve(),
        cache=request.cache.resolve(),
        fixture=(work / "fixture").resolve(),
        binding=bind(plan.resources, environment),
        environment=environment,
        arming=request.arming,
    )


def place_checkpoint(request: RunRequest, plan: Plan, progress: Progress) -> Path:
    """Put the pinned checkpoint in place; returns its folder.

    Raises:
        HarnessError: When it is not to be had, or is another one.
    """
    checkpoint: Checkpoint | None = plan.checkpoint
    assert checkpoint is not None
    layout = layout_for(plan.adapter_data.family or "")
    folder = fetch(
        checkpoint.source,
        request.cache,
        progress=progress.update,
        tensors=layout.synthetic_tensors,
        accept_terms=request.accept_terms,
        allow_large=request.allow_large,
        pinned=checkpoint.files,
    )
    progress.update("verifying the checkpoint's files")
    problems = verify_files(folder, checkpoint.files)
    if problems:
        raise CheckpointError(
            "the checkpoint is not the pinned one",
            got="; ".join(problems),
            where=str(folder),
            hint="remove the folder and run again",
        )
    return folder.resolve()
