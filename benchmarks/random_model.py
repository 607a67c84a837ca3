"""An executor of random weights in SmolLM2-135M's shapes; its prefill and decode steps, timed."""

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from harness.adapters.llama.layout import LlamaLayout
from harness.plan.layout import LayoutRequest
from harness.plan.records import Determinism, ModelRange, Workload

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
    """The whole model and a workload, as the arguments of a benchmark have them."""
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


def run(executor: Any, request: LayoutRequest, timings: Timings) -> None:
    """One prefill and its decode steps, from an empty state."""
    work = request.workload
    prompt, chunk = work.prompt_token_ids, work.chunk_rows
    executor.reset()
    began = time.perf_counter()
    for start in range(0, len(prompt), chunk):
        rows = prompt[start : start + chunk]
        output = executor.step(rows, start, want_logits=start + chunk >= len(prompt))
    token = executor.choose(output.logits).token
    timings.prefill.append(time.perf_counter() - began)
    timings.tokens = [token]
    for step in range(work.decode_steps):
        began = time.perf_counter()
        output = executor.step((token,), len(prompt) + step, want_logits=True)
        token = executor.choose(output.logits).token
        timings.decode.append(time.perf_counter() - began)
        timings.tokens.append(token)
