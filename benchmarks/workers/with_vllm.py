"""vLLM on the CPU, one request at a time, its engine in this process; an environment of its own.

Prefix caching is off: the prompt is the same each time, and its prefill is what is measured.
"""

import itertools
import os
from typing import Any

# Read when vllm is imported.
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

import vllm
from serving import Stopwatch, serve

_ENGINES: list[Any] = []
_NUMBERS = itertools.count()


def load(checkpoint: str, dtype: str, threads: int, positions: int) -> dict[str, Any]:
    """Start an engine; ``threads`` is what the environment variables say."""
    if int(os.environ["OMP_NUM_THREADS"]) != threads:
        raise RuntimeError("threads are set by OMP_NUM_THREADS")
    model = vllm.LLM(
        model=checkpoint,
        dtype=dtype,
        # The last token counts here, though no step follows it.
        max_model_len=positions + 1,
        max_num_seqs=1,
        max_num_batched_tokens=positions + 1,
        enable_prefix_caching=False,
        seed=0,
    )
    _ENGINES[:] = [model.llm_engine]
    return {"version": f"vllm {vllm.__version__}"}


def generate(prompt: list[int], decode_steps: int) -> dict[str, Any]:
    """Prefill once and decode greedily, one engine step a token."""
    (engine,) = _ENGINES
    settings = vllm.SamplingParams(temperature=0.0, max_tokens=decode_steps + 1, ignore_eos=True)
    watch = Stopwatch()
    engine.add_request(str(next(_NUMBERS)), {"prompt_token_ids": prompt}, settings)
    tokens: list[int] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            now = list(output.outputs[0].token_ids)
            if len(now) != len(tokens) + 1:
                raise RuntimeError(f"one engine step gave {len(now) - len(tokens)} tokens")
            tokens = now
            watch.mark()
    return watch.answer(tokens)


if __name__ == "__main__":
    serve({"load": load, "generate": generate})
