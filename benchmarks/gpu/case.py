"""What a case of the GPU check is, and how large the cases are. Knows no op."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

Outputs = tuple[torch.Tensor, ...]
EXACT = 0.0
ROUNDED = 2e-2
"""bfloat16 outputs keep 8 bits; sums of another order move the last."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One op at one shape."""

    name: str
    run: Callable[[str], Outputs]
    """With a kernel set; gives what is compared, state included, from a state made anew."""
    launch: Callable[[str], Callable[[], object]] | None = None
    """Of a kernel set, the unchecked op alone; ``None`` where the op itself waits for the device.
    What it advances is advanced again by each call."""
    num_bytes: int
    """Read and written by an ideal kernel."""
    num_flop: int = 0
    tolerance: float = ROUNDED
    """Of the largest magnitude of the reference."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the cases are; small ones show on a host that every line works."""

    rows: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    vocabulary: int
    experts: int
    intermediate: int
    wide: tuple[int, int]
    """Outputs and columns of a weight that no cache holds."""
    many_rows: int
    """Rows of a product that is bound by arithmetic."""


FULL = Sizes(
    rows=64,
    hidden=2048,
    heads=16,
    kv_heads=2,
    head_dim=256,
    context=16_384,
    vocabulary=151_936,
    experts=64,
    intermediate=512,
    wide=(16_384, 4096),
    many_rows=2048,
)
DRY = Sizes(
    rows=3,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=32,
    context=64,
    vocabulary=512,
    experts=4,
    intermediate=32,
    wide=(128, 96),
    many_rows=9,
)
