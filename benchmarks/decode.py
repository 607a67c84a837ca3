"""Prefill and decode of the harness's executor beside transformers, interleaved in one process.

Each round runs every contender once, in turn, so that a slow minute of the machine falls on all
of them. Same weights, dtype, threads, prompt and tokens. Prints a table and writes JSON.

    python -m benchmarks                               # random weights, bfloat16 and float32
    python -m benchmarks.decode --checkpoint FOLDER --dtype bfloat16 --json out.json

The contender ``harness+sentinels`` runs what a producer runs after each step: digests of plane and
logits, counts of NaN and infinity, and the exact comparison with reference outputs;
``harness-invariant`` is the batch-invariant kernel set, without sentinels.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from harness.adapters.llama.layout import LlamaLayout
from harness.adapters.llama.reference import LlamaReference
from harness.plan.layout import LayoutRequest
from harness.plan.records import Determinism, ModelRange, Workload
from harness.realize.adapter import Choice, StepOutput
from harness.realize.recorder import ReferenceRows, StepRecorder
from harness.run.conditions import apply_determinism

PerStep = Callable[[StepOutput, Choice | None, str, int, int], None]
"""Called with a step's output and choice, its phase, its index and its first position."""

SMOLLM2_135M: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "tie_word_embeddings": True,
}


@dataclass
class Timings:
    """Seconds of one contender: each prefill, and each decode step."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


def write_random(root: Path, dtype: torch.dtype) -> None:
    """A checkpoint with random weights of the model's shapes."""
    torch.manual_seed(0)
    made = LlamaLayout().synthetic_tensors(SMOLLM2_135M)
    tensors = {
        key: (torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * shape[1] ** -0.5).to(
            dtype
        )
        for key, shape in ((key, tensor.shape) for key, tensor in made.items())
    }
    save_file(tensors, root / "model.safetensors", metadata={"format": "pt"})
    (root / "config.json").write_text(json.dumps(SMOLLM2_135M))


def make_request(document: dict[str, Any], args: argparse.Namespace) -> LayoutRequest:
    config = LlamaLayout().parse_config(document)
    prompt = tuple((31 * i * i + 17 * i + 1) % config["vocab_size"] for i in range(args.prompt))
    return LayoutRequest(
        config=config,
        spec=ModelRange(
            start_layer=0,
            end_layer=config["num_layers"],
            owns_embeddings=True,
            owns_final_norm_head=True,
            model_repository="benchmark",
            revision="0",
        ),
        determinism=Determinism(
            dtype=args.dtype,
            num_threads=args.threads,
            deterministic_algorithms=True,
            batch_invariant=False,
            kernel_set=args.kernel_set,
        ),
        workload=Workload(
            prompt_token_ids=prompt,
            chunk_rows=args.chunk,
            decode_steps=args.decode,
            repetitions=1,
            fresh_realizations=1,
            sampling="greedy",
            max_positions=args.prompt + args.decode,
        ),
        staging="none",
    )


def in_invariant_set(request: LayoutRequest) -> LayoutRequest:
    settings = replace(
        request.determinism, batch_invariant=True, kernel_set="torch-cpu-invariant/1"
    )
    return replace(request, determinism=settings)


