"""Realizes a plan's model in many fresh processes, and prints the digests of all boundaries.

``fresh_trials.py PLAN CACHE NUM_PROCESSES``: one line for each process, a digest over every
boundary of prefill and two decode steps. Processes are forked after the imports, and before the
first computation, so that each loads and computes anew.
"""

import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from harness.adapters.families import layout_for, reference_for
from harness.checkpoint.sources import fetch
from harness.plan.layout import LayoutRequest
from harness.plan.load import load_plan
from harness.plan.request import layout_request
from harness.realize.armed import ArmedPass
from harness.realize.arming import Arming
from harness.realize.schedule import schedule_of
from harness.run.conditions import apply_determinism


def trial(family: str, folder: Path, request: LayoutRequest) -> str:
    apply_determinism(request.determinism)
    executor = reference_for(family).ordinary(folder, request).executor
    frozen = {name: torch.zeros_like(t) for name, t in executor.declared_state().items()}
    names = layout_for(family).boundaries(request.config, request.spec)
    armed = ArmedPass(executor, frozen, names, Arming())
    armed.run(schedule_of(request.workload, request.spec))
    listed = "".join(f"{row['name']} {row['digest']}\n" for row in armed.boundaries)
    return f"{len(armed.boundaries)} {hashlib.sha256(listed.encode()).hexdigest()}"


def main() -> None:
    path, cache, num_processes = sys.argv[1:]
    plan = load_plan(Path(path)).plan
    family = plan.adapter_data.family or ""
    assert plan.checkpoint is not None
    source = plan.checkpoint.source
    folder = fetch(source, Path(cache), tensors=layout_for(family).synthetic_tensors)
    asked = layout_request(plan)
    request = replace(
        asked,
        workload=replace(asked.workload, decode_steps=2),
        determinism=replace(asked.determinism, num_threads=1),
    )
    for _ in range(int(num_processes)):
        child = os.fork()
        if child == 0:
            print(trial(family, folder, request), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    main()
