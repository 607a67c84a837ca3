"""What voids a claim of equal bits here, as far as it can be seen before a run.

Two kinds: what reaches every process of this machine, and variables of this environment, which
reach everything but the children of a run, since those are given an environment of their own.
Knows causes, nothing of how they are reported.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

PRELOADED = Path("/etc/ld.so.preload")
CPUINFO = Path("/proc/cpuinfo")
_OFF = frozenset({"", "0", "false", "no", "off"})
_SWITCHES: Mapping[str, str] = {
    "NVIDIA_TF32_OVERRIDE": "products in TF32 on a GPU",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "products in TF32 on a GPU",
    "OMP_DYNAMIC": "a number of threads that changes while it runs",
    "TRITON_INTERPRET": "kernels that are interpreted, with other bits",
    "LD_PRELOAD": "foreign code in every process",
}
"""Variables that void it unless they are off, and what they bring."""
_CHOICES: Mapping[str, str] = {
    "ONEDNN_DEFAULT_FPMATH_MODE": "products in a lower precision",
    "ONEDNN_MAX_CPU_ISA": "another instruction set than the one recorded",
    "MKL_ENABLE_INSTRUCTIONS": "another instruction set than the one recorded",
    "MKL_CBWR": "other code paths than those of the recorded instruction set",
    "OPENBLAS_CORETYPE": "another instruction set than the one recorded",
}
"""Variables that void it whatever they say, except the library's own default."""
_DEFAULTS = frozenset({"", "strict", "default", "all", "off", "auto"})


def machine_causes() -> list[str]:
    """Why no process of this machine can claim equal bits."""
    return [*_preloaded(), *_mixed_cores()]


def variable_causes(variables: Mapping[str, str]) -> list[str]:
    """Which variables void it for a process that is started with them; values are not repeated."""
    found = []
    for names, harmless in ((_SWITCHES, _OFF), (_CHOICES, _DEFAULTS)):
        for name, effect in names.items():
            if variables.get(name, "").strip().lower() not in harmless:
                found.append(f"{name} is set: {effect}")
    return sorted(found)


def _preloaded() -> Iterator[str]:
    try:
        listed = PRELOADED.read_text("utf-8", "replace").split()
    except OSError:
        return
    if listed:
        yield f"{PRELOADED} puts {len(listed)} foreign libraries into every process"


def _mixed_cores() -> Iterator[str]:
    """Cores of different instruction sets: which code runs depends on where a thread runs."""
    try:
        lines = CPUINFO.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    flags = {
        frozenset(text.split())
        for name, _, text in (line.partition(":") for line in lines)
        if name.strip() in ("flags", "Features")
    }
    if len(flags) > 1:
        yield f"cores of {len(flags)} different instruction sets"
