"""Whole models of both generations against an independent implementation of the family."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

S, F = "sliding_attention", "full_attention"
COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "layer_types": [S, F],
    "initializer_range": 0.25,
}
GEMMA3: dict[str, dict[str, Any]] = {
    "window-8-two-of-three-sliding": {
        "sliding_window": 8,
        "num_hidden_layers": 3,
        "layer_types": [S, S, F],
    },
    "window-64": {"sliding_window": 64, "query_pre_attn_scalar": 20},
    "window-65-full-layer-first": {"sliding_window": 65, "layer_types": [F, S]},
    "window-100-linear-scaling": {
        "sliding_window": 100,
        "rope_parameters": {
            F: {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            S: {"rope_type": "default", "rope_theta": 2e3},
        },
    },
    "all-sliding-window-16": {"sliding_window": 16, "layer_types": [S, S]},
    "all-full": {"sliding_window": 8, "layer_types": [F, F]},
    "one-kv-head-softcap": {
        "sliding_window": 63,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "final_logit_softcapping": 3.0,
    },
    "odd-sizes-pattern-of-two": {
        "sliding_window": 33,
        "hidden_size": 42,
        "intermediate_size": 63,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 10,
        "vocab_size": 101,
        "num_hidden_layers": 5,
        "layer_types": None,
        "sliding_window_pattern": 2,
    },
}
GEMMA4: dict[str, dict[str, Any]] = {
    "window-8-values-from-keys": {
        "sliding_window": 8,
        "num_hidden_layers": 3,
        "layer_types": [S, S, F],
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "global_head_dim": 24,
    },
    "window-64-values-apart": {"sliding_window": 64, "global_head_dim": 24},
    "window-65-one-head-size": {
        "sliding_window": 65,
        "global_head_dim": 16,
        "attention_k_eq_v": True,
    },
    "window-100-softcap": {
        "sliding_window": 100,
        "global_head_dim": 32,
        "final_logit_softcapping": 5.0,
    },
    "all-full-values-from-keys": {
        "sliding_window": 8,
        "layer_types": [F, F],
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 2,
        "global_head_dim": 12,
    },
    "window-16-pattern-of-six": {
        "sliding_window": 16,
        "num_hidden_layers": 7,
        "layer_types": None,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 4,
        "global_head_dim": 8,
    },
    "odd-sizes-other-rope": {
        "sliding_window": 33,
        "hidden_size": 42,
        "intermediate_size": 63,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "head_dim": 10,
        "global_head_dim": 14,
        "vocab_size": 101,
        "rope_parameters": {
            F: {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.5,
                "rope_theta": 1e3,
                "factor": 2.0,
            },
            S: {"rope_type": "default", "rope_theta": 5e2},
        },
    },
    "window-1-whole-head-rotates": {
        "sliding_window": 1,
        "global_head_dim": 24,
        "rope_parameters": {
            F: {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
            S: {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}
CASES = [(3, name) for name in GEMMA3] + [(4, name) for name in GEMMA4]
CHUNKS, PAGES = (1, 7, 64), (None, 16)


@pytest.fixture
def make_model() -> Iterator[Callable[..., Any]]:
    """A random model of the other implementation; every tensor matters to its output."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()

    def make(generation: int, **changes: Any) -> Any:
        torch.manual_seed(5)
        if generation == 3:
            config = transformers.Gemma3TextConfig(**(COMMON | changes))
            model = transformers.Gemma3ForCausalLM(config)
        else:
            config = transformers.Gemma4TextConfig(
                **(COMMON | {"hidden_size_per_layer_input": 0} | changes)
            )
            model = transformers.Gemma4ForCausalLM(config)
        return _vary(model)

    yield make
    transformers.logging.set_verbosity(level)


def _vary(model: Any) -> Any:
    """Norms start as ones, scalars as 1: neither would show in an output."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.fill_(0.7 + float(torch.rand(())))
    return model.eval()


def ids_of(length: int) -> list[int]:
    return [(7 * i * i + 3 * i + 1) % 89 for i in range(length)]


def lengths_of(window: int) -> tuple[int, ...]:
    return (1, 63, 64, 65, 67, 2 * window + 1)


def check(executor: Any, expected: torch.Tensor, prompt: int, chunk: int, end: int) -> None:
    """Prefill so many tokens in chunks, decode up to ``end``, and compare every row asked for."""
    ids = ids_of(end)
    executor.reset()
    starts = [*range(0, prompt, chunk), *range(prompt, end)]
    for start in starts:
        stop = min(start + chunk, prompt) if start < prompt else start + 1
        logits = executor.step(ids[start:stop], start, want_logits=True).logits
        wanted = expected[stop - 1]
        error = float((logits - wanted).abs().max() / wanted.abs().max())
        assert error < 1e-4, f"prompt {prompt}, chunk {chunk}, position {stop - 1}: {error}"
        assert executor.choose(logits).token == int(wanted.argmax())
    assert [fault for report in executor.ownership() for fault in report.faults()] == []


def last_decoded(prompt: int, window: int) -> int:
    """Past the window's edge where the prompt ends before it; else a few steps."""
    return max(prompt, window) + 3 if prompt <= window else prompt + 3


