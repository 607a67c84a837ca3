"""Whether this build has the kernel set that a plan names. Imports no kernels."""

from harness.errors import NotEvaluableError
from harness.plan.layout import AdapterLayout
from harness.plan.records import Plan


def require_kernel_set(plan: Plan, layout: AdapterLayout) -> None:
    """Another kernel set has other bits: what is not built is refused, and never replaced.

    Raises:
        NotEvaluableError: When the plan's kernel set is not built, or lacks what is asked of it.
    """
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
    if determinism.batch_invariant and not layout.kernel_sets[name]:
        raise NotEvaluableError(
            f"kernel set {name} is not batch invariant",
            where="$.determinism.batch_invariant",
            hint="derive the plan with determinism.batch_invariant=false",
        )
