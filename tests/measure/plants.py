"""A producer in miniature: plants copies of data in its memory and has its witness read it.

Started by the tests as a process of its own: ``plants.py FD CHECKPOINT_FILE [bare]``. Takes one
JSON command a line and answers each with one line; ``bare`` leaves torch out.
"""

import ctypes
import gc
import json
import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.measure.settle import keep_small_pages
from harness.measure.witness_client import DeclaredArena, WitnessClient

SIZE_BYTES = 1 << 20


class Mapping:
    """A shared anonymous mapping with its address."""

    def __init__(self, size_bytes: int = SIZE_BYTES) -> None:
        self.mapping = mmap.mmap(-1, size_bytes)
        anchor = (ctypes.c_char * size_bytes).from_buffer(self.mapping)
        self.address = ctypes.addressof(anchor)
        del anchor
        self.size_bytes = size_bytes

    def fill(self, size_bytes: int) -> None:
        self.mapping.seek(0)
        self.mapping.write(b"\1" * size_bytes)

    def declared(self, name: str) -> DeclaredArena:
        return DeclaredArena(
            materialization_id=name,
            memory_resource_id="node0.ram",
            address=self.address,
            length=self.size_bytes,
        )


def tensor() -> Any:
    import torch

    return torch.ones(SIZE_BYTES, dtype=torch.uint8)


def array() -> object:
    import numpy as np

    return np.ones(SIZE_BYTES, dtype=np.uint8)


def saved_for_backward() -> object:
    """A tensor whose storage only the C++ graph of another tensor holds."""
    import torch

    leaf = torch.zeros(1, requires_grad=True)
    return (torch.ones(SIZE_BYTES // 4) * leaf).exp().sum()


def private_mapping() -> mmap.mmap:
    found = mmap.mmap(-1, SIZE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    found.write(b"\1" * SIZE_BYTES)
    return found


def shared_mapping() -> mmap.mmap:
    found = mmap.mmap(-1, SIZE_BYTES)
    found.write(b"\1" * SIZE_BYTES)
    return found


class Descriptor:
    """An open descriptor that is closed when it is dropped."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


def memory_file(*, mapped: bool) -> object:
    number = os.memfd_create("mirror")
    os.write(number, b"\1" * SIZE_BYTES)
    if not mapped:
        return Descriptor(number)
    found = mmap.mmap(number, SIZE_BYTES)
    os.close(number)
    touch(found)
    return found


def touch(mapping: mmap.mmap) -> None:
    for offset in range(0, len(mapping), mmap.PAGESIZE):
        mapping[offset]


def data_file(path: Path) -> mmap.mmap:
    """The checkpoint's file mapped again, every page read."""
    with path.open("rb") as file:
        found = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    touch(found)
    return found


def executable_data_file(path: Path) -> mmap.mmap:
    """A data file mapped executable: that does not make it a library."""
    with path.open("rb") as file:
        found = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    touch(found)
    return found


def private_file(path: Path) -> mmap.mmap:
    """A private, written mapping of a file: copied-on-write pages."""
    with path.open("rb") as file:
        found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    found[:] = b"\2" * len(found)
    return found


def temporary_file() -> mmap.mmap:
    """A deleted file, mapped shared."""
    with tempfile.TemporaryFile() as file:
        file.write(b"\1" * SIZE_BYTES)
        file.flush()
        found = mmap.mmap(file.fileno(), 0)
    touch(found)
    return found


def c_heap() -> object:
    """A block of the C library, which no Python object holds."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    address = library.malloc(SIZE_BYTES)
    ctypes.memset(address, 1, SIZE_BYTES)

    class Block:
        def __del__(self) -> None:
            library.free(address)

    return Block()


def plants(file: Path) -> dict[str, Callable[[], object]]:
    return {
        "tensor": tensor,
        "numpy": array,
        "bytearray": lambda: bytearray(b"\1" * SIZE_BYTES),
        "private_mmap": private_mapping,
        "shared_mmap": shared_mapping,
        "memfd": lambda: memory_file(mapped=True),
        "memfd_unmapped": lambda: memory_file(mapped=False),
        "cpp_storage": saved_for_backward,
        "c_heap": c_heap,
        "shared_tensor": lambda: tensor().share_memory_(),
        "data_file": lambda: data_file(file),
        "executable_data_file": lambda: executable_data_file(file),
        "private_file": lambda: private_file(file),
        "temporary_file": temporary_file,
    }


class Producer:
    def __init__(self, client: WitnessClient, file: Path) -> None:
        self.client = client
        self.plants = plants(file)
        self.file = file
        self.held: dict[str, object] = {}
        self.arenas: dict[str, Mapping] = {}
        self.declared: dict[str, DeclaredArena] = {}

    def read(self, point: str, keep: bool) -> dict[str, Any]:
        reading = self.client.checkpoint(point, list(self.declared.values()), keep=keep)
        return reading.to_document()

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        action = command.pop("do")
        if action == "read":
            return self.read(**command)
        if action == "plant":
            self.held[command["kind"]] = self.plants[command["kind"]]()
        elif action == "drop":
            self.held.clear()
            gc.collect()
        elif action == "open":
            self.held["descriptor"] = self.file.open("rb")
        elif action == "work":
            self.work()
        elif action == "allocate":
            arena = Mapping(command["size_bytes"])
            arena.fill(command["fill_bytes"])
            self.arenas[command["name"]] = arena
            self.declared[command["name"]] = arena.declared(command["name"])
        elif action == "allocate_undeclared":
            self.arenas[command["name"]] = Mapping(command["size_bytes"])
            self.arenas[command["name"]].fill(command["size_bytes"])
            return {"address": self.arenas[command["name"]].address}
        elif action == "release":
            arena = self.arenas.pop(command["name"])
            arena.mapping.close()
            return {"address": arena.address}
        elif action == "finish":
            return {"num_checkpoints": self.client.finish()}
        elif action == "stop":
            sys.exit(0)
        return {}

    @staticmethod
    def work() -> None:
        """Ordinary computation: allocates, computes and frees several MiB."""
        import torch

        weights = torch.ones(512, 512)
        for _ in range(4):
            weights = torch.softmax(weights @ weights, dim=-1)
        rows = [bytes(4096) for _ in range(1000)]
        del rows


def main() -> None:
    keep_small_pages()
    client = WitnessClient.from_fd(int(sys.argv[1]), timeout_s=20)
    producer = Producer(client, Path(sys.argv[2]))
    if sys.argv[3:] != ["bare"]:
        producer.work()
        # Every plant once before the baseline: what its first use loads is no mirror.
        for plant in producer.plants.values():
            plant()
        gc.collect()
        gc.freeze()  # the libraries' own objects need no second look at every reading
    for line in sys.stdin:
        try:
            reply = producer.do(json.loads(line))
        except HarnessError as error:
            reply = {"error": str(error)}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
