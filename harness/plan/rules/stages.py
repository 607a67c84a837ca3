"""The rules of a plan with stages: a complete chain, and every copy in one process of it."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from harness.plan.records import (
    PROCESS_BOUNDARY,
    RECORDED,
    TOKEN_RETURN,
    Execution,
    Finding,
    Materialization,
    Plan,
    Stage,
)
from harness.plan.rules.authority import authority_rules
from harness.plan.rules.checkpoint import checkpoint_rules
from harness.plan.rules.context import RuleContext, duplicate_findings
from harness.plan.rules.designs import design_rules
from harness.plan.rules.execution import execution_rules
from harness.plan.rules.nodes import node_rules
from harness.plan.rules.residency import residency_rules
from harness.plan.stages import RangeKeys, StageView, stage_views

STAGES = "stages"
LINKS = "stage-links"
MAX_PROCESSES = 8
"""Stages times fresh realizations."""
MAX_WAIT_S = 7 * 24 * 3600
"""Longest wait of one stage for another; clocks of a machine do not count without end."""
_STAGE_LINKS = (PROCESS_BOUNDARY, TOKEN_RETURN)
_OF_ONE_PROCESS: Sequence[Callable[[RuleContext], Iterator[Finding]]] = (
    residency_rules,
    authority_rules,
    execution_rules,
    checkpoint_rules,
    design_rules,
)
"""Rules that each stage's own part of a plan keeps, like a plan of one process."""
_INDEXED = re.compile(r"\A\$\.(materializations|execution|authorities)\[(\d+)\]")


def stage_rules(context: RuleContext) -> Iterator[Finding]:
    """The chain, its links and bounds; and each stage's part by itself."""
    plan = context.plan
    if plan.stages is None:
        yield from _no_stages(plan)
        return
    yield from duplicate_findings("$.stages", STAGES, (stage.id for stage in plan.stages), ".id")
    ranges = list(_ranges(plan, plan.stages))
    yield from ranges
    yield from _executions(context, plan.stages)
    yield from _membership(plan, plan.stages)
    yield from _links(plan, plan.stages)
    yield from _timeouts(plan)
    yield from _processes(plan, plan.stages)
    yield from node_rules(plan)
    if plan.workload is not None and plan.workload.decode_mode == RECORDED:
        message = "steps of a plan with stages are not recorded"
        yield Finding(path="$.workload.decode_mode", rule=STAGES, message=message)
    # Only a range of layers that are there has tensors, and only a manifest tells them.
    yield from _parts(context, has_tensors=not ranges and context.manifest is not None)


def _placed_items(plan: Plan) -> Iterator[tuple[str, Materialization | Execution]]:
    """Everything that a stage realizes or activates, with its path."""
    for index, item in enumerate(plan.materializations):
        yield f"$.materializations[{index}]", item
    for index, execution in enumerate(plan.execution):
        yield f"$.execution[{index}]", execution


def _no_stages(plan: Plan) -> Iterator[Finding]:
    message = "is set, and the plan has no stages"
    for path, item in _placed_items(plan):
        if item.stage_id is not None:
            yield Finding(path=f"{path}.stage_id", rule=STAGES, message=message)
    for index, link in enumerate(plan.resources.links):
        if link.kind in _STAGE_LINKS:
            path = f"$.resources.links[{index}].kind"
            message = f"{link.id!r} is a {link.kind}, and the plan has no stages"
            yield Finding(path=path, rule=LINKS, message=message)
    for name in ("stage_wait_s", "stage_start_s"):
        if plan.timeouts is not None and getattr(plan.timeouts, name) is not None:
            message = "is set, and the plan has no stages"
            yield Finding(path=f"$.timeouts.{name}", rule=STAGES, message=message)


def _ranges(plan: Plan, stages: Sequence[Stage]) -> Iterator[Finding]:
    """Stages follow each other without a gap, from the range's first layer to its last."""
    spec, expected = plan.adapter_data.spec, plan.adapter_data.spec.start_layer
    for index, stage in enumerate(stages):
        path = f"$.stages[{index}]"
        if stage.start_layer != expected:
            message = f"starts at layer {stage.start_layer}, expected {expected}"
            yield Finding(path=f"{path}.start_layer", rule=STAGES, message=message)
        if stage.end_layer <= stage.start_layer:
            message = f"layers [{stage.start_layer}, {stage.end_layer}) are none"
            yield Finding(path=f"{path}.end_layer", rule=STAGES, message=message)
        expected = stage.end_layer
    if expected != spec.end_layer:
        message = f"ends at layer {expected}, expected {spec.end_layer}, the end of the range"
        path = f"$.stages[{len(stages) - 1}].end_layer"
        yield Finding(path=path, rule=STAGES, message=message)


def _executions(context: RuleContext, stages: Sequence[Stage]) -> Iterator[Finding]:
    """Each stage has one execution of its own, on the stage's unit."""
    by_id = {item.id: item for item in context.plan.execution}
    yield from duplicate_findings(
        "$.stages", STAGES, (stage.execution_id for stage in stages), ".execution_id"
    )
    for index, stage in enumerate(stages):
        path, execution = f"$.stages[{index}]", by_id.get(stage.execution_id)
        if stage.compute_unit_id not in context.units:
            message = f"compute unit {stage.compute_unit_id!r} does not exist in the plan"
            yield Finding(path=f"{path}.compute_unit_id", rule=STAGES, message=message)
        if execution is None:
            message = f"execution {stage.execution_id!r} does not exist in the plan"
            yield Finding(path=f"{path}.execution_id", rule=STAGES, message=message)
            continue
        if execution.stage_id != stage.id:
            message = f"{execution.id!r} is of stage {execution.stage_id!r}, not of {stage.id!r}"
            yield Finding(path=f"{path}.execution_id", rule=STAGES, message=message)
        if execution.compute_unit_id != stage.compute_unit_id:
            message = f"{execution.id!r} is on {execution.compute_unit_id!r}"
            yield Finding(path=f"{path}.compute_unit_id", rule=STAGES, message=message)
    named = {stage.execution_id for stage in stages}
    for index, item in enumerate(context.plan.execution):
        if item.id not in named:
            message = f"{item.id!r} is the execution of no stage"
            yield Finding(path=f"$.execution[{index}].id", rule=STAGES, message=message)


