"""The producer: one fresh realization of one frozen plan, measured and written as tables.

    conditions -> warm-up -> baseline -> realize -> seal -> prefill, decodes -> measure -> tables

It observes and never judges: it exits 0 when it came to its end, whatever it observed. Run by the
supervisor as a process of its own; knows no store, no record and no verdict.
"""

import argparse
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from harness.adapters.families import adapter_for, layout_for
from harness.checkpoint.header import read_header
from harness.checkpoint.reader import BoundedReader, ReadEntry
from harness.evidence import tables
from harness.evidence.source import package_digest
from harness.measure.cpu import num_usable_cores
from harness.measure.distributions import distribution_rows
from harness.measure.settle import keep_small_pages
from harness.measure.witness_client import WitnessClient
from harness.plan.layout import REFERENCE_OUTPUTS, STATE_SNAPSHOT
from harness.plan.load import load_plan
from harness.plan.manifest import ManifestEntry, load_manifest
from harness.plan.recipe import FIXTURE_FILE
from harness.plan.records import PLANES, Plan
from harness.plan.request import census_of, layout_request, planned_tensors
from harness.plan.stages import stage_view
from harness.realize import sentinels
from harness.realize.adapter import Adapter, AdapterContext, Executor
from harness.realize.armed import ArmedPass
from harness.realize.decode import ExecutionLoop, OwnSteps
from harness.realize.observed import authority_rows, execution_rows, owner_of, tensor_rows
from harness.realize.realizer import Realizer
from harness.realize.recorder import StepRecorder
from harness.realize.schedule import Schedule, schedule_of
from harness.realize.seal import Seal, watch
from harness.realize.source import ReaderSource
from harness.realize.warmup import warm_up
from harness.run.armed import write_armed
from harness.run.child import PEER_LOST, run_child, say
from harness.run.conditions import (
    apply_determinism,
    device_class,
    execution_conditions,
    machine_conditions,
)
from harness.run.devices import ComputeDevice, bound_device, bound_memories, exhaustion_told
from harness.run.guards import OpenedFiles, plan_accesses, source_accesses
from harness.run.instruments import Instruments
from harness.run.job import Job, read_job
from harness.run.place import ChainPlace
from harness.stages.errors import PeerError
from harness.state.accounting import set_imports_aside
from harness.state.arena import Arena, Memory
from harness.team import Team

Row = dict[str, object]
MAX_HASHING_THREADS = 8
"""Each has pages of its own."""


