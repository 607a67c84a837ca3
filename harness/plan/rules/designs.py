"""What a plan's copies contradict: each other, and the layout that designs them.

A family's layout says of each state which copies there are, in which form, how large and where. A
plan of other copies is no plan of that family's, and a run of it proves something else. Knows no
family; without a layout only what is there twice is found.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from harness.errors import HarnessError, PlanError
from harness.plan.layout import CensusEntry, LayoutRequest, StateDesign, TensorSpec
from harness.plan.records import Finding, Materialization
from harness.plan.request import census_of, layout_request
from harness.plan.rules.context import RuleContext

COPIES = "copies"
LAYOUT = "layout"
HOST = "system-ram"
_MISFITS = (HarnessError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a layout may raise for a configuration that is none of its family's."""
Placed = tuple[int, Materialization]
"""A copy that a faithful run makes, and where it stands in the plan."""


@runtime_checkable
class StateLayout(Protocol):
    """Designs the copies of each state; every adapter's layout is one."""

    def states(self, request: LayoutRequest) -> tuple[StateDesign, ...]:
        """The logical states of the range, in realization order."""

    def tensors(
        self,
        request: LayoutRequest,
        logical_state_id: str,
        representation: str,
        census: Sequence[CensusEntry],
    ) -> tuple[TensorSpec, ...]:
        """Exact tensors of one state in one representation, in arena order."""


def copy_rules(context: RuleContext) -> Iterator[Finding]:
    """Copies of a plan of one process; those of a stage are looked at with its stage."""
    if context.plan.stages is None:
        yield from design_rules(context)


def design_rules(context: RuleContext) -> Iterator[Finding]:
    """Copies of one process: none of them twice, and all of them as they are designed."""
    if not context.is_native or context.plan.workload is None:
        return
    placed = [
        (index, item)
        for index, item in enumerate(context.plan.materializations)
        if context.is_realized(item)
    ]
    yield from _twice(placed)
    layout = context.support
    if not isinstance(layout, StateLayout):
        return
    try:
        yield from _designed(context, layout, placed)
    except _MISFITS as error:
        listed = error.findings if isinstance(error, PlanError) else ()
        for each in listed:
            if isinstance(each, Finding):
                yield replace(each, rule=LAYOUT)
        if not listed:
            problem = error.problem if isinstance(error, HarnessError) else type(error).__name__
            message = f"the adapter cannot lay it out: {problem}"
            yield Finding(path="$.adapter_data.config", rule=LAYOUT, message=message)


def _finding(index: int, field: str, message: str) -> Finding:
    return Finding(path=f"$.materializations[{index}].{field}", rule=COPIES, message=message)


def _twice(placed: Sequence[Placed]) -> Iterator[Finding]:
    """No state is staged twice, and none lies twice in one memory in one form."""
    first: dict[tuple[str, ...], str] = {}
    for index, item in placed:
        form = (item.representation, item.memory_resource_id)
        key = (item.logical_state_id, *(("staging",) if item.role == "staging" else form))
        before = first.setdefault(key, item.id)
        if before != item.id:
            where = "staged" if item.role == "staging" else "in that memory in that form"
            message = f"{item.logical_state_id!r} is {where} already, as {before!r}"
            yield _finding(index, "logical_state_id", message)


def _designed(
    context: RuleContext, layout: StateLayout, placed: Sequence[Placed]
) -> Iterator[Finding]:
    request = layout_request(context.plan)
    designs = {design.id: design for design in layout.states(request)}
    whole = layout.states(replace(request, staging="whole"))
    stageable = {design.id for design in whole if design.staging_representation is not None}
    copies: dict[tuple[str, bool], list[Placed]] = {}
    for index, item in placed:
        copies.setdefault((item.logical_state_id, item.role == "staging"), []).append((index, item))
        if item.logical_state_id not in designs:
            message = f"{item.id!r} holds a state that the adapter does not design"
            yield _finding(index, "logical_state_id", message)
    for design in designs.values():
        yield from _stated(context, design)
        staged, kept = (copies.get((design.id, is_staging), []) for is_staging in (True, False))
        yield from _staged(context, design, staged)
        if not any(item.requirement == "required" for _, item in kept):
            message = f"lacks the copy of {design.id!r} that the adapter designs"
            yield Finding(path="$.materializations", rule=COPIES, message=message)
        for index, item in kept:
            if item.requirement == "required":
                yield from _kept(context, design, index, item)
            if not staged and design.id in stageable:
                yield from _brought(context, index, item)
    if context.manifest is not None:
        yield from _sized(context, layout, request, placed, designs)


