"""What batch invariance costs: beside the same work by torch's own ops, which promise none.

On a GPU one kernel set runs, and it is invariant; its products are then compared with those of
torch's libraries. On the host the invariant set stands beside the ordinary one.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

import kernels.linear.cpu as linear_cpu
from benchmarks.gpu.case import Sizes
from benchmarks.gpu.device import Device
from kernels.attention.api import select as select_attention
from kernels.kernel_sets import TRITON
from kernels.linear.api import select as select_linear
from kernels.rms_norm.api import select as select_rms_norm

Work = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of one op, invariant and not."""

    name: str
    invariant_s: float
    ordinary_s: float


def costs(
    sizes: Sizes, device: Device, kernel_set: str, repeats: int
) -> Iterator[tuple[str, Callable[[], Cost]]]:
    """Each op for one row and for many, by name, measured when it is called."""
    for rows in (1, sizes.many_rows):
        for name, make in (("linear", _linear), ("rms_norm", _rms_norm), ("attention", _attention)):
            called = f"{name}, {rows} rows"

            def measured(make: Any = make, rows: int = rows, called: str = called) -> Cost:
                invariant, ordinary = make(sizes, rows, device.device, kernel_set)
                return Cost(
                    name=called,
                    invariant_s=device.launch_seconds(invariant, repeats),
                    ordinary_s=device.launch_seconds(ordinary, repeats),
                )

            yield called, measured


def _random(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, device=device).bfloat16()


def _linear(sizes: Sizes, rows: int, device: torch.device, kernel_set: str) -> tuple[Work, Work]:
    outputs, columns = sizes.wide
    x = _random(rows, columns, device=device)
    weight, op = _random(outputs, columns, device=device), select_linear(kernel_set)
    return lambda: op(x, weight), lambda: _ordinary_linear(x, weight)


def _rms_norm(sizes: Sizes, rows: int, device: torch.device, kernel_set: str) -> tuple[Work, Work]:
    x, weight = (
        _random(*shape, device=device) for shape in ((rows, sizes.hidden), (sizes.hidden,))
    )
    op = select_rms_norm(kernel_set)
    return lambda: op(x, weight, 1e-6), lambda: functional.rms_norm(x, weight.shape, weight, 1e-6)


def _attention(sizes: Sizes, rows: int, device: torch.device, kernel_set: str) -> tuple[Work, Work]:
    """The last rows of a context; torch's own reads keys and values in its own order of axes."""
    context = max(sizes.context, rows)
    q = _random(rows, sizes.heads, sizes.head_dim, device=device)
    cache = (context, sizes.kv_heads, sizes.head_dim)
    k, v = _random(*cache, device=device), _random(*cache, device=device)
    op, scale = select_attention(kernel_set), sizes.head_dim**-0.5
    step = op.prepare(rows, context - rows, dtype=q.dtype, device=device)
    own = [each.transpose(0, 1)[None].contiguous() for each in (q, k, v)]
    mask = None
    if rows > 1:
        seen = torch.ones(rows, context, dtype=torch.bool, device=device)
        mask = seen.tril(context - rows)

    def ordinary() -> torch.Tensor:
        return functional.scaled_dot_product_attention(*own, attn_mask=mask, enable_gqa=True)

    return lambda: op.attend(q, k, v, step, scale), ordinary


def _ordinary_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    if x.device.type == "cpu":
        return linear_cpu.linear(x, weight, bias)
    return functional.linear(x, weight, bias)


@contextmanager
def ordinary_products(kernel_set: str) -> Iterator[None]:
    """Executors of a set that are bound inside take their products from torch's own library."""
    name = "kernel" if kernel_set == TRITON else "invariant"
    module = importlib.import_module(f"kernels.linear.{name}")
    with mock.patch.object(module, "linear", _ordinary_linear):
        yield
