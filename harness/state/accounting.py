"""Which live tensors belong to no arena: what Python's collector can see of unplanned bytes.

It cannot see storage that C++ or another library holds without a Python tensor; the witness sees
those as pages. Knows arenas, no plan.
"""

import gc
import warnings
from collections.abc import Iterable

import torch

from harness.state.arena import Arena

StorageKey = tuple[str, int, int]
"""Device, storage address, storage bytes."""


def live_storages() -> dict[StorageKey, int]:
    """Storages of all live tensors, deduplicated, with their bytes."""
    found: dict[StorageKey, int] = {}
    with warnings.catch_warnings():
        # Touching lazily deprecated module attributes while walking objects must not warn.
        warnings.simplefilter("ignore")
        for candidate in gc.get_objects():
            try:
                is_tensor = issubclass(type(candidate), torch.Tensor)
            except ReferenceError:
                continue
            if not is_tensor or candidate.layout is not torch.strided:
                continue
            storage = candidate.untyped_storage()
            size = storage.nbytes()
            if size:
                found[(str(candidate.device), storage.data_ptr(), size)] = size
    return found


def set_imports_aside() -> None:
    """Have later collections walk only what was made since: called before anything is allocated.

    Loaded modules are most of a process's objects, and a collection precedes each release. What
    little of them is garbage is set aside too: to look for it would take as long as the rest.
    """
    gc.freeze()


class TensorAccounting:
    """Counts live tensor bytes that belong to no arena and did not exist at the baseline.

    What exists at the baseline is frozen in the collector: every later collection, and there is
    one before each reading, then walks new objects only.
    """

    def __init__(self) -> None:
        gc.collect()
        self._baseline = frozenset(live_storages())
        gc.freeze()

    def unplanned_bytes(self, arenas: Iterable[Arena]) -> int:
        """Bytes of live storages outside ``arenas``, beyond the baseline."""
        spans = sorted((arena.address, arena.address + arena.allocated_bytes) for arena in arenas)
        gc.collect()
        total = 0
        for key, size in live_storages().items():
            if key in self._baseline:
                continue
            address = key[1]
            if not any(begin <= address < end for begin, end in spans):
                total += size
        return total