def run_harness(
    executor: Any, request: LayoutRequest, timings: Timings, per_step: PerStep | None
) -> None:
    work = request.workload
    prompt, chunk = work.prompt_token_ids, work.chunk_rows
    executor.reset()
    began = time.perf_counter()
    for start in range(0, len(prompt), chunk):
        rows = prompt[start : start + chunk]
        output = executor.step(rows, start, want_logits=start + chunk >= len(prompt))
        choice = None if output.logits is None else executor.choose(output.logits)
        if per_step is not None:
            per_step(output, choice, "prefill", start // chunk, start)
    token = choice.token
    timings.prefill.append(time.perf_counter() - began)
    timings.tokens = [token]
    for step in range(work.decode_steps):
        began = time.perf_counter()
        output = executor.step((token,), len(prompt) + step, want_logits=True)
        choice = executor.choose(output.logits)
        token = choice.token
        if per_step is not None:
            per_step(output, choice, "decode", step, len(prompt) + step)
        timings.decode.append(time.perf_counter() - began)
        timings.tokens.append(token)


@torch.inference_mode()
def run_transformers(model: Any, request: LayoutRequest, timings: Timings) -> None:
    cache = transformers.DynamicCache(config=model.config)
    began = time.perf_counter()
    ids = torch.tensor([request.workload.prompt_token_ids])
    output = model(input_ids=ids, use_cache=True, cache=cache, logits_to_keep=1)
    token = int(output.logits[0, -1].argmax())
    timings.prefill.append(time.perf_counter() - began)
    if cache.get_seq_length() != ids.shape[1]:
        raise RuntimeError("transformers did not fill the cache that it was given")
    timings.tokens = [token]
    for _ in range(request.workload.decode_steps):
        began = time.perf_counter()
        output = model(input_ids=torch.tensor([[token]]), use_cache=True, cache=cache)
        token = int(output.logits[0, -1].argmax())
        timings.decode.append(time.perf_counter() - began)
        timings.tokens.append(token)


def sentinels(executor: Any, request: LayoutRequest) -> PerStep:
    """What a producer does after each step, against this executor's own outputs."""
    config, work = request.config, request.workload
    dtype = getattr(torch, request.determinism.dtype)
    reference = {
        "prefill.plane": torch.zeros(
            len(work.prompt_token_ids), config["hidden_size"], dtype=dtype
        ),
        "prefill.logits": torch.zeros(config["vocab_size"]),
        "decode.plane": torch.zeros(work.decode_steps, config["hidden_size"], dtype=dtype),
        "decode.logits": torch.zeros(work.decode_steps, config["vocab_size"]),
    }
    rows = ReferenceRows(reference)

    def keep(output: StepOutput, choice: Choice | None, phase: str, step: int, start: int) -> None:
        for name, tensor in (("plane", output.plane), ("logits", output.logits)):
            if tensor is not None:
                rows.rows(name, phase, step, start, output.plane.shape[0]).copy_(tensor)

    run_harness(executor, request, Timings(), keep)
    recorder = StepRecorder(reference)

    def record(
        output: StepOutput, choice: Choice | None, phase: str, step: int, start: int
    ) -> None:
        recorder.record(
            output,
            repetition=0,
            phase=phase,
            step=step,
            start_position=start,
            choice=choice,
            duration_ns=0,
            owned=executor.ownership,
        )

    return record


def summarize(timings: dict[str, Timings], args: argparse.Namespace) -> dict[str, Any]:
    rows = {}
    for name, one in timings.items():
        decode = statistics.median(one.decode)
        rows[name] = {
            "decode_ms_median": decode * 1e3,
            "decode_ms_min": min(one.decode) * 1e3,
            "decode_tok_per_sec": 1 / decode,
            "prefill_ms_median": statistics.median(one.prefill) * 1e3,
            "prefill_tok_per_sec": args.prompt / statistics.median(one.prefill),
        }
    peer = rows["transformers"]
    for row in rows.values():
        row["decode_ratio"] = row["decode_tok_per_sec"] / peer["decode_tok_per_sec"]
        row["decode_ratio_of_minima"] = peer["decode_ms_min"] / row["decode_ms_min"]
        row["prefill_ratio"] = row["prefill_tok_per_sec"] / peer["prefill_tok_per_sec"]
    plain, guarded, invariant = (
        rows[name] for name in ("harness", "harness+sentinels", "harness-invariant")
    )
    share = guarded["decode_ms_median"] / plain["decode_ms_median"] - 1
    equal = 0
    for ours, theirs in zip(timings["harness"].tokens, timings["transformers"].tokens, strict=True):
        if ours != theirs:
            break
        equal += 1
    if args.dtype == "float32" and equal < len(timings["harness"].tokens):
        raise RuntimeError(f"the contenders' tokens differ from number {equal} on in float32")
    return {
        "schema": "harness.benchmark/1",
        "dtype": args.dtype,
        "threads": args.threads,
        "prompt": args.prompt,
        "chunk": args.chunk,
        "decode": args.decode,
        "rounds": args.rounds,
        "weights": "random" if args.checkpoint is None else "trained",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "equal_leading_tokens": equal,
        "invariant_share_of_decode": invariant["decode_ms_median"] / plain["decode_ms_median"] - 1,
        "invariant_share_of_fastest_step": invariant["decode_ms_min"] / plain["decode_ms_min"] - 1,
        "sentinel_share_of_decode": share,
        "sentinel_share_of_fastest_step": guarded["decode_ms_min"] / plain["decode_ms_min"] - 1,
        "contenders": rows,
    }


def print_table(summary: dict[str, Any]) -> None:
    names = ("dtype", "threads", "prompt", "chunk", "decode", "weights", "equal_leading_tokens")
    print(", ".join(f"{name} {summary[name]}" for name in names))
    print(
        f"sentinels cost {summary['sentinel_share_of_decode']:+.1%} of the median decode step, "
        f"{summary['sentinel_share_of_fastest_step']:+.1%} of the fastest"
    )
    print(
        f"batch invariance costs {summary['invariant_share_of_decode']:+.1%} of the median decode "
        f"step, {summary['invariant_share_of_fastest_step']:+.1%} of the fastest"
    )
    header = ("contender", "decode ms", "min ms", "tok/s", "ratio", "prefill tok/s", "ratio")
    print("{:<18} {:>10} {:>8} {:>8} {:>6} {:>14} {:>6}".format(*header))
    for name, row in summary["contenders"].items():
        print(
            f"{name:<18} {row['decode_ms_median']:>10.2f} {row['decode_ms_min']:>8.2f} "
            f"{row['decode_tok_per_sec']:>8.1f} {row['decode_ratio']:>6.2f} "
            f"{row['prefill_tok_per_sec']:>14.0f} {row['prefill_ratio']:>6.2f}"
        )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run one comparison, print its table, and return the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernel-set", default="torch-cpu/1")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    dtype = getattr(torch, args.dtype)
    with tempfile.TemporaryDirectory() as folder:
        root = args.checkpoint or Path(folder)
        if args.checkpoint is None:
            write_random(root, dtype)
        request = make_request(json.loads((root / "config.json").read_text()), args)
        apply_determinism(request.determinism)
        executor = LlamaReference().ordinary(root, request).executor
        model = transformers.LlamaForCausalLM.from_pretrained(root, dtype=dtype).eval()
        invariant = LlamaReference().ordinary(root, in_invariant_set(request)).executor
    hook = sentinels(executor, request)
    contenders: dict[str, Callable[[Timings], None]] = {
        "harness": lambda timings: run_harness(executor, request, timings, None),
        "harness+sentinels": lambda timings: run_harness(executor, request, timings, hook),
        "harness-invariant": lambda timings: run_harness(invariant, request, timings, None),
        "transformers": lambda timings: run_transformers(model, request, timings),
    }
    timings = {name: Timings() for name in contenders}
    for run in contenders.values():
        run(Timings())  # first calls allocate and choose primitives
    gc.disable()
    for _ in range(args.rounds):
        for name, run in contenders.items():
            gc.collect()
            run(timings[name])
    summary = summarize(timings, args)
    print_table(summary)
    if args.json is not None:
        args.json.write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n")
    return summary


if __name__ == "__main__":
    main()