def run_case(
    model: Any,
    bench: Any,
    make_executor: Callable[..., Any],
    runs: list[tuple[int, int, int | None]],
) -> None:
    window = model.config.sliding_window
    longest = max(last_decoded(prompt, window) for prompt, _, _ in runs)
    with torch.no_grad():
        ids = torch.tensor([ids_of(longest)])
        expected = model(input_ids=ids, use_cache=False).logits[0]
    executors = {
        page: make_executor(bench, page_size=page, max_positions=longest + 1)
        for page in {page for _, _, page in runs}
    }
    for prompt, chunk, page in runs:
        check(executors[page], expected, prompt, chunk, last_decoded(prompt, window))


def changes_of(generation: int, name: str) -> dict[str, Any]:
    return (GEMMA3 if generation == 3 else GEMMA4)[name]


@pytest.mark.parametrize(("index", "case"), list(enumerate(CASES)), ids=[name for _, name in CASES])
def test_every_decode_step_agrees(
    make_model: Callable[..., Any],
    open_gemma: Callable[..., Any],
    gemma_executor: Callable[..., Any],
    tmp_path: Path,
    index: int,
    case: tuple[int, str],
) -> None:
    model = make_model(case[0], **changes_of(*case))
    model.save_pretrained(tmp_path)
    lengths = lengths_of(model.config.sliding_window)
    # Two lengths a case; the cases in turn have all lengths, rows per chunk and page sizes.
    runs = [
        (
            lengths[(2 * index + i) % 6],
            CHUNKS[(index + index // 3 + 2 * i) % 3],
            PAGES[(index // 2 + i) % 2],
        )
        for i in range(2)
    ]
    run_case(model, open_gemma(tmp_path), gemma_executor, runs)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[name for _, name in CASES])
def test_every_decode_step_agrees_for_all_lengths_and_chunks(
    make_model: Callable[..., Any],
    open_gemma: Callable[..., Any],
    gemma_executor: Callable[..., Any],
    tmp_path: Path,
    case: tuple[int, str],
) -> None:
    model = make_model(case[0], **changes_of(*case))
    model.save_pretrained(tmp_path)
    lengths = lengths_of(model.config.sliding_window)
    runs = [
        (prompt, chunk, PAGES[(i + j) % 2])
        for i, prompt in enumerate(lengths)
        for j, chunk in enumerate(CHUNKS)
    ]
    run_case(model, open_gemma(tmp_path), gemma_executor, runs)


@pytest.mark.parametrize("generation", [3, 4])
def test_generated_tokens_agree(
    make_model: Callable[..., Any],
    open_gemma: Callable[..., Any],
    gemma_executor: Callable[..., Any],
    tmp_path: Path,
    generation: int,
) -> None:
    model = make_model(generation, sliding_window=8)
    model.save_pretrained(tmp_path)
    prompt, steps = ids_of(5), 14
    generated = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=steps,
        min_new_tokens=steps,
        do_sample=False,
    )
    executor = gemma_executor(open_gemma(tmp_path))
    tokens, rows = list(prompt), prompt
    for _ in range(steps):
        output = executor.step(rows, len(tokens) - len(rows), want_logits=True)
        rows = [executor.choose(output.logits).token]
        tokens += rows
    assert tokens == generated[0].tolist()


@pytest.mark.parametrize("generation", [3, 4])
def test_bfloat16_is_close_and_its_embedding_equal(
    make_model: Callable[..., Any],
    open_gemma: Callable[..., Any],
    gemma_executor: Callable[..., Any],
    tmp_path: Path,
    generation: int,
) -> None:
    # sqrt(40) is no bfloat16 number, so a scale that is not rounded shows.
    model = make_model(generation, sliding_window=8, hidden_size=40).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    ids = ids_of(21)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
        embedded = model.model.embed_tokens(torch.tensor(ids))
    executor = gemma_executor(open_gemma(tmp_path), dtype="bfloat16")
    hits: dict[int, torch.Tensor] = {}
    output = executor.step(ids, 0, want_logits=True, tap=hits.__setitem__)
    assert torch.equal(hits[2], embedded)
    # They round at other places, among them the rotary tables.
    difference = (output.logits - expected[-1]).abs().max() / expected[-1].abs().max()
    assert float(difference) < 0.05


VISION = {
    3: {"image_size": 28, "patch_size": 14, "num_attention_heads": 2},
    4: {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8},
}


@pytest.mark.parametrize("generation", [3, 4])
def test_the_text_model_within_a_model_of_more_modalities(
    make_model: Callable[..., Any],
    open_gemma: Callable[..., Any],
    gemma_executor: Callable[..., Any],
    tmp_path: Path,
    generation: int,
) -> None:
    text = COMMON | {"sliding_window": 8, "hidden_size_per_layer_input": 0}
    if generation == 3:
        del text["hidden_size_per_layer_input"]
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = getattr(transformers, f"Gemma{generation}Config")(
        text_config=text, vision_config=sizes | VISION[generation]
    )
    torch.manual_seed(5)
    model = _vary(getattr(transformers, f"Gemma{generation}ForConditionalGeneration")(config))
    model.save_pretrained(tmp_path)
    ids = ids_of(13)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    bench = open_gemma(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == f"gemma{generation}"
    check(gemma_executor(bench), expected, 9, 4, 13)
