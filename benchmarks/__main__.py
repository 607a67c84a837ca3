"""``python -m benchmarks``: ours beside the peers, interleaved in one run.

    make environments where they are missing -> plans and files of the same weights
        -> start every worker -> rounds, each contender once in turn -> JSON, table, picture

Every round also measures the machine's limits. What cannot take part is listed with its reason.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import contenders, environments, figures, show
from benchmarks.contenders import MACHINE, PEERS, Contender, Process
from benchmarks.environments import Unavailable
from benchmarks.worker import Worker, WorkerError

TEXT = """The measurement of a program says as much about the machine as about the program. A
benchmark that runs one contender in the morning and the other at noon compares two machines. So
here every contender takes its turn in every round, and what is compared is the ratio within a
round. A median is stated with the smallest and the largest value beside it, because a single
number hides how far it can be trusted. What could not be measured is listed with the reason, and
what the machine could do at most stands in the same table. Weights, prompt and number of threads
are the same for all, and the tokens that each of them chose are compared one by one."""
KERNEL_SETS = ("native-cpu/1+invariant", "torch-cpu/1", "torch-cpu-invariant/1+invariant")
LOAD_S, GENERATE_S = 600, 120
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured."""

    dtype: str
    kernel_sets: tuple[str, ...]
    """Ours; the first that can be had is compared with the others. ``NAME+invariant`` asks the plan
    for batch invariance."""
    peers: tuple[str, ...]
    threads: int
    prompt: int
    steps: int
    rounds: int


@dataclass(kw_only=True)
class Field:
    """Those who take part, and why others do not."""

    processes: dict[str, Process] = field(default_factory=dict)
    contenders: dict[str, Contender] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


def gather(settings: Settings, checkpoint: Path, prompt: list[int], work: Path, say: Say) -> Field:
    """Find out who can take part, and make what each of them loads."""
    found = Field(processes={MACHINE: contenders.machine(settings.threads)})
    for index, chosen in enumerate(settings.kernel_sets):
        kernel_set, _, invariant = chosen.partition("+")
        name = f"harness {chosen}"
        try:
            plan = contenders.derive_plan(
                work / f"{settings.dtype}-{index}.json",
                prompt,
                dtype=settings.dtype,
                kernel_set=kernel_set,
                invariant=bool(invariant),
                steps=settings.steps,
                threads=settings.threads,
            )
        except Unavailable as why:
            found.absent[name] = str(why)
            continue
        found.processes[name] = contenders.harness(plan, checkpoint, settings.threads)
        found.contenders[name] = Contender(process=name, options={"sentinels": True})
        bare = Contender(process=name, options={"sentinels": False})
        found.contenders[f"{name}, sentinels off"] = bare
    for name in settings.peers:
        try:
            python = environments.python_of(name, environments.ROOT, retry=False, say=say)
        except Unavailable as why:
            found.absent[name] = str(why)
            continue
        weights = checkpoint
        if name == "llama.cpp":
            from benchmarks.gguf_file import write_gguf

            weights = work / f"{settings.dtype}.gguf"
            write_gguf(checkpoint, weights, settings.dtype)
        found.processes[name] = contenders.peer(
            name,
            python,
            weights,
            dtype=settings.dtype,
            threads=settings.threads,
            positions=settings.prompt + settings.steps,
        )
        found.contenders[name] = Contender(process=name)
    return found


def start(found: Field, say: Say) -> tuple[dict[str, Worker], dict[str, Any]]:
    """Start and load every worker, one after another; those that fail are absent."""
    workers, loaded = {}, {}
    for name, process in found.processes.items():
        say(f"loading {name}")
        worker = Worker(process.argv, process.environment)
        try:
            loaded[name] = worker.ask("load", LOAD_S, **process.load)
            workers[name] = worker
        except WorkerError as why:
            worker.close()
            found.absent[name] = str(why)
    return workers, loaded