class Production:
    """One realization, from plan to rows: of a whole plan, or of one stage of it."""

    def __init__(
        self, job: Job, witness: WitnessClient, out: Path, listener: socket.socket | None = None
    ) -> None:
        plan = load_plan(job.plan).plan
        self.job = job
        self.out = out
        self.witness = witness
        self.plan: Plan
        self.seal: Seal
        self.device: ComputeDevice
        self.chain: ChainPlace | None = None
        """Of a stage, from the meeting on."""
        self.fixture = job.fixture
        assert plan.checkpoint is not None
        self.manifest = load_manifest(job.plan.parent, plan.checkpoint.manifest)
        self.whole, self._listener = plan, listener
        if job.place is not None:
            layout = layout_for(plan.adapter_data.family or "")
            plan, self.manifest = stage_view(plan, job.place.number, layout, self.manifest)
            self.fixture = job.fixture / (self.whole.stages or ())[job.place.number].id
        self.plan, self.seal = watch(plan)
        self.rows: dict[str, list[Row]] = {}
        # Before the baseline: see its module.
        self.team = hashing_team()
        self.replayed: tuple[Executor, Mapping[str, torch.Tensor]] | None = None
        """What ran the workload, and where its state can be frozen."""

    def run(self) -> None:
        """Realize, execute and measure; fills ``rows``."""
        plan, job = self.plan, self.job
        request = layout_request(plan)
        apply_determinism(request.determinism)
        self.device = device = bound_device(plan, job)
        self._meet()
        make_adapter = partial(adapter_for, plan.adapter_data.family or "")
        memories = bound_memories(plan, job, device)
        context = AdapterContext(
            request=request,
            memories=memories,
            census=census_of(self.manifest),
            transfer=device.transfer(),
            record=device.record,
            team=self.team,
        )
        # Of a stage too: whether a step has logits is the chain's matter, not this range's.
        schedule = schedule_of(request.workload, self.whole.adapter_data.spec)
        reader = BoundedReader(job.checkpoint, read_entries(self.manifest), self.team)
        say("warm-up")
        set_imports_aside()
        on_gpu = device.driver is not None
        steps_of = OwnSteps if self.chain is None else self.chain.warm_steps
        warm_up(plan, make_adapter, context, schedule, populate=on_gpu, steps_of=steps_of)
        instruments = Instruments(memories, self.witness, device.driver)
        instruments.checkpoint("baseline")

        realizer = self._realize(make_adapter(), context, reader, instruments)
        guards = self._guards(realizer, instruments)
        self._check(guards, "after_release")
        activations = realizer.activate()
        arenas = realizer.arenas()
        units = [unit for node in plan.resources.nodes for unit in node.compute_units]
        self.rows["executions"] = execution_rows(activations, units, arenas, memories)
        executors = [item.executor for item in activations if item.executor is not None]
        recorder = StepRecorder(reference_tensors(plan, arenas))
        guards += [
            sentinels.non_finite("nan", recorder),
            sentinels.non_finite("inf", recorder),
            *self._execute(executors, recorder, schedule, arenas, reader, instruments),
        ]
        self._at("after_decode", realizer, instruments)
        self._check(guards, "after_decode")
        minted = [entry for executor in executors for entry in held_by(executor, arenas)]
        self.rows["authorities"] += authority_rows(minted, arenas, memories, "after_decode")
        realizer.observe_again()
        self._collect(realizer, recorder, reader, instruments)
        self._state_facts(executors, recorder, arenas, memories)

    def _meet(self) -> None:
        """Meet the other stages, before anything is loaded."""
        if self.job.place is not None:
            self.chain = ChainPlace(
                self.job.place,
                whole=self.whole,
                own=self.plan,
                layout=layout_for(self.plan.adapter_data.family or ""),
                device=self.device,
                listener=self._listener,
            )

    def _realize(
        self,
        adapter: Adapter,
        context: AdapterContext,
        reader: BoundedReader,
        instruments: Instruments,
    ) -> Realizer:
        """Realize the plan and seal the source."""
        adapter.begin(context)
        realizer = Realizer(
            self.plan,
            adapter,
            context.memories,
            planned_tensors(self.plan, adapter.layout, self.manifest),
            ReaderSource(reader),
            lambda point: self._at(point, realizer, instruments),
        )
        realizer.realize(partial(fill_reference, self.plan, self.fixture, self.team))
        reader.close()
        reader.seal()
        return realizer

    def _execute(
        self,
        executors: Sequence[Executor],
        recorder: StepRecorder,
        schedule: Schedule,
        arenas: Mapping[str, Arena],
        reader: BoundedReader,
        instruments: Instruments,
    ) -> list[sentinels.Sentinel]:
        """Run the workload with the plan sealed; returns the sentinels of plan and source."""
        plan, first = self.plan, self.manifest[0]
        plan_files = OpenedFiles([self.job.plan])
        checkpoint_files = OpenedFiles(
            self.job.checkpoint / name for name in {entry.file for entry in self.manifest}
        )
        guards = [
            plan_accesses(self.seal, lambda: plan.schema, plan_files),
            source_accesses(
                reader,
                first.key,
                lambda: memoryview(bytearray(first.source_bytes)),
                checkpoint_files,
            ),
        ]
        self.rows["states"] = []
        snapshot = find_arena(plan, arenas, STATE_SNAPSHOT)
        if executors and snapshot is not None:
            say("prefill and decode")
            self.replayed = executors[0], snapshot.tensors
            executor = executors[0]
            steps = OwnSteps(executor) if self.chain is None else self.chain.steps(executor)
            loop = ExecutionLoop(*self.replayed, recorder, steps)
            instruments.log("seal")
            self.seal.close()
            with plan_files.armed(), checkpoint_files.armed():
                loop.run(schedule)
                if self.chain is not None:
                    self.chain.settle()
            self.seal.open()
            self.rows["states"] = loop.states
        return guards

    def observe(self) -> None:
        """Replay the schedule with its boundaries armed, where the job asks for it.

        After everything was measured: to the record, an armed run is a run like any other.
        """
        if self.job.arming is None or self.replayed is None:
            return
        say("armed pass")
        request = layout_request(self.plan)
        layout = layout_for(self.plan.adapter_data.family or "")
        names = layout.boundaries(request.config, request.spec)
        armed = ArmedPass(*self.replayed, names, self.job.arming)
        armed.run(schedule_of(request.workload, request.spec))
        write_armed(armed, self.out)

    def _state_facts(
        self,
        executors: Sequence[Executor],
        recorder: StepRecorder,
        arenas: Mapping[str, Arena],
        memories: Mapping[str, Memory],
    ) -> None:
        """Say under which conditions it ran, as read back from what ran."""
        libraries = [executor.conditions().get("kernel_library") for executor in executors[:1]]
        facts = machine_conditions(self.device.driver, *libraries)
        facts["package_digest"] = package_digest() or "unknown"
        if self.chain is not None:
            facts[PLANES] = self.chain.planes
        for executor in executors[:1]:
            facts["device_class"] = device_class(executor, arenas, memories)
            facts |= execution_conditions(executor, recorder.steps)
        self.rows["facts"] = [{"name": name, "value": value} for name, value in facts.items()]

    def leave(self) -> None:
        """End what ties this process to others of its chain, and its own threads."""
        self.team.close()
        if self.chain is not None:
            self.chain.close()

    def write(self, realization: int) -> None:
        """Write every table durably."""
        for name, rows in self.rows.items():
            tables.write(self.out, name, rows, realization=realization)

    def _at(self, point: str, realizer: Realizer, instruments: Instruments) -> None:
        say(point)
        arenas = realizer.arenas()
        instruments.declare(arenas)
        if point in ("after_population", "after_decode"):
            self.rows.setdefault("tensors", []).extend(
                tensor_rows(arenas, self.plan.materializations, point, self.team)
            )
        if point == "after_population":
            self.rows["authorities"] = authority_rows(
                realizer.lineages(), arenas, instruments.memories, point
            )
        instruments.checkpoint(point)

    def _guards(self, realizer: Realizer, instruments: Instruments) -> list[sentinels.Sentinel]:
        staging = sentinels.StagingWatch(realizer.staging_arenas())
        allowances = self.plan.memory_allowances
        assert allowances is not None
        return [
            staging.tensors_alive(),
            staging.mappings_alive(),
            sentinels.unplanned_tensors(instruments.accounting, instruments.live_arenas),
            *instruments.witnessed(
                self.job.checkpoint / self.manifest[0].file, allowances.unplanned_host_bytes
            ),
        ]

    def _check(self, guards: list[sentinels.Sentinel], point: str) -> None:
        self.rows.setdefault("sentinels", []).extend(sentinels.check(guards, point))

    def _collect(
        self,
        realizer: Realizer,
        recorder: StepRecorder,
        reader: BoundedReader,
        instruments: Instruments,
    ) -> None:
        self.rows |= {
            "materializations": [record.row() for record in realizer.records.values()],
            "fetches": [dict(row) for row in reader.records()],
            "sources": [dict(row) for row in reader.source_rows()],
            "steps": recorder.steps,
            "step_times": recorder.step_times,
            "correctness": recorder.correctness,
            **({"ownership": recorder.ownership} if recorder.ownership else {}),
            "ledger": instruments.ledger,
            "lifecycle": instruments.lifecycle,
            "distributions": [dict(row) for row in distribution_rows()],
        }
        if self.chain is not None:
            self.rows |= self.chain.rows(recorder.steps)
        for ledger in instruments.device_ledgers:
            self.rows["device_arenas"] = ledger.arena_rows
            self.rows["device_memory"] = ledger.memory_rows


