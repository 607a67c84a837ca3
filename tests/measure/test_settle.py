import ctypes
import subprocess
import sys
import weakref

import psutil

from harness.measure.settle import settle


class Node:
    def __init__(self) -> None:
        self.itself = self


def test_collects_cycles() -> None:
    dead = weakref.ref(Node())
    settle()
    assert dead() is None


def test_gives_freed_heap_back() -> None:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    process = psutil.Process()
    settle()
    # Small blocks come from the heap; the last one, kept, pins its top, so that only a trim helps.
    blocks = [library.malloc(1000) for _ in range(20_000)]
    for block in blocks:
        ctypes.memset(block, 1, 1000)
    for block in blocks[:-1]:
        library.free(block)
    held = process.memory_full_info().uss
    assert settle()
    given_back = held - process.memory_full_info().uss
    library.free(blocks[-1])
    assert given_back > 15_000_000


def test_small_pages_as_the_kernel_shows_it_also_in_children() -> None:
    code = """
import subprocess
from harness.measure.settle import keep_small_pages
assert keep_small_pages()
print(open("/proc/self/status").read(), flush=True)
subprocess.run(["cat", "/proc/self/status"])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert ended.stdout.count("THP_enabled:\t0\n") == 2, ended.stderr
