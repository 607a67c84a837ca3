"""Bind a plan's resources to an environment's: pure, one to one, the same on every call.

By kind and minimum capacity, and by UUID only where the plan pins one. A node of the plan is
bound to one node, and a unit's memories to memories of the bound unit. Among all bindings the
first is taken: plan order decides who chooses, environment order what is chosen.

Ownership: plan id -> environment id; each environment id serves at most one plan id.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.errors import ResourceError
from harness.plan.binding import Binding
from harness.plan.environment import Environment
from harness.plan.records import ComputeUnit, Finding, MemoryResource, Node, Resources

RULE = "rule-05-environment"
MAX_TRIES = 200_000


@dataclass(frozen=True, kw_only=True)
class _Slot:
    """One plan resource that awaits an environment resource."""

    node: Node
    unit: ComputeUnit | None = None
    memory: MemoryResource | None = None


@dataclass(kw_only=True)
class _Chosen:
    """Environment resources by plan id, and the set in use."""

    nodes: dict[str, Node] = field(default_factory=dict)
    units: dict[str, ComputeUnit] = field(default_factory=dict)
    memories: dict[str, MemoryResource] = field(default_factory=dict)
    used: set[tuple[str, str]] = field(default_factory=set)


def bind(resources: Resources, environment: Environment) -> Binding:
    """Choose an environment resource for every compute unit and memory of a plan.

    Raises:
        ResourceError: When there is no such choice, with every unmet requirement.
    """
    problems = unmet(resources, environment)
    chosen = None if problems else _search(_slots(resources), environment.resources.nodes)
    if chosen is None:
        listed = [finding.message for finding in problems] or [
            "each requirement can be met alone, but not all of them together"
        ]
        raise ResourceError(
            "this environment does not meet the plan's resources",
            got="".join(f"\n    - {message}" for message in listed),
            where=f"swarm {environment.resources.swarm_id}",
            hint="use a machine that has them, or derive a plan for this one",
        )
    return Binding(
        compute_units={name: unit.id for name, unit in chosen.units.items()},
        memories={name: memory.id for name, memory in chosen.memories.items()},
    )


def unmet(resources: Resources, environment: Environment) -> list[Finding]:
    """Every requirement that the environment cannot meet, sorted; empty does not yet bind."""
    findings: list[Finding] = []
    there = environment.resources.nodes
    all_units = [unit for node in there for unit in node.compute_units]
    all_memories = [memory for node in there for memory in node.memory_resources]
    for i, node in enumerate(resources.nodes):
        own = {memory.id: memory for memory in node.memory_resources}
        for j, unit in enumerate(node.compute_units):
            path = f"$.resources.nodes[{i}].compute_units[{j}]"
            findings.extend(_unit_unmet(path, unit, own, there, all_units))
        for j, memory in enumerate(node.memory_resources):
            path = f"$.resources.nodes[{i}].memory_resources[{j}]"
            findings.extend(_memory_unmet(path, memory, all_memories))
    findings.extend(_too_few(resources, environment))
    return sorted(set(findings))


def _finding(path: str, message: str) -> Finding:
    return Finding(path=path, rule=RULE, message=message)


def _fits_unit(wanted: ComputeUnit, unit: ComputeUnit) -> bool:
    return wanted.kind == unit.kind and wanted.device_uuid in (None, unit.device_uuid)


def _fits_memory(wanted: MemoryResource, memory: MemoryResource) -> bool:
    return wanted.kind == memory.kind and wanted.capacity_bytes <= memory.capacity_bytes


def _unit_unmet(
    path: str,
    unit: ComputeUnit,
    own: dict[str, MemoryResource],
    there: tuple[Node, ...],
    all_units: list[ComputeUnit],
) -> Iterator[Finding]:
    unknown = [name for name in unit.memory_resources if name not in own]
    for name in unknown:
        yield _finding(path, f"unit {unit.id} names memory {name}, which its node lacks")
    same_kind = [other for other in all_units if other.kind == unit.kind]
    if not same_kind:
        yield _finding(path, f"no compute unit of kind {unit.kind} for {unit.id}")
        return
    fitting = {other.id for other in same_kind if _fits_unit(unit, other)}
    if not fitting:
        yield _finding(path, f"no device with UUID {unit.device_uuid} for {unit.id}")
        return
    wanted = [own[name] for name in unit.memory_resources if name in own]
    for node in there:
        memories = {memory.id: memory for memory in node.memory_resources}
        for other in node.compute_units:
            reach = [memories[name] for name in other.memory_resources if name in memories]
            if other.id in fitting and all(
                any(_fits_memory(memory, found) for found in reach) for memory in wanted
            ):
                return
    needs = ", ".join(f"{memory.kind} of {memory.capacity_bytes} bytes" for memory in wanted)
    yield _finding(path, f"no unit of kind {unit.kind} reaches {needs} for {unit.id}")


def _memory_unmet(
    path: str, memory: MemoryResource, all_memories: list[MemoryResource]
) -> Iterator[Finding]:
    capacities = [other.capacity_bytes for other in all_memories if other.kind == memory.kind]
    if not capacities:
        yield _finding(path, f"no memory of kind {memory.kind} for {memory.id}")
    elif max(capacities) < memory.capacity_bytes:
        yield _finding(
            path,
            f"memory {memory.id} needs {memory.capacity_bytes} bytes of {memory.kind}, "
            f"the largest here has {max(capacities)}",
        )


def _too_few(resources: Resources, environment: Environment) -> Iterator[Finding]:
    def count(of: Resources) -> Counter[str]:
        units = Counter(f"compute unit:{u.kind}" for n in of.nodes for u in n.compute_units)
        memories = Counter(f"memory:{m.kind}" for n in of.nodes for m in n.memory_resources)
        return units + memories + Counter({"node:any": len(of.nodes)})

    there = count(environment.resources)
    for name, needed in count(resources).items():
        if 0 < there[name] < needed:
            what, kind = name.split(":")
            message = f"{needed} resources ({what}, kind {kind}) needed, {there[name]} here"
            yield _finding("$.resources.nodes", message)


def _slots(resources: Resources) -> list[_Slot]:
    slots: list[_Slot] = []
    for node in resources.nodes:
        slots.append(_Slot(node=node))
        own = {memory.id: memory for memory in node.memory_resources}
        placed: set[str] = set()
        for unit in node.compute_units:
            slots.append(_Slot(node=node, unit=unit))
            for name in unit.memory_resources:
                if name not in placed:
                    placed.add(name)
                    slots.append(_Slot(node=node, unit=unit, memory=own[name]))
        slots.extend(
            _Slot(node=node, memory=memory)
            for memory in node.memory_resources
            if memory.id not in placed
        )
    return slots


def _candidates(slot: _Slot, chosen: _Chosen, there: tuple[Node, ...]) -> list[object]:
    """Environment resources that the slot could take now, in environment order."""
    if slot.unit is None and slot.memory is None:
        return [node for node in there if ("node", node.id) not in chosen.used]
    node = chosen.nodes[slot.node.id]
    if slot.memory is not None:
        reach = None if slot.unit is None else chosen.units[slot.unit.id].memory_resources
        return [
            memory
            for memory in node.memory_resources
            if ("memory", memory.id) not in chosen.used
            and (reach is None or memory.id in reach)
            and _fits_memory(slot.memory, memory)
        ]
    assert slot.unit is not None
    wanted = slot.unit
    # A memory that an earlier unit shares is already bound, and this unit must reach it too.
    bound = {chosen.memories[n].id for n in wanted.memory_resources if n in chosen.memories}
    return [
        unit
        for unit in node.compute_units
        if ("unit", unit.id) not in chosen.used
        and _fits_unit(wanted, unit)
        and bound <= set(unit.memory_resources)
    ]


def _place(slot: _Slot, choice: object, chosen: _Chosen) -> None:
    if isinstance(choice, Node):
        chosen.nodes[slot.node.id] = choice
        chosen.used.add(("node", choice.id))
    elif isinstance(choice, ComputeUnit) and slot.unit is not None:
        chosen.units[slot.unit.id] = choice
        chosen.used.add(("unit", choice.id))
    elif isinstance(choice, MemoryResource) and slot.memory is not None:
        chosen.memories[slot.memory.id] = choice
        chosen.used.add(("memory", choice.id))


def _unplace(slot: _Slot, chosen: _Chosen) -> None:
    if slot.memory is not None:
        chosen.used.discard(("memory", chosen.memories.pop(slot.memory.id).id))
    elif slot.unit is not None:
        chosen.used.discard(("unit", chosen.units.pop(slot.unit.id).id))
    else:
        chosen.used.discard(("node", chosen.nodes.pop(slot.node.id).id))


def _search(slots: list[_Slot], there: tuple[Node, ...]) -> _Chosen | None:
    """Depth-first over the slots: the first complete choice, or ``None``."""
    chosen = _Chosen()
    pending: list[Iterator[object]] = []
    tries = 0
    while len(pending) < len(slots):
        pending.append(iter(_candidates(slots[len(pending)], chosen, there)))
        while True:
            choice = next(pending[-1], None)
            if choice is not None:
                _place(slots[len(pending) - 1], choice, chosen)
                break
            pending.pop()
            if not pending:
                return None
            _unplace(slots[len(pending) - 1], chosen)
        tries += 1
        if tries > MAX_TRIES:
            raise ResourceError(
                "no binding found within the bound of the search",
                expected=f"at most {MAX_TRIES} tries",
                hint="pin devices by UUID in the plan",
            )
    return chosen
