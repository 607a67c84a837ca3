"""The conditions under which a child's bits are claimed to repeat, as the child measures them.

Applied once at the start of a child that computes, then read back from the libraries; the record's
applicability key is what was read back. Knows determinism settings, no model.
"""

import torch

from harness.errors import NotEvaluableError
from harness.measure.cpu import instruction_set, read_cpuinfo
from harness.plan.records import Determinism, Workload

KEY_FIELDS = (
    "device_class",
    "instruction_set",
    "torch_build",
    "num_threads",
    "dtype",
    "kernel_set",
    "geometry",
)


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


def measured_conditions(
    settings: Determinism, workload: Workload, *, device_class: str
) -> dict[str, str]:
    """Read the conditions back: the fields of the applicability key, and a few facts beside it."""
    geometry = (
        f"prompt={len(workload.prompt_token_ids)},chunk={workload.chunk_rows},"
        f"decode={workload.decode_steps},positions={workload.max_positions},"
        f"batch_invariant={str(settings.batch_invariant).lower()}"
    )
    return {
        "device_class": device_class,
        "instruction_set": _instruction_set(),
        "torch_build": torch.__version__,
        "num_threads": str(torch.get_num_threads()),
        "dtype": settings.dtype,
        "kernel_set": settings.kernel_set,
        "geometry": geometry,
        "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()).lower(),
        "interop_threads": str(torch.get_num_interop_threads()),
    }


def _instruction_set() -> str:
    # What torch dispatches on, what the processor has beyond it (bf16 units decide which matrix
    # code runs), and the vendor, on which matrix libraries dispatch too.
    fields = read_cpuinfo()
    vendor = fields.get("vendor_id") or fields.get("CPU implementer") or "unknown vendor"
    used = torch.backends.cpu.get_cpu_capability()
    return f"{used}, {instruction_set(fields)}, {vendor}"
