"""The whole model against transformers: prefill and decode, in every numeric format."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import qwen_small
import torch
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from harness.adapters.qwen3_5_moe.layout import COMMON, ROUTED, QwenLayout
from harness.adapters.qwen3_5_moe.reference import QwenReference
from harness.realize.adapter import Executor

LINEAR, FULL = "linear_attention", "full_attention"
PROMPTS = (1, 3, 63, 64, 65, 200)
DECODE_STEPS = 16
FLOAT32 = 1e-4
"""Relative to the largest logit. Sums in another order; measured are up to 2e-5."""

CONFIGS: dict[str, dict[str, Any]] = {
    "4 experts, top 1": {"num_experts_per_tok": 1},
    "8 experts, top 8": {"num_experts": 8, "num_experts_per_tok": 8},
    "64 experts, top 8": {"num_experts": 64, "num_experts_per_tok": 8},
    "full first": {"layer_types": [FULL, LINEAR, LINEAR]},
    "full only, tied": {"layer_types": [FULL, FULL], "tie_word_embeddings": True},
    "equal heads": {"linear_num_key_heads": 4, "num_key_value_heads": 4},
    "one key head": {"linear_num_key_heads": 1, "num_key_value_heads": 1},
    "wide keys": {"linear_key_head_dim": 24, "linear_value_head_dim": 8},
    "short convolution": {"linear_conv_kernel_dim": 2, "layer_types": [LINEAR, FULL]},
    "whole heads rotated": {
        "layer_types": [LINEAR, FULL],
        "rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 1.0},
    },
    "odd sizes": {
        "hidden_size": 36,
        "moe_intermediate_size": 12,
        "head_dim": 12,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
}


def make_model(**changes: Any) -> tuple[Qwen3_5MoeForCausalLM, dict[str, Any]]:
    """A random model whose norms, decays and gates are not those of a fresh one."""
    document = qwen_small.document(**changes)
    if "layer_types" in changes:
        document["num_hidden_layers"] = len(changes["layer_types"])
    torch.manual_seed(11)
    config = Qwen3_5MoeTextConfig(**{k: v for k, v in document.items() if k != "model_type"})
    model = Qwen3_5MoeForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.uniform_(-2, 1)
            elif parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.normal_(0, 0.25 if "embed" in name else 0.9 / parameter.shape[-1] ** 0.5)
    return model, document


def executor_of(folder: Path, document: dict[str, Any], bench_of: Any, **changes: Any) -> Executor:
    layout = QwenLayout()
    representations = changes.pop("representations", {})
    bench = bench_of(layout, folder, document)
    request = bench.request(max_positions=256, **changes)
    chosen = replace(request, representations=representations)
    return QwenReference().ordinary(folder, chosen).executor


def compare(model: Qwen3_5MoeForCausalLM, executor: Executor, num_prompt: int, chunk: int) -> float:
    """Largest deviation of logits over a prefill and 16 decode steps, relative to the largest."""
    ids = torch.randint(0, model.config.vocab_size, (1, num_prompt + DECODE_STEPS))
    executor.reset()
    worst = 0.0
    with torch.inference_mode():
        theirs = model(input_ids=ids[:, :num_prompt], use_cache=True, logits_to_keep=1)
        for start in range(0, num_prompt, chunk):
            end = min(start + chunk, num_prompt)
            ours = executor.step(ids[0, start:end].tolist(), start, want_logits=end == num_prompt)
        for position in range(num_prompt, num_prompt + DECODE_STEPS):
            expected = theirs.logits[0, -1].float()
            assert ours.logits is not None
            deviation = (ours.logits - expected).abs().max() / expected.abs().max()
            worst = max(worst, float(deviation))
            step = ids[:, position : position + 1]
            theirs = model(input_ids=step, cache=theirs.cache, use_cache=True)
            ours = executor.step(step[0].tolist(), position, want_logits=True)
    return worst


def test_a_step_of_each_kind(tmp_path: Path, bench_of: Any) -> None:
    model, document = make_model()
    qwen_small.write(tmp_path, state_of(model), document)
    executor = executor_of(tmp_path, document, bench_of)
    for num_prompt in (1, 65):
        assert compare(model, executor, num_prompt, chunk=64) < FLOAT32


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_plain_float32(tmp_path: Path, bench_of: Any, name: str) -> None:
    model, document = make_model(**CONFIGS[name])
    qwen_small.write(tmp_path, state_of(model), document)
    executor = executor_of(tmp_path, document, bench_of)
    for num_prompt in PROMPTS:
        assert compare(model, executor, num_prompt, chunk=256) < FLOAT32
    # The recurrence goes on where a chunk ended, wherever that is.
    assert compare(model, executor, 200, chunk=37) < FLOAT32


def state_of(model: Qwen3_5MoeForCausalLM) -> dict[str, torch.Tensor]:
    """Tensors as a checkpoint has them: one per expert, a tied head not at all."""
    tensors = {}
    for key, tensor in model.state_dict().items():
        block, _, name = key.rpartition(".")
        if name == "gate_up_proj":
            for expert, rows in enumerate(tensor):
                gate, up = rows.chunk(2)
                tensors[f"{block}.{expert}.gate_proj.weight"] = gate.clone()
                tensors[f"{block}.{expert}.up_proj.weight"] = up.clone()
        elif name == "down_proj":
            for expert, rows in enumerate(tensor):
                tensors[f"{block}.{expert}.down_proj.weight"] = rows.clone()
        elif key != "lm_head.weight" or not model.config.tie_word_embeddings:
            tensors[key] = tensor.clone()
    return tensors


def load_dequantized(model: Qwen3_5MoeForCausalLM, tensors: dict[str, torch.Tensor]) -> None:
    """Put the numbers that a quantized checkpoint means into transformers' own model."""
    plain = qwen_small.dequantized(tensors)
    for key, parameter in model.named_parameters():
        block, _, name = key.rpartition(".")
        experts = range(model.config.num_experts)
        if name == "gate_up_proj":
            both = [
                [plain[f"{block}.{e}.{part}_proj.weight"] for part in ("gate", "up")]
                for e in experts
            ]
            value = torch.stack([torch.cat(parts) for parts in both])
        elif name == "down_proj":
            value = torch.stack([plain[f"{block}.{e}.down_proj.weight"] for e in experts])
        else:
            value = plain[key]
        parameter.data.copy_(value)


