"""What the machine itself can do, measured in turn with the contenders: the limits of the figures.

Runs in the project's environment. Each limit is the best of the ways tried here, so the true one
may lie a little above it.
"""

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from serving import serve

READ_BYTES = 512 << 20
HASHED_BYTES = 64 << 20
MATRIX = (1024, 2048, 2048)
_STATE: dict[str, Any] = {}


def load(threads: int) -> dict[str, Any]:
    """Take the buffers."""
    torch.set_num_threads(threads)
    rows, inner, columns = MATRIX
    _STATE.update(
        threads=threads,
        floats=torch.ones(READ_BYTES // 4),
        hashed=bytes(HASHED_BYTES),
        matrices={
            dtype: (torch.randn(rows, inner).to(dtype), torch.randn(columns, inner).to(dtype))
            for dtype in (torch.float32, torch.bfloat16)
        },
    )
    return {"version": f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"}


def measure() -> dict[str, Any]:
    """Bytes a second read from memory and hashed; operations a second of matrix products."""
    floats, threads = _STATE["floats"], _STATE["threads"]
    half = floats.nbytes // 8
    reads = (
        (floats.nbytes, lambda: floats.sum()),
        (floats.nbytes, lambda: floats.view(torch.int64).sum()),
        (floats.nbytes, lambda: torch.dot(floats[:half], floats[half:])),
        (floats.nbytes, lambda: floats.view(4096, -1).amax(1)),
    )
    rows, inner, columns = MATRIX
    return {
        "read_bytes_per_sec": max(size / _seconds(work) for size, work in reads),
        "sha256_bytes_per_sec": HASHED_BYTES * threads / _seconds(_hash),
        **{
            f"{str(dtype).removeprefix('torch.')}_flop_per_sec": 2
            * rows
            * inner
            * columns
            / min(_seconds(lambda pair=pair: pair[0] @ pair[1].T) for _ in range(5))
            for dtype, pair in _STATE["matrices"].items()
        },
    }


def _hash() -> None:
    with ThreadPoolExecutor(_STATE["threads"]) as pool:
        list(pool.map(hashlib.sha256, [_STATE["hashed"]] * _STATE["threads"]))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    serve({"load": load, "measure": measure})
