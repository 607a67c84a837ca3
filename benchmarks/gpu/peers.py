"""The same made-up models in transformers, where it is installed."""

import importlib.util
import inspect
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.gpu.device import Device


def transformers_seconds(
    document: Mapping[str, Any], prompt: Sequence[int], steps: int, device: Device
) -> tuple[float | None, str | None]:
    """Median seconds of a decode step, or the reason why there is none."""
    if importlib.util.find_spec("transformers") is None:
        return None, "transformers is not installed"
    try:
        return statistics.median(_steps(document, prompt, steps, device)), None
    except Exception as error:  # whatever keeps a peer from running is its reason
        return None, f"{type(error).__name__}: {error}"[:200]


def _steps(
    document: Mapping[str, Any], prompt: Sequence[int], steps: int, device: Device
) -> list[float]:
    import transformers

    config = transformers.AutoConfig.for_model(**document)
    with device.device:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    # Newer versions call it so.
    takes_cache = "cache" in inspect.signature(model.forward).parameters
    name = "cache" if takes_cache else "past_key_values"
    held: dict[str, Any] = {name: transformers.DynamicCache(config=model.config)}
    ids = torch.tensor([list(prompt)], device=device.device)
    logits = model(input_ids=ids, use_cache=True, **held).logits
    seconds = []
    for _ in range(steps):
        token = logits[:, -1].argmax(-1, keepdim=True)
        device.synchronize()
        began = time.perf_counter()
        logits = model(input_ids=token, use_cache=True, **held).logits
        int(logits[0, -1].argmax())
        seconds.append(time.perf_counter() - began)
    return seconds
