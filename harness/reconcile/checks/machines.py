"""Check of the machines: each stage ran on the one that its node is bound to.

What a machine said of itself before the run is held against what the stage's own process observed
of the machine it ran on.
"""

from harness.measure.words import GPU_FACTS
from harness.plan.nodes import fact_text, facts_of, misplaced
from harness.reconcile.findings import ABSENT, Findings, Key, Row
from harness.reconcile.view import Subject


def machines(subject: Subject, findings: Findings) -> None:
    """Stages are bound in order, and each process saw the machine that the record says."""
    environment, binding = subject.conditions.environment, subject.conditions.binding
    if environment is None or binding is None:
        findings.differ("$.environment", "an environment that the plan binds to", ABSENT)
        return
    for unit, bound in misplaced(subject.plan, binding):
        findings.differ(f"$.binding.compute_units.{unit}", "a unit of its stage's machine", bound)
    for realization in range(subject.view.num_realizations):
        for number, stage in enumerate(subject.plan.stages or ()):
            table = subject.view.table(findings, "machine", realization, number)
            if table is None:
                continue
            expected: dict[Key, Row] = {
                (name,): {"value": fact_text(fact)}
                for name, fact in facts_of(environment, stage.id).items()
                # Of a GPU a process sees its own alone; the facts of its run say which.
                if not name.startswith(GPU_FACTS)
            }
            findings.match(table, expected, rows_noun="a fact of the stage's machine")
