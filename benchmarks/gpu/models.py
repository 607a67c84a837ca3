"""Decode of a made-up model of each family: eager, replayed, with sentinels, beside others.

Random weights: speed and equality are measured, no text. Knows families by name only.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.device import Device
from benchmarks.gpu.invariance import ordinary_products
from benchmarks.gpu.made import MadeModel, make_request
from benchmarks.gpu.peers import transformers_seconds
from harness.plan.layout import LayoutRequest
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
    """Medians in seconds, of a decode step or of the whole prompt."""

    family: str
    prefill_s: float
    eager_s: float
    replayed_s: float
    guarded_s: float
    """Replayed, and then digested, counted and compared."""
    ordinary_prefill_s: float
    """With torch's own products, which are not batch-invariant."""
    ordinary_replayed_s: float
    transformers_s: float | None
    not_executed: str | None
    """Why there is no figure of transformers."""
    graph_equals_eager: bool
    chunks_equal: bool
    """Whether a prompt in uneven chunks gives the bits of one at once, state included."""


def measure(
    family: str, device: Device, kernel_set: str, *, dry: bool, with_peer: bool = True
) -> Speed:
    """Measure one family; ``with_peer`` says whether there is time for transformers."""
    document = documents(dry=dry)[family]
    prompt, steps = (8, 3) if dry else (512, 64)
    request = make_request(family, document, kernel_set, prompt, steps)
    model = MadeModel(family, request, device)
    found = _own(model, device)
    model.release()
    device.give_back()
    peer, reason = None, "no time was left"
    if with_peer:
        ids = request.workload.prompt_token_ids
        peer, reason = transformers_seconds(document, ids, steps, device)
        device.give_back()
    return Speed(family=family, transformers_s=peer, not_executed=reason, **found)


def _own(model: MadeModel, device: Device) -> dict[str, Any]:
    request = model.request
    eager = model.eager()
    prefill = _prefill(eager, request, device)
    prompt = len(request.workload.prompt_token_ids)
    whole, cut = (_after(eager, request, cuts) for cuts in ((), (1, prompt // 3)))
    eager_s, planes = _decode(eager, request, device, None)
    recorded = model.recorded()
    _decode(recorded, request, device, None)  # runs it once, and records
    replayed_s, again = _decode(recorded, request, device, None)
    guarded_s, _ = _decode(recorded, request, device, _sentinels(planes, request))
    with ordinary_products(request.determinism.kernel_set):
        ordinary = model.recorded()
    ordinary_prefill = _prefill(ordinary, request, device)
    _decode(ordinary, request, device, None)
    ordinary_s, _ = _decode(ordinary, request, device, None)
    return {
        "prefill_s": prefill,
        "eager_s": eager_s,
        "replayed_s": replayed_s,
        "guarded_s": guarded_s,
        "ordinary_prefill_s": ordinary_prefill,
        "ordinary_replayed_s": ordinary_s,
        "graph_equals_eager": _same(planes, again),
        "chunks_equal": _same(whole, cut),
    }


def _same(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return all(
        torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        for one, other in zip(some, others, strict=True)
    )


def _prefill(executor: Any, request: LayoutRequest, device: Device) -> float:
    """Median seconds of the whole prompt in one step."""
    prompt, seconds = request.workload.prompt_token_ids, []
    for _ in range(4):
        executor.reset()
        device.synchronize()
        began = time.perf_counter()
        executor.step(prompt, 0, want_logits=True)
        device.synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def _after(executor: Any, request: LayoutRequest, cuts: Sequence[int]) -> list[torch.Tensor]:
    """Logits of the prompt's last row, and the whole state after it, for a prompt that is cut."""
    prompt = request.workload.prompt_token_ids
    executor.reset()
    for begin, end in zip((0, *cuts), (*cuts, len(prompt)), strict=True):
        output = executor.step(prompt[begin:end], begin, want_logits=end == len(prompt))
    return [output.logits.clone(), *(t.clone() for t in executor.declared_state().values())]


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
