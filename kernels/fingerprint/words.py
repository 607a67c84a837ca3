"""A tensor's bytes as 32-bit words; shared by the implementations of the fingerprint."""

import torch


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """The bytes of ``x`` in row-major order as uint8 [B]; a view where ``x`` is contiguous."""
    # A lone element may have any stride, which a view of bytes refuses.
    return x.contiguous().as_strided((x.numel(),), (1,)).view(torch.uint8)


def as_words(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The bytes of ``x`` in row-major order as int32 [W], and how many there are.

    A view where ``x`` is contiguous, aligned, and a whole number of words; else a copy.
    """
    flat = as_bytes(x)
    num_bytes = flat.shape[0]
    if num_bytes == 0 or num_bytes % 4 or flat.data_ptr() % 16:
        words = torch.zeros(-(-num_bytes // 4) * 4, dtype=torch.uint8, device=x.device)
        words[:num_bytes] = flat
        flat = words
    return flat.view(torch.int32), num_bytes