def hashing_team() -> Team:
    """As many threads as there are cores, for a checkpoint's bytes and those of residents."""
    return Team(min(num_usable_cores(), MAX_HASHING_THREADS))


def read_entries(manifest: tuple[ManifestEntry, ...]) -> list[ReadEntry]:
    """The reads that a manifest allows."""
    return [
        ReadEntry(
            key=entry.key,
            file=entry.file,
            dtype=entry.dtype,
            shape=tuple(entry.shape),
            num_bytes=entry.source_bytes,
            sha256=entry.sha256,
        )
        for entry in manifest
    ]


def find_arena(plan: Plan, arenas: Mapping[str, Arena], representation: str) -> Arena | None:
    """The live arena of the first materialization in a representation."""
    for intent in plan.materializations:
        if intent.representation == representation and intent.id in arenas:
            return arenas[intent.id]
    return None


def reference_tensors(plan: Plan, arenas: Mapping[str, Arena]) -> Mapping[str, torch.Tensor] | None:
    """The resident reference outputs, or ``None``."""
    arena = find_arena(plan, arenas, REFERENCE_OUTPUTS)
    return None if arena is None else arena.tensors


def fill_reference(plan: Plan, fixture: Path, team: Team, arenas: Mapping[str, Arena]) -> None:
    """Read the reference fixture's file into its planned arena."""
    arena = find_arena(plan, arenas, REFERENCE_OUTPUTS)
    if arena is None:
        return
    header = read_header(fixture / FIXTURE_FILE)
    entries = [
        ReadEntry(
            key=key,
            file=FIXTURE_FILE,
            dtype=entry.dtype,
            shape=tuple(entry.shape),
            num_bytes=entry.end - entry.begin,
            sha256=None,
        )
        for key, entry in header.entries.items()
    ]
    reader = BoundedReader(fixture, entries, team)
    source = ReaderSource(reader)
    for name, tensor in arena.tensors.items():
        source.begin(name, tensor)()
    reader.close()


def held_by(executor: Executor, arenas: Mapping[str, Arena]) -> list[tuple[str, str, str]]:
    """(state, materialization, lineage) as the executor's owners hold them now."""
    owner = owner_of(executor, arenas) or "none"
    return [(state, owner, lineage) for state, lineage in executor.observed_authorities().items()]


def main() -> int:
    """Entry of the child process."""
    parser = argparse.ArgumentParser(description="realize one frozen plan, once")
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--realization", type=int, required=True)
    parser.add_argument("--witness-fd", type=int, required=True)
    parser.add_argument("--listen-fd", type=int, help="a listening socket, for the first stage")
    args = parser.parse_args()
    keep_small_pages()
    witness = WitnessClient.from_fd(args.witness_fd)
    listener = None if args.listen_fd is None else socket.socket(fileno=args.listen_fd)
    production = Production(read_job(args.job), witness, args.out, listener)
    try:
        with exhaustion_told():
            production.run()
    except PeerError as error:
        print(str(error), file=sys.stderr, flush=True)
        return PEER_LOST
    finally:
        production.leave()
    production.write(args.realization)
    with exhaustion_told():
        production.observe()
    witness.finish()
    return 0


if __name__ == "__main__":
    run_child(main)
