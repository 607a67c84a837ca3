"""From a checked plan to a run that can begin: bound, met with other machines, checkpoint in place.

Where each stage has a machine, this one is the first: the others are met, and what all of them
have is bound to the plan as one environment. Loads nothing and judges nothing.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import ResourceError
from harness.plan.bind import bind
from harness.plan.binding import Binding
from harness.plan.environment import Environment
from harness.plan.load import LoadedPlan
from harness.plan.nodes import joined, misplaced
from harness.plan.records import Plan, TimeoutsS
from harness.plan.stages import stage_views
from harness.run.here import job_here, place_checkpoint
from harness.run.job import Job, write_job
from harness.run.machines import Machines, MachinesError, first_machine
from harness.run.processes import Outcome, child_environment, not_started
from harness.run.progress import Progress
from harness.run.request import RunRequest


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A plan that passed its static check, bound to this machine, with its checkpoint in place."""

    loaded: LoadedPlan
    job: Job
    """Of what runs on this machine."""
    timeouts: TimeoutsS
    num_threads: int
    num_realizations: int
    environment: Environment
    """Of every machine."""
    binding: Binding
    """Of the whole plan, as far as there are machines for it."""
    machines: Machines | None = None
    """The others, where each stage has one."""
    problem: Outcome | None = None
    """How the first stage noticed that the machines did not meet; nothing is realized then."""


def prepare(
    request: RunRequest, loaded: LoadedPlan, work: Path, progress: Progress, stack: ExitStack
) -> Prepared:
    """Bind a checked plan to what there is, and put its checkpoint in place.

    Args:
        request: The run.
        loaded: Its plan.
        work: Folder of the run.
        progress: Told what is done.
        stack: Keeps the connection with other machines until the run has ended.

    Raises:
        HarnessError: When this machine, or all of them together, cannot run it.
    """
    plan, timeouts, workload = loaded.plan, loaded.plan.timeouts, loaded.plan.workload
    assert timeouts is not None
    assert workload is not None
    own = plan if request.lead is None else stage_views(plan, None, None)[0].plan
    job = job_here(request, own, work)
    prepared = Prepared(
        loaded=loaded,
        job=job,
        timeouts=timeouts,
        num_threads=_num_threads(plan),
        num_realizations=workload.fresh_realizations,
        environment=job.environment,
        binding=job.binding,
    )
    if request.lead is not None:
        progress.update("meeting the other machines")
        prepared = _met(request, prepared, own, work, stack)
    if prepared.problem is None:
        job = replace(job, checkpoint=place_checkpoint(request, plan, progress))
    write_job(work / "job.json", job)
    return replace(prepared, job=job)


def _num_threads(plan: Plan) -> int:
    assert plan.determinism is not None
    return plan.determinism.num_threads


def _met(
    request: RunRequest, prepared: Prepared, own: Plan, work: Path, stack: ExitStack
) -> Prepared:
    """Meet the machines of the other stages, and bind the plan to all of them."""
    plan = prepared.loaded.plan
    stages = plan.stages or ()
    assert request.lead is not None
    machines = stack.enter_context(
        first_machine(
            prepared.job,
            stages,
            prepared.timeouts,
            address=request.lead,
            environment=child_environment(prepared.num_threads),
            work=work,
            argv=request.courier_argv,
        )
    )
    here = {stages[0].id: prepared.environment}
    try:
        environment = joined({**here, **machines.meet()})
    except MachinesError as error:
        alone = joined(here)
        failed = not_started(f"producer {stages[0].id}", 0, error.problem)
        return replace(
            prepared,
            environment=alone,
            binding=bind(own.resources, alone),
            machines=machines,
            problem=replace(failed, outcome="failed", exit_code=error.code),
        )
    return replace(
        prepared,
        environment=environment,
        binding=_bind_all(plan, environment),
        machines=machines,
    )


def _bind_all(plan: Plan, environment: Environment) -> Binding:
    """Bind a plan to several machines, each stage to the one on which it was started.

    Raises:
        ResourceError: When there is no such binding.
    """
    binding = bind(plan.resources, environment)
    wrong = list(misplaced(plan, binding))
    if wrong:
        raise ResourceError(
            "the machines are not in the order of the plan's nodes",
            expected="a machine for each stage that has what its node asks for",
            got="; ".join(f"{unit} would be bound to {bound}" for unit, bound in wrong),
            hint="start the stages on other machines, or derive another plan",
        )
    return binding