def play(
    settings: Settings, found: Field, workers: dict[str, Worker], prompt: list[int], say: Say
) -> tuple[dict[str, list[figures.Round]], list[dict[str, Any]]]:
    """Every contender once in each round, after one that is thrown away."""
    rounds: dict[str, list[figures.Round]] = {
        name: [] for name, one in found.contenders.items() if one.process in workers
    }
    machine: list[dict[str, Any]] = []
    for number in range(settings.rounds + 1):
        say(f"round {number} of {settings.rounds}")
        limit = workers[MACHINE].ask("measure", GENERATE_S)
        if number:
            machine.append(limit)
        for name in list(rounds):
            one = found.contenders[name]
            try:
                answer = workers[one.process].ask(
                    "generate",
                    GENERATE_S,
                    prompt=prompt,
                    decode_steps=settings.steps,
                    **one.options,
                )
                result = figures.round_of(answer, settings.prompt, settings.steps)
            except (WorkerError, ValueError) as why:
                # A contender that fails once has no series that could be compared.
                del rounds[name]
                found.absent[name] = f"round {number}: {why}"
                continue
            if number:
                rounds[name].append(result)
    return rounds, machine


def compare(settings: Settings, checkpoint: Path, say: Say) -> dict[str, Any]:
    """One comparison, from environments to figures."""
    prompt = prompt_ids(checkpoint, settings.prompt)
    with tempfile.TemporaryDirectory(prefix="benchmark.") as folder:
        found = gather(settings, checkpoint, prompt, Path(folder), say)
        workers, loaded = start(found, say)
        try:
            rounds, machine = play(settings, found, workers, prompt, say)
        finally:
            for worker in workers.values():
                worker.close()
    model = model_of(checkpoint, settings.dtype)
    limit = figures.limits(machine, model, settings.dtype, settings.prompt, settings.steps)
    ours = next((name for name in rounds if name.startswith("harness ")), None)
    if ours is None:
        raise Unavailable(f"no kernel set of ours: {found.absent}")
    return {
        "schema": "harness.benchmark/2",
        **vars(settings),
        "ours": ours,
        "versions": {name: answer.get("version") for name, answer in loaded.items()},
        "machine": machine,
        "limits_tok_per_sec": limit,
        "absent": found.absent,
        "contenders": figures.summarize(rounds, ours, limit),
    }


def prompt_ids(checkpoint: Path, length: int) -> list[int]:
    """The first tokens of a text, by the checkpoint's own tokenizer."""
    from tokenizers import Tokenizer

    ids = list(Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(TEXT).ids)
    if len(ids) < length:
        raise ValueError(f"the text has {len(ids)} tokens, {length} were asked for")
    return ids[:length]


def model_of(checkpoint: Path, dtype: str) -> figures.Model:
    """What the model moves and multiplies, from the checkpoint's header and configuration."""
    from harness.checkpoint.header import read_header

    config = json.loads((checkpoint / "config.json").read_text())
    shapes = {
        key: entry.shape
        for key, entry in read_header(checkpoint / "model.safetensors").entries.items()
    }
    size = {"bfloat16": 2, "float32": 4}[dtype]
    matrices = {key: shape[0] * shape[1] for key, shape in shapes.items() if len(shape) == 2}
    # Tied: the table is the head. Otherwise one row of it is read, which is nothing.
    table = matrices.pop("model.embed_tokens.weight")
    head = matrices.pop("lm_head.weight", table)
    vectors = sum(shape[0] for shape in shapes.values() if len(shape) == 1)
    heads = config["num_key_value_heads"] * config["head_dim"]
    return figures.Model(
        weight_bytes=size * (sum(matrices.values()) + head + vectors),
        kv_bytes_per_position=size * 2 * config["num_hidden_layers"] * heads,
        matrix_elements=sum(matrices.values()),
        head_elements=head,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Compare in each dtype; returns 3 when ours could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more rounds, every kernel set")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--kernel-sets", default=",".join(KERNEL_SETS))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--out", type=Path, default=Path("runs") / "benchmark")
    args = parser.parse_args(argv)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    comparisons = []
    try:
        checkpoint = Path(contenders.run_harness("checkpoint", "fetch", "experiment=quickstart"))
        for dtype in args.dtypes.split(","):
            settings = Settings(
                dtype=dtype,
                kernel_sets=tuple(args.kernel_sets.split(",")),
                peers=tuple(name for name in args.peers.split(",") if name),
                threads=args.threads,
                prompt=args.prompt,
                steps=args.steps,
                rounds=args.rounds or (15 if args.full else 5),
            )
            comparisons.append(compare(settings, checkpoint, say))
            print("\n".join(show.table(comparisons[-1])), end="\n\n")
    except (Unavailable, WorkerError) as why:
        print(f"cannot be measured here: {why}", file=sys.stderr)
        return 3
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "bench.json").write_text(json.dumps(comparisons, indent=2, sort_keys=True) + "\n")
    show.picture(comparisons, args.out / "bench.svg")
    print(f"written to {args.out}/bench.json and bench.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
