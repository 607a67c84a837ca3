"""The conditions under which a child's bits are claimed to repeat, as the child measures them.

Applied once at the start of a child that computes, then read back: from the libraries, from the
executor's own tensors and ops, and from the steps that were recorded. Knows no model.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

import torch

from harness.errors import NotEvaluableError
from harness.measure.cpu import instruction_set, read_cpuinfo
from harness.plan.records import Determinism
from harness.realize.adapter import Executor


def apply_determinism(settings: Determinism) -> None:
    """Set threads and deterministic algorithms for this process, without gradients.

    Raises:
        NotEvaluableError: When the libraries do not take the settings.
    """
    torch.set_grad_enabled(False)
    torch.set_num_threads(settings.num_threads)
    torch.set_num_interop_threads(1)
    torch.use_deterministic_algorithms(settings.deterministic_algorithms)
    if torch.get_num_threads() != settings.num_threads:
        raise NotEvaluableError(
            "the thread count could not be set",
            expected=str(settings.num_threads),
            got=str(torch.get_num_threads()),
        )


def machine_conditions(*, device_class: str) -> dict[str, str]:
    """What this process's libraries say of themselves and of the machine."""
    return {
        "device_class": device_class,
        "instruction_set": _instruction_set(),
        "torch_build": torch.__version__,
        "num_threads": str(torch.get_num_threads()),
        "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()).lower(),
        "interop_threads": str(torch.get_num_interop_threads()),
    }


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
    }


def _instruction_set() -> str:
    # What torch dispatches on, what the processor has beyond it (bf16 units decide which matrix
    # code runs), and the vendor, on which matrix libraries dispatch too.
    fields = read_cpuinfo()
    vendor = fields.get("vendor_id") or fields.get("CPU implementer") or "unknown vendor"
    used = torch.backends.cpu.get_cpu_capability()
    return f"torch {used}; cpu {instruction_set(fields)}; {vendor}"
