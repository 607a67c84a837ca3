"""Whether this build can run a valid plan. Imports no torch and no kernels."""

import importlib.util
from collections import Counter

from harness.errors import NotEvaluableError
from harness.plan.layout import (
    KERNEL_SET_DISTRIBUTIONS,
    KERNEL_SET_LIBRARIES,
    KERNEL_SET_UNITS,
    AdapterLayout,
)
from harness.plan.records import RECORDED, Plan
from harness.run.kernel_library import library_file


def require_runnable(plan: Plan, layout: AdapterLayout) -> None:
    """Refuse a plan that is valid and cannot be run here.

    Raises:
        NotEvaluableError: When its range has no embeddings, several of its stages share a GPU,
            its kernel set is not built, or the set lacks what is asked of it.
    """
    spec = plan.adapter_data.spec
    if not spec.owns_embeddings:
        raise NotEvaluableError(
            "a range without embeddings cannot be run by itself",
            expected="a range that starts with token ids",
            got=f"layers [{spec.start_layer}, {spec.end_layer}), which take another range's output",
            where="$.adapter_data.spec.owns_embeddings",
            hint="such a plan can be derived, checked and shown",
        )
    _require_own_gpus(plan)
    _require_kernel_set(plan, layout)


def _require_own_gpus(plan: Plan) -> None:
    """NCCL connects no two processes of one GPU; a binding gives each unit a device of its own."""
    units = {unit.id: unit.kind for node in plan.resources.nodes for unit in node.compute_units}
    named = Counter(stage.compute_unit_id for stage in plan.stages or ())
    shared = sorted(
        name for name, number in named.items() if number > 1 and units.get(name) == "cuda-gpu"
    )
    if shared:
        raise NotEvaluableError(
            "several stages on one GPU cannot be connected",
            expected="a GPU for each stage",
            got="; ".join(f"{named[name]} stages on {name}" for name in shared),
            where="$.stages",
            hint="derive the plan with fewer stages, or without",
        )


def _require_kernel_set(plan: Plan, layout: AdapterLayout) -> None:
    """Another kernel set has other bits: what is not built is refused, and never replaced."""
    determinism = plan.determinism
    if determinism is None:
        return
    name = determinism.kernel_set
    if name not in layout.kernel_sets:
        raise NotEvaluableError(
            "the plan's kernel set is not built here",
            expected=f"one of {', '.join(sorted(layout.kernel_sets))}",
            got=name,
            where="$.determinism.kernel_set",
            hint="run the plan with a build that has this set",
        )
    kinds = {unit.kind for node in plan.resources.nodes for unit in node.compute_units}
    allowed = KERNEL_SET_UNITS.get(name, frozenset(kinds))
    if not kinds <= allowed:
        raise NotEvaluableError(
            f"kernel set {name} does not run on this plan's compute unit",
            expected=" or ".join(sorted(allowed)),
            got=", ".join(sorted(kinds)),
            where="$.determinism.kernel_set",
            hint="derive the plan for another device, or with another kernel set",
        )
    is_recorded = plan.workload is not None and plan.workload.decode_mode == RECORDED
    if is_recorded and "cuda-gpu" in kinds and name not in KERNEL_SET_UNITS:
        raise NotEvaluableError(
            f"steps of kernel set {name} cannot be recorded on a GPU",
            expected="a set whose ops never wait for the device, such as triton/1",
            got=name,
            where="$.workload.decode_mode",
        )
    needed = KERNEL_SET_DISTRIBUTIONS.get(name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        raise NotEvaluableError(
            f"kernel set {name} cannot be run here",
            expected=f"the distribution {needed}",
            got="not installed",
            where="$.determinism.kernel_set",
            hint=f"install the project's extra {needed}",
        )
    if name in KERNEL_SET_LIBRARIES and library_file(name) is None:
        raise NotEvaluableError(
            f"kernel set {name} is not built here",
            expected=f"the library {KERNEL_SET_LIBRARIES[name]}",
            got="none",
            where="$.determinism.kernel_set",
            hint="install a C++17 compiler, then the package again (pip install -e .)",
        )
    if determinism.batch_invariant and not layout.kernel_sets[name]:
        raise NotEvaluableError(
            f"kernel set {name} is not batch invariant",
            where="$.determinism.batch_invariant",
            hint="derive the plan with determinism.batch_invariant=false",
        )
