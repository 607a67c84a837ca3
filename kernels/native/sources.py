"""The library as a file, and which sources it was built from.

Imports the standard library only: the build uses it, and what checks whether a build is due.
"""

import ctypes
import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent
FLAGS = (
    "-std=c++17",
    "-O2",
    "-ftree-vectorize",
    # Sums and products are rounded where they are written, alike on every processor.
    "-ffp-contract=off",
    "-fno-math-errno",
    # Nobody looks at the processor's flags; a choice between two numbers can then be in a vector.
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-pthread",
    "-g0",
    # Warned of by GCC in its own header of AVX-512 intrinsics.
    "-Wno-maybe-uninitialized",
)
"""What the compiler is told."""
LIBRARY = FOLDER / "_library.abi3.so"
"""Where the package's build puts it."""


def sources_digest() -> str:
    """``sha256:`` digest over the compiler's flags and the C++ sources, by name."""
    total = hashlib.sha256("\n".join((*FLAGS, "")).encode())
    for path in sorted([*FOLDER.glob("*.h"), *FOLDER.glob("*.cpp")]):
        total.update(f"{path.name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"sha256:{total.hexdigest()}"


def built_digest() -> str | None:
    """The digest of the sources that the library was built from; ``None`` where there is none."""
    try:
        named = ctypes.CDLL(str(LIBRARY)).native_sources
    except (OSError, AttributeError):
        return None
    named.restype = ctypes.c_char_p
    return str(named().decode())