def _stated(context: RuleContext, design: StateDesign) -> Iterator[Finding]:
    """A state is of the designed class, and made from what the design makes it from."""
    where = next(
        (n for n, unit in enumerate(context.plan.logical_state_units) if unit.id == design.id), None
    )
    if where is None:
        message = f"lacks the state {design.id!r} that the adapter designs"
        yield Finding(path="$.logical_state_units", rule=COPIES, message=message)
        return
    unit, path = context.plan.logical_state_units[where], f"$.logical_state_units[{where}]"
    if unit.semantic_class != design.semantic_class:
        message = f"{unit.id!r} is {unit.semantic_class}, expected {design.semantic_class}"
        yield Finding(path=f"{path}.semantic_class", rule=COPIES, message=message)
    wanted, got = set(design.reconstruction_inputs or ()), set(unit.reconstruction_inputs or ())
    # What other stages hold of a state may be made from more.
    is_part = any(item.stage_id is not None for item in context.plan.materializations)
    if wanted - got if is_part else wanted != got:
        listed = ", ".join(sorted(wanted)) or "nothing"
        message = f"{unit.id!r} is made from {', '.join(sorted(got)) or 'nothing'}, not {listed}"
        yield Finding(path=f"{path}.reconstruction_inputs", rule=COPIES, message=message)


def _staged(
    context: RuleContext, design: StateDesign, staged: Sequence[Placed]
) -> Iterator[Finding]:
    """A state is staged in the form that is designed, in the host's memory, or not at all."""
    form = design.staging_representation
    if form is not None and not staged:
        message = f"lacks the staging copy of {design.id!r}, as {form}"
        yield Finding(path="$.materializations", rule=COPIES, message=message)
    for index, item in staged:
        if item.representation != form:
            wanted = "not at all" if form is None else f"as {form!r}"
            message = f"{item.id!r} is staged as {item.representation!r}, expected {wanted}"
            yield _finding(index, "representation", message)
        memory = context.memories.get(item.memory_resource_id)
        if memory is not None and memory.kind != HOST:
            message = f"{item.id!r} is staged in {memory.kind}, expected {HOST}"
            yield _finding(index, "memory_resource_id", message)


def _kept(
    context: RuleContext, design: StateDesign, index: int, item: Materialization
) -> Iterator[Finding]:
    """A copy that stays has its designed role, in a memory of the designed kind."""
    if item.role != design.role:
        message = f"{item.id!r} has role {item.role}, expected {design.role}"
        yield _finding(index, "role", message)
    memory = context.memories.get(item.memory_resource_id)
    has_device = any(each.kind != HOST for each in context.memories.values())
    if memory is None:
        return
    if (memory.kind != HOST) != (design.on_device and has_device):
        wanted = "the device's own memory" if design.on_device else HOST
        message = f"{item.id!r} lies in {memory.kind}, expected {wanted}"
        yield _finding(index, "memory_resource_id", message)
    units = [context.units.get(each.compute_unit_id) for each in context.plan.execution]
    reached = {name for unit in units if unit is not None for name in unit.memory_resources}
    if reached and memory.id not in reached:
        message = f"{item.id!r} lies in {memory.id!r}, which nothing that executes reaches"
        yield _finding(index, "memory_resource_id", message)


def _brought(context: RuleContext, index: int, item: Materialization) -> Iterator[Finding]:
    """What can be staged and is not comes from its source, not from another memory."""
    link = None if item.path_id is None else context.links.get(item.path_id)
    if link is not None and link.source in context.memories:
        message = (
            f"path {link.id!r} begins in {link.source!r}, where nothing of "
            f"{item.logical_state_id!r} is staged"
        )
        yield _finding(index, "path_id", message)


def _sized(
    context: RuleContext,
    layout: StateLayout,
    request: LayoutRequest,
    placed: Sequence[Placed],
    designs: Mapping[str, StateDesign],
) -> Iterator[Finding]:
    """Each copy has the bytes of its tensors."""
    census = census_of(context.manifest or ())
    for index, item in placed:
        if item.logical_state_id in designs:
            form = item.logical_state_id, item.representation
            actual = sum(spec.num_bytes for spec in layout.tensors(request, *form, census))
            if actual != item.expected_bytes:
                message = f"{item.id!r} has {item.expected_bytes} bytes, its tensors have {actual}"
                yield _finding(index, "expected_bytes", message)
