"""transformers: eager, a dynamic cache, greedy; runs in an environment of its own."""

from typing import Any

import torch
import transformers
from serving import Stopwatch, serve

_MODELS: list[Any] = []


def load(checkpoint: str, dtype: str, threads: int, positions: int) -> dict[str, Any]:
    """Load the weights; ``positions`` bounds nothing here, as the cache grows."""
    del positions
    torch.set_num_threads(threads)
    model = transformers.LlamaForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype))
    _MODELS[:] = [model.eval()]
    return {"version": f"transformers {transformers.__version__}, torch {torch.__version__}"}


@torch.inference_mode()
def generate(prompt: list[int], decode_steps: int) -> dict[str, Any]:
    """Prefill once and decode greedily."""
    (model,) = _MODELS
    cache = transformers.DynamicCache(config=model.config)
    watch = Stopwatch()
    rows, tokens = prompt, []
    for _ in range(decode_steps + 1):
        output = model(
            input_ids=torch.tensor([rows]), use_cache=True, cache=cache, logits_to_keep=1
        )
        tokens.append(int(output.logits[0, -1].argmax()))
        watch.mark()
        rows = tokens[-1:]
    if cache.get_seq_length() != len(prompt) + decode_steps:
        raise RuntimeError("the cache that was given was not used")
    return watch.answer(tokens)


if __name__ == "__main__":
    serve({"load": load, "generate": generate})
