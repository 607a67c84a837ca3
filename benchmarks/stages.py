"""What a chain of stages gains in prefill, and what it costs per token, beside what was to expect.

    python -m benchmarks.stages [--stages 2] [--prompt 512] [--chunk 64] [--json out.json]

One process of one thread for each stage, pinned to one core each while there are enough, random
weights in SmolLM2-135M's shapes, on the loopback. The same prompt is prefilled three times:
*pipelined*, as the harness runs it, *in lockstep*, where no stage begins a chunk before the last
stage has ended the one before, and by one process with one thread. For C chunks and S stages of
equal work the ideal gain over both is C S / (C + S - 1). A token takes what the stages compute one
after another, and the way of its plane and of the token back, as timed with frames that nobody
computes on.

With ``--wait-ms`` each stage waits so long for a step instead of computing it, as for a device that
computes elsewhere: that shows the schedule's own gain where there is no core for each stage.

With ``--delay-ms`` and ``--mbit`` each stage is on a host of its own, on a network with that delay
and rate (:mod:`benchmarks.network`). A token is then also set beside what bytes and latency
predict: what the stages compute and, for each of S frames, 3 delay + 8 bytes / rate. A frame takes
the way three times, since its header is compared before what follows is taken; ``token_least_s`` is
the same with one way.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.network import Network, address
from benchmarks.random_model import SMOLLM2_135M, make_request, write_random
from harness.adapters.llama.layout import LlamaLayout
from harness.adapters.llama.reference import LlamaReference
from harness.plan.balance import balanced_cuts, edges_of, range_bytes
from harness.plan.layout import LayoutRequest
from harness.plan.records import ModelRange
from harness.realize.adapter import Choice, StepOutput
from harness.realize.schedule import Schedule, schedule_of
from harness.run.conditions import apply_determinism
from harness.stages.chain import PlaneForm, Stage
from harness.stages.frames import empty_header
from harness.stages.listener import LOOPBACK, listen
from harness.stages.rendezvous import Meeting, join
from harness.stages.transport import Transport

PINGS = 200
HEADER_BYTES = empty_header().nbytes
TOKEN_BYTES = 8
WAYS_OF_A_FRAME = 3
"""The header, that the receiver is ready for what follows it, and that."""
PORT = 29500


class Waiting:
    """An executor whose every step takes the same time, and that computes nothing."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s

    def reset(self) -> None:
        """Nothing is held."""

    def step(self, token_ids: Sequence[int], start_position: int, *, want_logits: bool) -> Any:
        """A plane of the ids' rows, after the wait."""
        rows = torch.zeros(len(token_ids), SMOLLM2_135M["hidden_size"])
        return self.step_plane(rows, start_position, want_logits=want_logits)

    def step_plane(self, plane: torch.Tensor, start_position: int, *, want_logits: bool) -> Any:
        """The plane, after the wait."""
        del start_position
        time.sleep(self._wait_s)
        return StepOutput(plane=plane.clone(), logits=plane[-1] if want_logits else None)

    def choose(self, logits: torch.Tensor) -> Choice:
        """Always the first token."""
        del logits
        return Choice(token=0, margin=0.0)


def ranges_of(request: LayoutRequest, num_stages: int) -> list[ModelRange]:
    """The range of each stage, of bytes as even as can be."""
    whole = request.spec
    edges = [(whole.start_layer, whole.end_layer)]
    if num_stages > 1:
        cuts = balanced_cuts(range_bytes(LlamaLayout(), request), num_stages)
        edges = edges_of(cuts, whole.start_layer, whole.end_layer)
    return [
        replace(
            whole,
            start_layer=start,
            end_layer=end,
            owns_embeddings=number == 0,
            owns_final_norm_head=number == num_stages - 1,
        )
        for number, (start, end) in enumerate(edges)
    ]


def prefill(
    stage: Stage, schedule: Schedule, after_chunk: Callable[[], object]
) -> tuple[float, int | None]:
    """Seconds of one prefill, as this stage sees it, and the token after it."""
    stage.open()
    after_chunk()
    began, token = time.perf_counter(), None
    for planned in schedule.steps()[: len(schedule.chunks)]:
        ids = schedule.inputs(planned, None) if stage.takes_token_ids else None
        token = stage.step(planned, ids).token
        after_chunk()
    return time.perf_counter() - began, token


