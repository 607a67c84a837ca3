"""The harness: a frozen plan realized as a producer realizes it, run with or without sentinels.

Runs in the project's environment. ``load`` goes through the bounded reader, the realizer and the
digests of residents, and says what it took; it may be asked again. The reference outputs are those
of this executor's own first generation, so that the comparison takes the path of equals.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from serving import Stopwatch, serve

from harness.adapters.families import adapter_for
from harness.checkpoint.reader import BoundedReader
from harness.cli.device import device_of
from harness.measure.environment import probe_environment
from harness.measure.settle import keep_small_pages, settle
from harness.plan.bind import bind
from harness.plan.load import load_plan
from harness.plan.manifest import load_manifest
from harness.plan.records import Plan
from harness.plan.request import census_of, layout_request, planned_tensors
from harness.realize.adapter import AdapterContext, Executor, StepOutput
from harness.realize.observed import tensor_rows
from harness.realize.realizer import Realizer
from harness.realize.recorder import ReferenceRows, StepRecorder
from harness.realize.schedule import schedule_of
from harness.realize.source import ReaderSource
from harness.run.conditions import apply_determinism
from harness.run.devices import bound_device, bound_memories
from harness.run.job import Job
from harness.run.producer import hashing_team, read_entries, reference_tensors
from harness.state.accounting import set_imports_aside
from harness.state.arena import Arena
from harness.team import Team


class Keeper:
    """Takes a recorder's place once, and makes what it saw the reference."""

    def __init__(self, reference: dict[str, torch.Tensor]) -> None:
        self._rows = ReferenceRows(reference)

    def record(
        self, output: StepOutput, *, phase: str, step: int, start_position: int, **rest: Any
    ) -> None:
        """Copy a step's outputs into the rows that belong to them."""
        del rest
        for name, tensor in (("plane", output.plane), ("logits", output.logits)):
            if tensor is not None:
                num_rows = output.plane.shape[0]
                self._rows.rows(name, phase, step, start_position, num_rows).copy_(tensor)


class Realization:
    """One realized plan: its arenas, its executor and its sentinels."""

    def __init__(self, plan_path: Path, checkpoint: Path, team: Team) -> None:
        loaded = load_plan(plan_path)
        self.plan: Plan = loaded.plan
        assert loaded.plan.checkpoint is not None
        self.manifest = load_manifest(plan_path.parent, loaded.plan.checkpoint.manifest)
        self.request = layout_request(self.plan)
        environment = probe_environment(device_of(self.plan))
        job = Job(
            plan=plan_path,
            checkpoint=checkpoint,
            cache=checkpoint,
            fixture=checkpoint,
            binding=bind(self.plan.resources, environment),
            environment=environment,
        )
        device = bound_device(self.plan, job)
        self.context = AdapterContext(
            request=self.request,
            memories=bound_memories(self.plan, job, device),
            census=census_of(self.manifest),
            transfer=device.transfer(),
            record=device.record,
            team=team,
        )
        self.checkpoint = checkpoint
        self.schedule = schedule_of(self.request.workload, self.request.spec)
        self.arenas: dict[str, Arena] = {}
        self.executor: Executor

    def realize(self) -> None:
        """Read, hash, place, observe and hash again, as a producer does; then activate."""
        adapter = adapter_for(self.plan.adapter_data.family or "")
        adapter.begin(self.context)
        team = self.context.team
        reader = BoundedReader(self.checkpoint, read_entries(self.manifest), team)
        known = planned_tensors(self.plan, adapter.layout, self.manifest)

        def at(point: str) -> None:
            if point == "after_population":
                tensor_rows(realizer.arenas(), self.plan.materializations, point, team)

        realizer = Realizer(
            self.plan, adapter, self.context.memories, known, ReaderSource(reader), at
        )
        realizer.realize(lambda arenas: None)
        reader.close()
        reader.seal()
        self.arenas = realizer.arenas()
        (activation,) = realizer.activate()
        if activation.executor is None:
            raise RuntimeError(f"not activated: {activation.detail}")
        self.executor = activation.executor

    def run(self, recorder: StepRecorder | Keeper | None) -> dict[str, Any]:
        """Prefill and decode once, from an empty state."""
        executor, schedule = self.executor, self.schedule
        executor.reset()
        watch = Stopwatch()
        tokens: list[int] = []
        for step in schedule.steps():
            if step.phase == "prefill":
                rows: Sequence[int] = schedule.chunks[step.step].token_ids
            else:
                rows = tokens[-1:]
            output = executor.step(rows, step.start_position, want_logits=step.wants_logits)
            choice = None if output.logits is None else executor.choose(output.logits)
            if recorder is not None:
                recorder.record(
                    output,
                    repetition=0,
                    phase=step.phase,
                    step=step.step,
                    start_position=step.start_position,
                    choice=choice,
                    duration_ns=0,
                    owned=executor.ownership,
                )
            if choice is not None:
                tokens.append(choice.token)
                watch.mark()
        return watch.answer(tokens)

    def reference(self) -> dict[str, torch.Tensor]:
        """The reference outputs' arena."""
        return dict(reference_tensors(self.plan, self.arenas) or {})


_LOADED: list[Realization] = []


def load(plan: str, checkpoint: str) -> dict[str, Any]:
    """Realize a plan; measures from the first header to the last digest."""
    _LOADED.clear()
    keep_small_pages()
    settle()
    team = hashing_team()
    realization = Realization(Path(plan), Path(checkpoint), team)
    set_imports_aside()
    if not torch.are_deterministic_algorithms_enabled():
        apply_determinism(realization.request.determinism)
    rss_before = _rss_bytes("VmRSS")
    began = time.perf_counter()
    realization.realize()
    seconds = time.perf_counter() - began
    team.close()
    _LOADED.append(realization)
    residents = sum(
        arena.requested_bytes
        for intent in realization.plan.materializations
        if intent.role == "required_residency"
        for arena in [realization.arenas[intent.id]]
    )
    return {
        "version": f"harness {realization.request.determinism.kernel_set}, torch "
        f"{torch.__version__}",
        "load_s": seconds,
        "source_bytes": sum(entry.source_bytes for entry in realization.manifest),
        "resident_bytes": residents,
        "rss_before_bytes": rss_before,
        "rss_peak_bytes": _rss_bytes("VmHWM"),
    }


def _rss_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in /proc/self/status")


@torch.inference_mode()
def generate(prompt: list[int], decode_steps: int, sentinels: bool) -> dict[str, Any]:
    """Run the plan's schedule once, greedily; a step's sentinels are part of its time."""
    (realization,) = _LOADED
    schedule = realization.schedule
    ids = [token for chunk in schedule.chunks for token in chunk.token_ids]
    if (ids, schedule.decode_steps) != (prompt, decode_steps):
        raise ValueError("the plan holds another workload")
    reference = realization.reference()
    if not bool(reference["decode.logits"].any()):
        realization.run(Keeper(reference))
    if not sentinels:
        return realization.run(None)
    recorder = StepRecorder(reference)
    answer = realization.run(recorder)
    different = sum(int(str(row["num_different"])) for row in recorder.correctness)
    return answer | {"sentinels": len(recorder.steps), "different": different}


if __name__ == "__main__":
    serve({"load": load, "generate": generate})
