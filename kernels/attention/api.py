"""Causal grouped-query attention by kernel set."""

from collections.abc import Callable

import torch

from kernels.attention import cpu, reference
from kernels.kernel_sets import TORCH_CPU, TORCH_REFERENCE, choose, require

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def causal_mask(
    num_rows: int, start_position: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor | None:
    """The additive mask of rows at ``start_position`` over positions [0, start + rows).

    Made once per step for all layers. ``None`` for a single row, which reads the whole prefix.
    """
    if num_rows == 1:
        return None
    mask = torch.full(
        (num_rows, start_position + num_rows), float("-inf"), dtype=dtype, device=device
    )
    return mask.triu_(start_position + 1)


def select(kernel_set: str) -> Attention:
    """The unchecked implementation in a kernel set, for callers that check once."""
    return choose(
        "attention", kernel_set, {TORCH_CPU: cpu.attention, TORCH_REFERENCE: reference.attention}
    )


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    kernel_set: str = TORCH_CPU,
) -> torch.Tensor:
    """Attend q [R, H, D] over k, v [T, K, D] under mask [R, T]; returns [R, H * D]."""
    implementation = select(kernel_set)
    require(q.ndim == 3, "attention", "q [rows, heads, head_dim]", tuple(q.shape))
    require(
        k.ndim == 3 and k.shape == v.shape and k.shape[2] == q.shape[2],
        "attention",
        f"k and v [positions, kv_heads, {q.shape[2]}]",
        (tuple(k.shape), tuple(v.shape)),
    )
    require(
        q.shape[1] % k.shape[1] == 0,
        "attention",
        "query heads a multiple of KV heads",
        (q.shape[1], k.shape[1]),
    )
    require(q.dtype == k.dtype == v.dtype, "attention", "one dtype", (q.dtype, k.dtype, v.dtype))
    require(
        q.device == k.device == v.device, "attention", "one device", (q.device, k.device, v.device)
    )
    if mask is not None:
        shape = (q.shape[0], k.shape[0])
        require(mask.shape == shape, "attention", f"mask {list(shape)}", tuple(mask.shape))
        require(mask.dtype == q.dtype, "attention", f"mask of {q.dtype}", mask.dtype)
    return implementation(q, k, v, mask)
