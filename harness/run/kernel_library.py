"""The compiled library behind a kernel set, as a file. Loads neither it nor torch."""

import importlib.util
from pathlib import Path

from harness.canonical import file_digest
from harness.plan.layout import KERNEL_SET_LIBRARIES


def library_file(kernel_set: str) -> Path | None:
    """Where a kernel set's library is; ``None`` when it has none, or it is not built."""
    module = KERNEL_SET_LIBRARIES.get(kernel_set)
    spec = None if module is None else importlib.util.find_spec(module)
    return None if spec is None or spec.origin is None else Path(spec.origin)


def library_facts(kernel_set: str | None) -> dict[str, str]:
    """The library's digest, where a kernel set has a library: it can change bits."""
    file = None if kernel_set is None else library_file(kernel_set)
    return {} if file is None else {"library": file_digest(file)}
