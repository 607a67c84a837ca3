"""The conditions under which a child's bits are claimed to repeat, as the child measures them.

Applied once at the start of a child that computes, then read back: from the libraries, from the
executor's own tensors and ops, and from the steps that were recorded. Knows no model.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch

from harness.errors import NotEvaluableError
from harness.measure.cpu import instruction_set, read_cpuinfo
from harness.plan.records import REPLAYED_STEPS, Determinism
from harness.realize.adapter import Executor
from harness.realize.observe import locate
from harness.realize.observed import owner_of
from harness.state.arena import Arena, Memory
from harness.state.driver import Driver

_DEVICE_CLASSES: Mapping[tuple[str, str | None], str] = {
    ("cpu", "system-ram"): "cpu",
    ("cpu", "simulated-vram"): "simulated-accelerator",
    ("cuda", "accelerator-vram"): "cuda-gpu",
}
"""Device class by the tensors' device and the kind of memory that holds the state."""


def apply_determinism(settings: Determinism) -> None:
    """Set threads and deterministic algorithms for this process, without gradients.

    Raises:
        NotEvaluableError: When the libraries do not take the settings.
    """
    torch.set_grad_enabled(False)
    torch.set_num_threads(settings.num_threads)
    torch.set_num_interop_threads(1)
    # `use_deterministic_algorithms` sets the same, and imports a compiler for seconds before.
    torch.set_deterministic_debug_mode("error" if settings.deterministic_algorithms else "default")
    # To fill what nobody reads is a launch per output; what is read unwritten varies, and shows.
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = False
    if torch.get_num_threads() != settings.num_threads:
        raise NotEvaluableError(
            "the thread count could not be set",
            expected=str(settings.num_threads),
            got=str(torch.get_num_threads()),
        )


def machine_conditions(driver: Driver | None = None, library: str | None = None) -> dict[str, str]:
    """What this process's libraries say of themselves and of the machine.

    Args:
        driver: Of the GPU that computes, if one does: what it is belongs to the instruction set.
        library: Digest of the compiled library that computes, if one does; so does this.
    """
    own = [] if driver is None else [driver.description()]
    own += [] if library is None else [f"library {library}"]
    return {
        "instruction_set": "; ".join([_instruction_set(), *own]),
        "torch_build": torch.__version__,
        "num_threads": str(torch.get_num_threads()),
        "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()).lower(),
        "interop_threads": str(torch.get_num_interop_threads()),
    }


def device_class(
    executor: Executor, arenas: Mapping[str, Arena], memories: Mapping[str, Memory]
) -> str:
    """On what the executor runs: from its state's tensors, and the memory they were found in."""
    devices = {tensor.device.type for tensor in executor.declared_state().values()}
    owner = owner_of(executor, arenas)
    place = None if owner is None else locate(arenas[owner], memories)
    kind = None if place is None else memories[place].kind
    return _DEVICE_CLASSES.get(("+".join(sorted(devices)), kind), "unknown")


def execution_conditions(
    executor: Executor, steps: Sequence[Mapping[str, object]]
) -> dict[str, str]:
    """What was executed: dtype and kernel set in use, and the geometry that the steps had.

    Args:
        executor: The activated execution.
        steps: Rows of the ``steps`` table.
    """
    found = executor.conditions()
    rows = [row["num_rows"] for row in steps if row["phase"] == "prefill"]
    prefill = "+".join(f"{len(list(group))}x{size}" for size, group in groupby(rows))
    decode = len({row["step"] for row in steps if row["phase"] == "decode"})
    return {
        "dtype": found["dtype"],
        "kernel_set": found["kernel_set"],
        "geometry": f"prefill={prefill},decode={decode},positions={found['positions']}",
        **{name: found[name] for name in (REPLAYED_STEPS,) if name in found},
    }


def _instruction_set() -> str:
    # What torch dispatches on, what the processor has beyond it (bf16 units decide which matrix
    # code runs), and the vendor, on which matrix libraries dispatch too.
    fields = read_cpuinfo()
    vendor = fields.get("vendor_id") or fields.get("CPU implementer") or "unknown vendor"
    used = torch.backends.cpu.get_cpu_capability()
    return f"torch {used}; cpu {instruction_set(fields)}; {vendor}"
