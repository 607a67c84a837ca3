"""llama.cpp by its C interface, greedy; runs in an environment of its own.

Takes a GGUF file made from the same weights. The context is cleared before each generation.
"""

import ctypes
from typing import Any

import llama_cpp
from serving import Stopwatch, serve

_CONTEXTS: list[Any] = []


def load(checkpoint: str, dtype: str, threads: int, positions: int) -> dict[str, Any]:
    """Open a GGUF file; the file says its dtype, and the cache is of the default type."""
    del dtype
    llama_cpp.llama_backend_init()
    wanted = llama_cpp.llama_model_default_params()
    wanted.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(checkpoint.encode(), wanted)
    if not model:
        raise RuntimeError("the GGUF file could not be loaded")
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = positions
    settings.n_batch = settings.n_ubatch = positions
    settings.n_threads = settings.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, settings)
    if not context:
        raise RuntimeError("the context could not be made")
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
    _CONTEXTS[:] = [model, context, chain]
    features = llama_cpp.llama_print_system_info().decode()
    return {"version": f"llama-cpp-python {llama_cpp.__version__}", "features": features}


def generate(prompt: list[int], decode_steps: int) -> dict[str, Any]:
    """Prefill once and decode greedily."""
    _, context, chain = _CONTEXTS
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    watch = Stopwatch()
    rows, tokens = prompt, []
    for _ in range(decode_steps + 1):
        ids = (ctypes.c_int32 * len(rows))(*rows)
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(ids, len(rows))):
            raise RuntimeError("llama_decode failed")
        tokens.append(int(llama_cpp.llama_sampler_sample(chain, context, -1)))
        watch.mark()
        rows = tokens[-1:]
    return watch.answer(tokens)


if __name__ == "__main__":
    serve({"load": load, "generate": generate})
