"""The processor as the kernel describes it: name, instruction set, usable cores.

Knows nothing of what any library makes of the instruction set; a child that computes measures that
itself.
"""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from harness.errors import NotEvaluableError
from harness.measure.cgroup import cpu_quota

PROC = Path("/proc")
_LEVELS: Sequence[tuple[str, frozenset[str]]] = (
    ("AMX_BF16", frozenset({"amx_bf16", "avx512_bf16"})),
    ("AVX512_BF16", frozenset({"avx512_bf16", "avx512f", "avx512bw", "avx512dq", "avx512vl"})),
    ("AVX512", frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})),
    ("AVX2", frozenset({"avx2", "fma"})),
    ("SSE", frozenset({"sse2"})),
    ("ASIMD_BF16", frozenset({"asimd", "bf16"})),
    ("ASIMD", frozenset({"asimd"})),
)
"""From the best down; each with the flags that it needs."""


def read_cpuinfo(*, proc: Path = PROC) -> dict[str, str]:
    """Fields of the first processor in ``/proc/cpuinfo``.

    Raises:
        NotEvaluableError: When the file cannot be read.
    """
    path = proc / "cpuinfo"
    try:
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise NotEvaluableError(
            "cannot describe the processor", got=str(error), where=str(path)
        ) from error
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.partition(":")
        if separator:
            fields.setdefault(name.strip(), value.strip())
    return fields


def cpu_model(fields: dict[str, str]) -> str:
    """A name for the processor; Arm kernels give numbers only."""
    if "model name" in fields:
        return " ".join(fields["model name"].split())
    numbers = [fields[name] for name in ("CPU implementer", "CPU part") if name in fields]
    return " ".join(["processor", *numbers]) if numbers else platform.machine()


def instruction_set(fields: dict[str, str]) -> str:
    """The best level whose flags the processor has all of, or ``baseline``."""
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return next((name for name, needed in _LEVELS if needed <= flags), "baseline")


def num_usable_cores(*, proc: Path = PROC) -> int:
    """Cores that this process may run on, by affinity and control group quota; at least 1."""
    allowed = len(os.sched_getaffinity(0))
    quota = cpu_quota(proc=proc)
    return allowed if quota is None else max(1, min(allowed, int(quota)))
