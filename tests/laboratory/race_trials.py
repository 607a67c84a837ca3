"""Runs prompts several times on fresh state, with a fault or none, and prints digests as JSON.

``race_trials.py FAULT|none CACHE NUM_TRIALS LENGTH...``: for each length the boundaries in
execution order, as ``chunk/name``, each with its digest per trial.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from harness.adapters.families import layout_for, reference_for
from harness.checkpoint.sources import fetch
from harness.plan.layout import LayoutRequest
from harness.plan.records import Determinism, ModelRange, Workload
from harness.state.digests import tensor_digest

CONFIG = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 128,
    # Full first, so that the first window layer is not layer 0; full last, since a later chunk of
    # one row reads, in a window layer, only itself: all positions share one slot.
    "layer_types": [
        "full_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
    ],
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
}
SOURCE = {
    "kind": "synthetic",
    "generator": "shake256/1",
    "seed": 3,
    "family": "gemma",
    "dtype": "float32",
    "config": CONFIG,
}
CHUNK_ROWS = 64


def request(length: int) -> LayoutRequest:
    return LayoutRequest(
        config=layout_for("gemma").parse_config(CONFIG),
        spec=ModelRange(
            start_layer=0,
            end_layer=4,
            owns_embeddings=True,
            owns_final_norm_head=True,
            model_repository="synthetic/raced",
            revision="3",
        ),
        determinism=Determinism(
            dtype="float32",
            num_threads=1,
            deterministic_algorithms=True,
            batch_invariant=False,
            kernel_set="torch-cpu/1",
        ),
        workload=Workload(
            prompt_token_ids=tuple((7 * position + 3) % 64 for position in range(length)),
            chunk_rows=CHUNK_ROWS,
            decode_steps=1,
            repetitions=1,
            fresh_realizations=1,
            sampling="greedy",
            max_positions=length + 1,
        ),
        staging="none",
    )


def trial(executor: Any, names: tuple[str, ...], prompt: tuple[int, ...]) -> dict[str, str]:
    executor.reset()
    found: dict[str, str] = {}
    for start in range(0, len(prompt), CHUNK_ROWS):
        rows = prompt[start : start + CHUNK_ROWS]

        def tap(index: int, tensor: torch.Tensor, chunk: int = start // CHUNK_ROWS) -> None:
            found[f"{chunk}/{names[index]}"] = tensor_digest(tensor)

        executor.step(rows, start, want_logits=start + len(rows) == len(prompt), tap=tap)
    return found


def main() -> None:
    fault, cache, num_trials, *lengths = sys.argv[1:]
    torch.set_num_threads(1)
    if fault != "none":
        importlib.import_module(f"harness.laboratory.faults.{fault}").plant()
    layout = layout_for("gemma")
    folder = fetch(SOURCE, Path(cache), tensors=layout.synthetic_tensors)
    matrix: dict[str, dict[str, list[str]]] = {}
    for length in map(int, lengths):
        asked = request(length)
        executor = reference_for("gemma").ordinary(folder, asked).executor
        names = layout.boundaries(asked.config, asked.spec)
        trials = [
            trial(executor, names, asked.workload.prompt_token_ids) for _ in range(int(num_trials))
        ]
        matrix[str(length)] = {name: [each[name] for each in trials] for name in trials[0]}
    print(json.dumps(matrix))


if __name__ == "__main__":
    main()
