"""The entry of one stage of a chain: meet, shake hands, load this stage's range, run, report.

    meet -> handshake -> ordinary load -> open -> prefill, decode -> report

Runs a plan's workload once, on the CPU, from an ordinary load; writes what it did as one report of
digests and judges nothing. Started by :mod:`harness.run.chain`, or by hand on each machine.
"""

import argparse
import os
import socket
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

from harness.adapters.families import layout_for, reference_for
from harness.canonical import canonical_bytes, write_durable
from harness.errors import InvalidInputError, NotEvaluableError
from harness.plan.load import LoadedPlan, load_plan
from harness.plan.request import layout_request
from harness.realize.schedule import schedule_of
from harness.run.child import PEER_LOST, run_child, say
from harness.run.conditions import apply_determinism
from harness.run.control import state_rows
from harness.run.place import greeting_of, plane_form
from harness.run.stage_job import (
    REPORT_FILE,
    StageJob,
    placed,
    read_stage_job,
    stage_ranges,
)
from harness.stages.chain import PlaneForm, RangeExecutor, Stage
from harness.stages.errors import PeerError
from harness.stages.frames import nonce_number
from harness.stages.handshake import Greeting, shake_hands
from harness.stages.rendezvous import Meeting, join
from harness.stages.transport import Transport
from harness.state.digests import tensor_digest

Row = dict[str, object]
_HOST_UNITS = frozenset({"cpu", "simulated-accelerator"})


def run_stage(job: StageJob, listener: socket.socket | None = None) -> None:
    """Take part in one run of a chain, and write this stage's report.

    Raises:
        InvalidInputError: When the plan is not valid, or the stages are not of one chain.
        NotEvaluableError: When the plan cannot be run so, or the port is in use.
        PeerError: When another stage is gone, silent or out of turn.
    """
    loaded = load_plan(Path(job.plan))
    request = layout_request(loaded.plan)
    family = loaded.plan.adapter_data.family or ""
    _require_host(loaded)
    apply_determinism(request.determinism)
    ranges = stage_ranges(request.spec, job.cuts)
    form = plane_form(loaded.plan, layout_for(family))
    say("meeting")
    transport = join(_meeting(job), listener)
    own = _greeting(job, loaded, form, ranges[job.stage].start_layer, ranges[job.stage].end_layer)
    shake_hands(transport, own, request.spec.end_layer)
    say("ordinary load")
    part = replace(request, spec=ranges[job.stage])
    reference = reference_for(family).ordinary(Path(job.checkpoint), part)
    executor = cast(RangeExecutor, reference.executor)
    report = _run(job, transport, executor, form, loaded)
    write_durable(Path(job.out) / REPORT_FILE, canonical_bytes(report))


def _run(
    job: StageJob,
    transport: Transport,
    executor: RangeExecutor,
    form: PlaneForm,
    loaded: LoadedPlan,
) -> Row:
    """Open a session, prefill and decode once; returns the report."""
    request = layout_request(loaded.plan)
    schedule = schedule_of(request.workload, request.spec)
    stage = Stage(
        executor,
        transport,
        nonce=nonce_number(job.nonce),
        form=form,
        digest=tensor_digest if job.is_armed else None,
        start_timeout_s=job.start_timeout_s,
    )
    stage.open()
    say("prefill and decode")
    steps: list[Row] = []
    states = state_rows(executor.declared_state(), "before_prefill")
    chosen: int | None = None
    for index, planned in enumerate(schedule.steps()):
        if index == len(schedule.chunks):
            states += state_rows(executor.declared_state(), "after_prefill")
        ids = schedule.inputs(planned, chosen) if job.stage == 0 else None
        stepped = stage.step(planned, ids)
        output, chosen = stepped.output, stepped.token
        steps.append(
            {
                "phase": planned.phase,
                "step": planned.step,
                "start_position": planned.start_position,
                "num_rows": planned.num_rows,
                "plane": tensor_digest(output.plane),
                "logits": None if output.logits is None else tensor_digest(output.logits),
                "token": stepped.token,
            }
        )
    stage.settle()
    states += state_rows(executor.declared_state(), "after_decode")
    return {
        "stage": job.stage,
        "num_stages": job.num_stages,
        "nonce": job.nonce,
        "plan_digest": loaded.plan.digest,
        "steps": steps,
        "states": states,
        "crossings": [asdict(crossing) for crossing in stage.crossings],
    }


def _require_host(loaded: LoadedPlan) -> None:
    kinds = {unit.kind for node in loaded.plan.resources.nodes for unit in node.compute_units}
    if not kinds <= _HOST_UNITS:
        raise NotEvaluableError(
            "stages run on the host only",
            expected=" or ".join(sorted(_HOST_UNITS)),
            got=", ".join(sorted(kinds)),
            hint="derive the plan for the simulated device, or for the CPU",
        )


def _meeting(job: StageJob) -> Meeting:
    return Meeting(
        stage=job.stage,
        num_stages=job.num_stages,
        port=job.port,
        lead_host=job.lead_host,
        own_host=job.own_host,
        timeout_s=job.timeout_s,
        start_timeout_s=job.start_timeout_s,
    )


def _greeting(
    job: StageJob, loaded: LoadedPlan, form: PlaneForm, start_layer: int, end_layer: int
) -> Greeting:
    return greeting_of(
        number=job.stage,
        num_stages=job.num_stages,
        nonce=job.nonce,
        plan_digest=loaded.plan.digest,
        form=form,
        start_layer=start_layer,
        end_layer=end_layer,
        kernel_set=None if loaded.plan.determinism is None else loaded.plan.determinism.kernel_set,
    )


def main() -> int:
    """Entry of the child process."""
    parser = argparse.ArgumentParser(description="run one stage of a chain, once")
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--listen-fd", type=int, help="a listening socket, for the first stage")
    parser.add_argument(
        "--stage-from",
        metavar="NAME",
        help="environment variable with the stage's number, such as RANK or SLURM_PROCID; "
        "the report then goes into a folder of that number",
    )
    parser.add_argument("--own-host", help="this machine's address, instead of the job's")
    args = parser.parse_args()
    job = placed(read_stage_job(args.job), args.stage_from, args.own_host, os.environ)
    if (args.listen_fd is not None) and job.stage != 0:
        raise InvalidInputError("only the first stage listens", got=f"stage {job.stage}")
    listener = None if args.listen_fd is None else socket.socket(fileno=args.listen_fd)
    try:
        run_stage(job, listener)
    except PeerError as error:
        print(str(error), file=sys.stderr, flush=True)
        return PEER_LOST
    return 0


if __name__ == "__main__":
    run_child(main)
