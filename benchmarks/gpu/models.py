"""Decode of a made-up model of each family: eager, replayed, with sentinels, beside transformers.

Random weights: speed and equality are measured, no text. Knows families by name only.
"""

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.device import Device
from harness.adapters.families import layout_for, reference_for
from harness.checkpoint.synthetic_source import fetch
from harness.plan.layout import LayoutRequest
from harness.plan.records import Determinism, ModelRange, Workload
from harness.realize.recorder import StepRecorder

_SHARED = {
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
}
_QWEN = {
    "model_type": "qwen3_5_moe_text",
    "full_attention_interval": 4,
    "attn_output_gate": True,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}


def documents(*, dry: bool) -> dict[str, dict[str, Any]]:
    """A ``config.json`` per family: about a billion parameters, or a few thousand in a dry run."""
    hidden, layers, size, vocabulary = (64, 4, 32, 512) if dry else (2048, 16, 128, 32_000)
    common = {
        **_SHARED,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // size,
        "num_key_value_heads": max(1, hidden // size // 4),
        "head_dim": size,
        "intermediate_size": 4 * hidden,
        "tie_word_embeddings": True,
    }
    experts = {
        "linear_key_head_dim": size,
        "linear_value_head_dim": size,
        "linear_num_key_heads": max(1, hidden // size // 2),
        "linear_num_value_heads": hidden // size,
        "moe_intermediate_size": hidden // 4,
        "shared_expert_intermediate_size": hidden // 4,
        "num_experts": 4 if dry else 32,
        "num_experts_per_tok": 2 if dry else 8,
    }
    text = {k: v for k, v in common.items() if k != "intermediate_size"} | experts | _QWEN
    return {
        "llama": {
            **common,
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "rope_theta": 10_000.0,
            "mlp_bias": False,
        },
        "gemma": {
            **common,
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "query_pre_attn_scalar": size,
            "sliding_window": 64,
            "sliding_window_pattern": 4,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "hidden_activation": "gelu_pytorch_tanh",
        },
        "qwen3_5_moe": {
            "architectures": ["Qwen3_5MoeForCausalLM"],
            **text,
        },
    }


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds of a decode step, medians; ``None`` where it was not executed, with the reason."""

    family: str
    eager_s: float
    replayed_s: float
    guarded_s: float
    """Replayed, and then digested, counted and compared."""
    transformers_s: float | None
    not_executed: str | None
    graph_equals_eager: bool


def measure(family: str, device: Device, kernel_set: str, *, dry: bool) -> Speed:
    """Measure one family."""
    document = documents(dry=dry)[family]
    layout = layout_for(family)
    prompt, steps = (8, 3) if dry else (128, 64)
    with tempfile.TemporaryDirectory() as folder:
        root = _checkpoint(Path(folder), family, document)
        request = _request(family, document, kernel_set, prompt, steps)
        with device.device:
            executor = reference_for(family).ordinary(root, request).executor
        eager, planes = _decode(executor, request, device, None)
        buffers = {
            spec.name: torch.zeros(
                spec.shape, dtype=getattr(torch, spec.dtype), device=device.device
            )
            for spec in layout.tensors(
                replace(request, workload=replace(request.workload, decode_mode="recorded")),
                "state.decode-buffers",
                "static-buffers",
                (),
            )
        }
        executor.record_decode(prompt, buffers, device.record)
        _decode(executor, request, device, None)  # records
        replayed, again = _decode(executor, request, device, None)
        guarded, _ = _decode(executor, request, device, _sentinels(planes, request))
        peer, reason = _transformers(root, document, request, device)
    return Speed(
        family=family,
        eager_s=eager,
        replayed_s=replayed,
        guarded_s=guarded,
        transformers_s=peer,
        not_executed=reason,
        graph_equals_eager=all(
            torch.equal(one.view(torch.uint8), other.view(torch.uint8))
            for one, other in zip(planes, again, strict=True)
        ),
    )


def _checkpoint(folder: Path, family: str, document: Mapping[str, Any]) -> Path:
    source = {
        "kind": "synthetic",
        "generator": "shake256/1",
        "seed": 1,
        "family": family,
        "dtype": "bfloat16",
        "config": dict(document),
    }
    tensors = layout_for(family).synthetic_tensors
    return fetch(source, folder, lambda text, done=None: None, tensors=tensors, allow_large=True)


def _request(
    family: str, document: Mapping[str, Any], kernel_set: str, prompt: int, steps: int
) -> LayoutRequest:
    config = layout_for(family).parse_config(document)
    ids = tuple((31 * i * i + 17 * i + 1) % int(document["vocab_size"]) for i in range(prompt))
    return LayoutRequest(
        config=config,
        spec=ModelRange(
            start_layer=0,
            end_layer=int(config["num_layers"]),
            owns_embeddings=True,
            owns_final_norm_head=True,
            model_repository="benchmark",
            revision="0",
        ),
        determinism=Determinism(
            dtype="bfloat16",
            num_threads=torch.get_num_threads(),
            deterministic_algorithms=True,
            batch_invariant=False,
            kernel_set=kernel_set,
        ),
        workload=Workload(
            prompt_token_ids=ids,
            chunk_rows=prompt,
            decode_steps=steps,
            repetitions=1,
            fresh_realizations=1,
            sampling="greedy",
            max_positions=prompt + steps,
        ),
        staging="none",
    )


PerStep = Callable[[Any, Any, str, int, int], None]


def _decode(
    executor: Any, request: LayoutRequest, device: Device, per_step: PerStep | None
) -> tuple[float, list[torch.Tensor]]:
    """Median seconds of a step, and the plane of each."""
    prompt = request.workload.prompt_token_ids
    executor.reset()
    output = executor.step(prompt, 0, want_logits=True)
    token = executor.choose(output.logits).token
    seconds, planes = [], []
    for index in range(request.workload.decode_steps):
        device.synchronize()
        began = time.perf_counter()
        output = executor.step((token,), len(prompt) + index, want_logits=True)
        choice = executor.choose(output.logits)
        if per_step is not None:
            per_step(output, choice, "decode", index, len(prompt) + index)
        device.synchronize()
        seconds.append(time.perf_counter() - began)
        token = choice.token
        planes.append(output.plane.clone())
    return statistics.median(seconds), planes


def _sentinels(planes: Sequence[torch.Tensor], request: LayoutRequest) -> PerStep:
    """What a producer does after each step, against outputs of the same geometry."""
    vocabulary = int(request.config["vocab_size"])
    steps = request.workload.decode_steps
    recorder = StepRecorder(
        {
            "decode.plane": torch.cat([plane.cpu() for plane in planes]),
            "decode.logits": torch.zeros(steps, vocabulary),
        }
    )

    def record(output: Any, choice: Any, phase: str, step: int, start: int) -> None:
        recorder.record(
            output,
            repetition=0,
            phase=phase,
            step=step,
            start_position=start,
            choice=choice,
            duration_ns=0,
            owned=lambda: (),
        )

    return record


def _transformers(
    root: Path, document: Mapping[str, Any], request: LayoutRequest, device: Device
) -> tuple[float | None, str | None]:
    if importlib.util.find_spec("transformers") is None:
        return None, "transformers is not installed"
    try:
        import transformers

        config = transformers.AutoConfig.for_model(**document)
        with device.device:
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        cache = transformers.DynamicCache(config=model.config)
        ids = torch.tensor([request.workload.prompt_token_ids], device=device.device)
        logits = model(input_ids=ids, use_cache=True, cache=cache).logits
        seconds = []
        for _ in range(request.workload.decode_steps):
            token = logits[:, -1].argmax(-1, keepdim=True)
            device.synchronize()
            began = time.perf_counter()
            logits = model(input_ids=token, use_cache=True, cache=cache).logits
            int(logits[0, -1].argmax())
            seconds.append(time.perf_counter() - began)
    except Exception as error:  # whatever keeps a peer from running is its reason
        return None, f"{type(error).__name__}: {error}"[:200]
    return statistics.median(seconds), None