def _membership(plan: Plan, stages: Sequence[Stage]) -> Iterator[Finding]:
    known = {stage.id for stage in stages}
    for path, item in _placed_items(plan):
        if item.stage_id not in known:
            message = f"{item.id!r} is of stage {item.stage_id!r}, which the plan has not"
            yield Finding(path=f"{path}.stage_id", rule=STAGES, message=message)
    held = {item.stage_id for item in plan.materializations}
    for index, stage in enumerate(stages):
        if stage.id not in held:
            message = f"stage {stage.id!r} has no materialization"
            yield Finding(path=f"$.stages[{index}].id", rule=STAGES, message=message)


def _links(plan: Plan, stages: Sequence[Stage]) -> Iterator[Finding]:
    """One boundary between neighbours, one way back for tokens, and no other."""
    ids = [stage.id for stage in stages]
    wanted = [(PROCESS_BOUNDARY, one, other) for one, other in pairwise(ids)]
    if ids and plan.adapter_data.spec.owns_final_norm_head:
        wanted.append((TOKEN_RETURN, ids[-1], ids[0]))
    there: Counter[tuple[str, str, str]] = Counter()
    for index, link in enumerate(plan.resources.links):
        if link.kind not in _STAGE_LINKS:
            continue
        path, found = f"$.resources.links[{index}]", (link.kind, link.source, link.target)
        there[found] += 1
        if found not in wanted:
            message = f"no {link.kind} goes from {link.source!r} to {link.target!r} in the chain"
            yield Finding(path=path, rule=LINKS, message=message)
        elif there[found] > 1:
            message = f"a second {link.kind} from {link.source!r} to {link.target!r}"
            yield Finding(path=path, rule=LINKS, message=message)
    for kind, source, target in wanted:
        if (kind, source, target) not in there:
            message = f"lacks the {kind} from {source!r} to {target!r}"
            yield Finding(path="$.resources.links", rule=LINKS, message=message)


def _processes(plan: Plan, stages: Sequence[Stage]) -> Iterator[Finding]:
    """A record names the tables of each process one by one, and is bounded in size."""
    realizations = 1 if plan.workload is None else plan.workload.fresh_realizations
    if len(stages) * realizations > MAX_PROCESSES:
        message = (
            f"{len(stages)} stages in {realizations} realizations are more than the "
            f"{MAX_PROCESSES} processes whose tables one record can name"
        )
        yield Finding(path="$.workload.fresh_realizations", rule=STAGES, message=message)


def _timeouts(plan: Plan) -> Iterator[Finding]:
    if plan.timeouts is None:
        return
    wait, start = plan.timeouts.stage_wait_s, plan.timeouts.stage_start_s
    for name, value in (("stage_wait_s", wait), ("stage_start_s", start)):
        if value is None:
            message = "is absent; a wait for another stage must have a bound"
            yield Finding(path=f"$.timeouts.{name}", rule=STAGES, message=message)
        elif value > MAX_WAIT_S:
            message = f"{value} s is more than {MAX_WAIT_S} s, a week"
            yield Finding(path=f"$.timeouts.{name}", rule=STAGES, message=message)
    if wait is not None and start is not None and wait > start:
        message = f"{wait} s is more than stage_start_s, {start} s"
        yield Finding(path="$.timeouts.stage_wait_s", rule=STAGES, message=message)


def _parts(context: RuleContext, *, has_tensors: bool) -> Iterator[Finding]:
    support = context.support if has_tensors else None
    keys = support if isinstance(support, RangeKeys) else None
    manifest = context.manifest if keys is not None else None
    for view in stage_views(context.plan, keys, manifest):
        part = RuleContext(
            plan=view.plan, environment=None, support=context.support, manifest=view.manifest
        )
        places = _places(context.plan, view)
        for finding in (finding for rule in _OF_ONE_PROCESS for finding in rule(part)):
            message = f"stage {view.stage.id}: {finding.message}"
            yield Finding(path=_placed(finding.path, places), rule=finding.rule, message=message)


def _placed(path: str, places: Mapping[str, Sequence[int]]) -> str:
    """A path into a stage's part, as one into the whole plan."""
    found = _INDEXED.match(path)
    if found is None:
        return path
    return f"$.{found[1]}[{places[found[1]][int(found[2])]}]{path[found.end() :]}"


def _places(plan: Plan, view: StageView) -> dict[str, list[int]]:
    """Where a stage's items stand in the whole plan."""
    own = {item.id for item in view.plan.materializations}
    chosen = {
        "materializations": [item.stage_id == view.stage.id for item in plan.materializations],
        "execution": [item.stage_id == view.stage.id for item in plan.execution],
        "authorities": [item.materialization_id in own for item in plan.authorities],
    }
    return {name: [n for n, kept in enumerate(flags) if kept] for name, flags in chosen.items()}