def decode(stage: Stage, schedule: Schedule, chosen: int | None) -> list[float]:
    """Seconds of each decode step."""
    seconds = []
    for planned in schedule.steps()[len(schedule.chunks) :]:
        began = time.perf_counter()
        ids = schedule.inputs(planned, chosen) if stage.takes_token_ids else None
        chosen = stage.step(planned, ids).token
        seconds.append(time.perf_counter() - began)
    return seconds


def way_s(transport: Transport, form: PlaneForm) -> float:
    """Median seconds of one way of a frame with one row, between the first two stages."""
    if transport.num_stages == 1 or transport.stage > 1:
        return 0.0
    peer, seconds = 1 - transport.stage, []
    frame = (empty_header(), torch.zeros(1, form.width, dtype=form.dtype))
    for _ in range(PINGS):
        began = time.perf_counter()
        for turn in (0, 1):
            for tensor in frame:
                if transport.stage == turn:
                    transport.send(tensor, peer, "a ping")
                else:
                    transport.receive(tensor, peer, "a ping")
        seconds.append((time.perf_counter() - began) / 2)
    return statistics.median(seconds)


def run_stage(args: argparse.Namespace) -> None:
    """One stage's process: prints what it measured as one line of JSON."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[args.stage % len(cores)]})
    request = make_request(SMOLLM2_135M, args)
    apply_determinism(request.determinism)
    spec = ranges_of(request, args.stages)[args.stage]
    if args.wait_ms:
        executor: Any = Waiting(args.wait_ms / 1e3)
    else:
        executor = LlamaReference().ordinary(args.folder, replace(request, spec=spec)).executor
    lead, own = (address(0), address(args.stage)) if is_on_hosts(args) else (LOOPBACK, LOOPBACK)
    listener = None if args.stage else listen(lead, args.port)
    meeting = Meeting(
        stage=args.stage, num_stages=args.stages, port=args.port, lead_host=lead, own_host=own
    )
    transport = join(meeting, listener)
    form = PlaneForm(width=SMOLLM2_135M["hidden_size"], dtype=torch.float32)
    stage = Stage(executor, transport, nonce=1, form=form)
    schedule = schedule_of(request.workload, request.spec)

    def wait_for_all() -> None:
        stage.settle()
        transport.gather(torch.zeros(1), "that it ended a chunk")

    found: dict[str, Any] = {"pipelined": [], "lockstep": [], "decode": []}
    prefill(stage, schedule, wait_for_all)
    for _ in range(args.rounds):
        found["lockstep"].append(prefill(stage, schedule, wait_for_all)[0])
        seconds, token = prefill(stage, schedule, lambda: None)
        found["pipelined"].append(seconds)
        del stage.times[:]
        found["decode"] += decode(stage, schedule, token)
        found.setdefault("compute", []).extend(time.compute_ns / 1e9 for time in stage.times)
    stage.settle()
    found["way"] = way_s(transport, form)
    transport.gather(torch.zeros(1), "its end")
    print(json.dumps(found), flush=True)


def is_on_hosts(args: argparse.Namespace) -> bool:
    """Whether each stage is on a host of its own."""
    return bool(args.delay_ms or args.mbit)


@contextmanager
def hosts_of(args: argparse.Namespace, num_stages: int) -> Iterator[Callable[[int], Sequence[str]]]:
    """What makes a command run where a stage is."""
    if not is_on_hosts(args):
        yield lambda number: ()
        return
    rate = args.mbit * 1e6 / 8 if args.mbit else None
    with Network(num_stages, delay_s=args.delay_ms / 1e3, bytes_per_s=rate) as network:
        yield network.inside


def run_chain(args: argparse.Namespace, folder: Path, num_stages: int) -> list[dict[str, Any]]:
    """Run every stage as a process of its own; returns what each measured."""
    with listen() as free:
        port = PORT if is_on_hosts(args) else free.getsockname()[1]
    shared = ["--prompt", args.prompt, "--chunk", args.chunk, "--decode", args.decode]
    shared += ["--rounds", args.rounds, "--stages", num_stages, "--port", port, "--folder", folder]
    shared += ["--wait-ms", args.wait_ms, "--delay-ms", args.delay_ms, "--mbit", args.mbit]
    command = [sys.executable, "-m", "benchmarks.stages", *map(str, shared), "--stage"]
    with hosts_of(args, num_stages) as inside:
        running = [
            subprocess.Popen(
                [*inside(number), *command, str(number)], stdout=subprocess.PIPE, text=True
            )
            for number in range(num_stages)
        ]
        found = []
        for process in running:
            out, _ = process.communicate(timeout=600)
            if process.returncode:
                raise SystemExit(f"a stage ended by {process.returncode}")
            found.append(json.loads(out.splitlines()[-1]))
    return found


def ways_s(args: argparse.Namespace, num_stages: int, ways_of_a_frame: int) -> float:
    """Seconds that a token is on its way through all stages, by bytes and latency alone."""
    plane_bytes = SMOLLM2_135M["hidden_size"] * 4
    num_bytes = num_stages * HEADER_BYTES + (num_stages - 1) * plane_bytes + TOKEN_BYTES
    at_rate_s = num_bytes * 8 / (args.mbit * 1e6) if args.mbit else 0.0
    return num_stages * ways_of_a_frame * args.delay_ms / 1e3 + at_rate_s


def summarize(
    args: argparse.Namespace, alone: Sequence[dict[str, Any]], stages: Sequence[dict[str, Any]]
) -> dict[str, float]:
    """Medians of a chain, beside one process, and beside what was to expect."""
    first, median = stages[0], statistics.median
    num_chunks = -(-args.prompt // args.chunk)
    ideal = num_chunks * len(stages) / (num_chunks + len(stages) - 1)
    computed = sum(median(stage["compute"]) for stage in stages)
    predicted = {
        "token_least_s": computed + ways_s(args, len(stages), 1),
        "token_predicted_s": computed + ways_s(args, len(stages), WAYS_OF_A_FRAME),
    }
    return {
        "num_stages": len(stages),
        "num_cores": len(os.sched_getaffinity(0)),
        "num_chunks": num_chunks,
        "prefill_alone_s": median(alone[0]["pipelined"]),
        "prefill_lockstep_s": median(first["lockstep"]),
        "prefill_pipelined_s": median(first["pipelined"]),
        "gain": median(first["lockstep"]) / median(first["pipelined"]),
        "gain_over_alone": median(alone[0]["pipelined"]) / median(first["pipelined"]),
        "ideal_gain": ideal,
        "token_alone_s": median(alone[0]["decode"]),
        "token_s": median(first["decode"]),
        "token_expected_s": computed + len(stages) * first["way"],
        "frame_s": first["way"],
        **(predicted if is_on_hosts(args) else {}),
        **(
            {"token_predicted_s": computed + ways_s(args, len(stages))} if is_on_hosts(args) else {}
        ),
    }


def main(argv: Sequence[str] | None = None) -> dict[str, float] | None:
    """Measure, print and write; or be one stage of a chain."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages", description=__doc__)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wait-ms", type=float, default=0.0)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="of each packet, one way")
    parser.add_argument("--mbit", type=float, default=0.0, help="per second, of each host")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--stage", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--is-inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.set_defaults(dtype="float32", threads=1, kernel_set="torch-cpu/1")
    args = parser.parse_args(argv)
    if args.stage is not None:
        run_stage(args)
        return None
    if is_on_hosts(args) and not args.is_inside:
        # Networks can be made in a user namespace of one's own.
        words = list(sys.argv[1:] if argv is None else argv)
        inside = [sys.executable, "-m", "benchmarks.stages", "--is-inside", *words]
        subprocess.run(["unshare", "-rn", *inside], check=True)
        return None
    with tempfile.TemporaryDirectory() as folder:
        write_random(Path(folder), torch.float32)
        alone = run_chain(args, Path(folder), 1)
        stages = run_chain(args, Path(folder), args.stages)
    summary = summarize(args, alone, stages)
    for name, value in summary.items():
        print(f"{name:<22}{value:.6g}")
    if args.json is not None:
        args.json.write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n")
    return summary


if __name__ == "__main__":
    main()