MORE_EXPERTS: dict[str, Any] = {
    "num_experts": 16,
    "num_experts_per_tok": 3,
    "layer_types": [FULL, LINEAR],
}
FORMS: dict[str, dict[str, str]] = {
    "as merged": {},
    "dequantized": {COMMON: "common-fp32-dequantized", ROUTED: "fp32-dequantized"},
    "experts dequantized": {ROUTED: "fp32-dequantized"},
}


@pytest.mark.parametrize(
    ("form", "changes"),
    [
        pytest.param(form, changes, marks=[pytest.mark.slow] if changes or index else [])
        for index, form in enumerate(FORMS)
        for changes in ({}, MORE_EXPERTS)
    ],
)
def test_quantized_float32(
    tmp_path: Path, bench_of: Any, form: str, changes: dict[str, Any]
) -> None:
    model, document = make_model(**changes)
    tensors = qwen_small.quantized(state_of(model))
    load_dequantized(model, tensors)
    document["quantization_config"] = qwen_small.MIXTURE
    qwen_small.write(tmp_path, tensors, document)
    executor = executor_of(tmp_path, document, bench_of, representations=FORMS[form])
    for num_prompt in (1, 65, 200) if changes else (3, 65):
        assert compare(model, executor, num_prompt, chunk=64) < FLOAT32


@pytest.mark.slow
@pytest.mark.parametrize("form", ["as merged", "dequantized"])
@pytest.mark.parametrize(
    ("head", "algorithm"), [(qwen_small.nvfp4, "NVFP4"), (qwen_small.fp8, "FP8")]
)
def test_packed_mixers_and_quantized_heads(
    tmp_path: Path, bench_of: Any, form: str, head: qwen_small.Quantizer, algorithm: str
) -> None:
    model, document = make_model(layer_types=[LINEAR, FULL])
    tensors = qwen_small.quantized(state_of(model), mixers=qwen_small.nvfp4, head=head)
    load_dequantized(model, tensors)
    names = {key.removesuffix(".weight_scale") for key in tensors if key.endswith(".weight_scale")}
    document["quantization_config"] = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {name: {"quant_algo": "NVFP4"} for name in names}
        | {"lm_head": {"quant_algo": algorithm}},
    }
    qwen_small.write(tmp_path, tensors, document)
    executor = executor_of(tmp_path, document, bench_of, representations=FORMS[form])
    assert compare(model, executor, 65, chunk=64) < FLOAT32


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "published mixture"])
def test_bfloat16_rounds_no_worse_than_transformers(
    tmp_path: Path, bench_of: Any, packed: bool
) -> None:
    """Against float32 arithmetic on the same weights, beside transformers' own bfloat16.

    Both round each layer's rows a few times to 2**-8, in other places; no limit follows from that
    alone, since one rounding may turn the choice of an expert. So the yardstick is the deviation
    that another implementation of the same precision has.
    """
    model, document = make_model()
    model.to(torch.bfloat16)
    tensors = state_of(model)
    if packed:
        tensors = qwen_small.quantized({key: t.float() for key, t in tensors.items()})
        load_dequantized(model, tensors)
        document["quantization_config"] = qwen_small.MIXTURE
    qwen_small.write(tmp_path, tensors, document)
    forms = {COMMON: "common-bf16-dequantized", ROUTED: "bf16-dequantized"} if packed else {}
    executor = executor_of(tmp_path, document, bench_of, dtype="bfloat16", representations=forms)
    exact, _ = make_model()
    exact.load_state_dict({key: t.float() for key, t in model.state_dict().items()})
    ours, theirs = [], []
    with torch.inference_mode():
        for _ in range(8):
            ids = torch.randint(0, 67, (1, 65))
            expected = exact(input_ids=ids, logits_to_keep=1).logits[0, -1]
            executor.reset()
            got = executor.step(ids[0].tolist(), 0, want_logits=True).logits
            assert got is not None
            rounded = model(input_ids=ids, logits_to_keep=1).logits[0, -1].float()
            largest = expected.abs().max()
            ours.append(float((got - expected).abs().max() / largest))
            theirs.append(float((rounded - expected).abs().max() / largest))
    assert sorted(ours)[4] < 1.5 * sorted(theirs)[4] < 0.1
