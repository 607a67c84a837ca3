"""Binding against an oracle that tries every assignment in the documented order."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_sample import environment, resources

from harness.errors import ExitCode, ResourceError
from harness.plan.bind import bind, unmet
from harness.plan.binding import Binding
from harness.plan.documents import from_document
from harness.plan.environment import Environment
from harness.plan.records import ComputeUnit, MemoryResource, Node, Resources

# Mostly of one kind and unpinned, so that resources compete for one another.
KINDS = ("cuda-gpu", "cuda-gpu", "cuda-gpu", "cpu")
MEMORY_KINDS = ("accelerator-vram", "accelerator-vram", "system-ram")
UUIDS = (None, None, None, "GPU-a", "GPU-b")


@st.composite
def swarms(draw: st.DrawFn, *, prefix: str) -> Resources:
    nodes = []
    for n in range(draw(st.integers(1, 2))):
        memories = [
            MemoryResource(
                id=f"{prefix}{n}m{m}",
                kind=draw(st.sampled_from(MEMORY_KINDS)),
                capacity_bytes=draw(st.integers(1, 2)),
            )
            for m in range(draw(st.integers(1, 2)))
        ]
        units = [
            ComputeUnit(
                id=f"{prefix}{n}u{u}",
                kind=draw(st.sampled_from(KINDS)),
                device_uuid=draw(st.sampled_from(UUIDS)),
                memory_resources=tuple(
                    draw(
                        st.lists(
                            st.sampled_from([memory.id for memory in memories]),
                            min_size=1,
                            unique=True,
                        )
                    )
                ),
            )
            for u in range(draw(st.integers(0, 2)))
        ]
        nodes.append(
            Node(id=f"{prefix}{n}", compute_units=tuple(units), memory_resources=tuple(memories))
        )
    return Resources(swarm_id="local", nodes=tuple(nodes))


def slots(wanted: Resources) -> list[tuple[str, Any]]:
    """Plan resources in the order in which they choose."""
    listed: list[tuple[str, Any]] = []
    for node in wanted.nodes:
        listed.append(("node", node))
        for unit in node.compute_units:
            listed.append(("unit", unit))
            listed += [
                ("memory", memory)
                for name in unit.memory_resources
                for memory in node.memory_resources
                if memory.id == name and ("memory", memory) not in listed
            ]
        listed += [
            ("memory", memory)
            for memory in node.memory_resources
            if ("memory", memory) not in listed
        ]
    return listed


def is_binding(wanted: Resources, chosen: dict[tuple[str, str], Any]) -> bool:
    for node in wanted.nodes:
        real_node = chosen["node", node.id]
        for memory in node.memory_resources:
            real = chosen["memory", memory.id]
            if (
                real not in real_node.memory_resources
                or real.kind != memory.kind
                or real.capacity_bytes < memory.capacity_bytes
            ):
                return False
        for unit in node.compute_units:
            real_unit = chosen["unit", unit.id]
            if real_unit not in real_node.compute_units or real_unit.kind != unit.kind:
                return False
            if unit.device_uuid is not None and unit.device_uuid != real_unit.device_uuid:
                return False
            reached = {chosen["memory", name].id for name in unit.memory_resources}
            if not reached <= set(real_unit.memory_resources):
                return False
    return True


def first_binding(wanted: Resources, there: Resources) -> Binding | None:
    """Among all injective assignments that hold, the least in the order of choosing."""
    here = listed(wanted)
    real = listed(there)
    order = slots(wanted)
    best: tuple[list[int], dict[tuple[str, str], Any]] | None = None
    for nodes in permutations(real["node"], len(here["node"])):
        for units in permutations(real["unit"], len(here["unit"])):
            for memories in permutations(real["memory"], len(here["memory"])):
                chosen = {
                    (what, item.id): picked
                    for what, items in (("node", nodes), ("unit", units), ("memory", memories))
                    for item, picked in zip(here[what], items, strict=True)
                }
                if not is_binding(wanted, chosen):
                    continue
                rank = [real[what].index(chosen[what, item.id]) for what, item in order]
                if best is None or rank < best[0]:
                    best = (rank, chosen)
    if best is None:
        return None
    return Binding(
        compute_units={n: r.id for (what, n), r in best[1].items() if what == "unit"},
        memories={n: r.id for (what, n), r in best[1].items() if what == "memory"},
    )


def listed(swarm: Resources) -> dict[str, list[Any]]:
    return {
        "node": list(swarm.nodes),
        "unit": [unit for node in swarm.nodes for unit in node.compute_units],
        "memory": [memory for node in swarm.nodes for memory in node.memory_resources],
    }


@settings(max_examples=200, deadline=None)
@given(wanted=swarms(prefix="p"), there=swarms(prefix="e"))
def test_the_first_binding_in_order_is_found(wanted: Resources, there: Resources) -> None:
    machine = Environment(resources=there, facts={})
    expected = first_binding(wanted, there)
    if expected is None:
        with pytest.raises(ResourceError):
            bind(wanted, machine)
        return
    assert unmet(wanted, machine) == []
    bound = bind(wanted, machine)
    assert bound == expected
    assert bound == bind(wanted, machine)
    for pairs in (bound.compute_units, bound.memories):
        assert len(set(pairs.values())) == len(pairs)


def test_two_units_that_share_a_memory_need_two_that_do() -> None:
    def machine(second: tuple[str, ...]) -> Environment:
        swarm = gpus(2, prefix="real")
        (node,) = swarm.nodes
        units = (node.compute_units[0], replace(node.compute_units[1], memory_resources=second))
        nodes = (replace(node, compute_units=units),)
        return Environment(resources=replace(swarm, nodes=nodes), facts={})

    assert bind(gpus(2), machine(("real1.vram", "real.ram"))).memories["gpu.ram"] == "real.ram"
    with pytest.raises(ResourceError):
        bind(gpus(2), machine(("real1.vram",)))


def test_two_nodes_bind_to_two_nodes() -> None:
    one = gpus(1)
    (node,) = one.nodes
    other = gpus(1, prefix="second").nodes[0]
    wanted = replace(one, nodes=(node, other))
    real = gpus(2, prefix="real")
    with pytest.raises(ResourceError, match=r"2 resources .*node"):
        bind(wanted, Environment(resources=real, facts={}))
    two = replace(real, nodes=(*gpus(1, prefix="a").nodes, *gpus(1, prefix="b").nodes))
    bound = bind(wanted, Environment(resources=two, facts={}))
    assert bound.compute_units == {"gpu0": "a0", "second0": "b0"}


def test_a_swarm_binds_to_itself() -> None:
    sample = from_document(Resources, resources())
    bound = bind(sample, environment())
    assert bound.compute_units == {"accelerator0": "accelerator0"}
    assert bound.memories == {
        "node0.ram": "node0.ram",
        "accelerator0.vram": "accelerator0.vram",
    }


def gpus(count: int, *, prefix: str = "gpu", uuids: tuple[str | None, ...] = ()) -> Resources:
    """One node with some devices, each with a memory of its own and shared RAM."""
    named = [*uuids, *[None] * (count - len(uuids))]
    return Resources(
        swarm_id="local",
        nodes=(
            Node(
                id=f"{prefix}-node",
                compute_units=tuple(
                    ComputeUnit(
                        id=f"{prefix}{i}",
                        kind="cuda-gpu",
                        device_uuid=named[i],
                        memory_resources=(f"{prefix}{i}.vram", f"{prefix}.ram"),
                    )
                    for i in range(count)
                ),
                memory_resources=(
                    MemoryResource(id=f"{prefix}.ram", kind="system-ram", capacity_bytes=100),
                    *(
                        MemoryResource(
                            id=f"{prefix}{i}.vram", kind="accelerator-vram", capacity_bytes=10
                        )
                        for i in range(count)
                    ),
                ),
            ),
        ),
    )


def test_the_lowest_device_is_taken_unless_one_is_pinned() -> None:
    machine = Environment(resources=gpus(3, prefix="real", uuids=("a", "b", "c")), facts={})
    assert bind(gpus(2), machine).compute_units == {"gpu0": "real0", "gpu1": "real1"}
    pinned = bind(gpus(2, uuids=("c", None)), machine)
    assert pinned.compute_units == {"gpu0": "real2", "gpu1": "real0"}
    assert pinned.memories["gpu0.vram"] == "real2.vram"
    assert pinned.memories["gpu.ram"] == "real.ram"


def test_a_later_pin_moves_an_earlier_choice() -> None:
    machine = Environment(resources=gpus(2, prefix="real", uuids=("a", "b")), facts={})
    bound = bind(gpus(2, uuids=(None, "a")), machine)
    assert bound.compute_units == {"gpu0": "real1", "gpu1": "real0"}


def test_every_unmet_requirement_is_listed() -> None:
    wanted = Resources(
        swarm_id="local",
        nodes=(
            Node(
                id="n",
                compute_units=(
                    ComputeUnit(
                        id="gpu0", kind="cuda-gpu", device_uuid=None, memory_resources=("big",)
                    ),
                    ComputeUnit(
                        id="acc",
                        kind="simulated-accelerator",
                        device_uuid="GPU-9",
                        memory_resources=("big",),
                    ),
                ),
                memory_resources=(
                    MemoryResource(id="big", kind="system-ram", capacity_bytes=1001),
                    MemoryResource(id="vram", kind="accelerator-vram", capacity_bytes=1),
                ),
            ),
        ),
    )
    with pytest.raises(ResourceError) as caught:
        bind(wanted, environment())
    text = str(caught.value)
    for part in (
        "no compute unit of kind cuda-gpu for gpu0",
        "no device with UUID GPU-9 for acc",
        "memory big needs 1001 bytes of system-ram, the largest here has 1000",
        "no memory of kind accelerator-vram for vram",
    ):
        assert part in text
    assert caught.value.exit_code == ExitCode.NOT_EVALUABLE
    assert unmet(wanted, environment()) == sorted(unmet(wanted, environment()))


def test_too_few_devices_are_told_at_once_even_if_many() -> None:
    machine = Environment(resources=gpus(15, prefix="real"), facts={})
    with pytest.raises(ResourceError, match=r"16 resources .*cuda-gpu.* needed, 15 here"):
        bind(gpus(16), machine)


def test_requirements_that_exclude_one_another_are_refused() -> None:
    machine = Environment(resources=gpus(2, prefix="real", uuids=("a", "b")), facts={})
    with pytest.raises(ResourceError, match="not all of them together"):
        bind(gpus(2, uuids=("a", "a")), machine)


def test_a_units_memory_must_be_the_bound_units() -> None:
    def separate(document: dict[str, Any]) -> None:
        document["nodes"][0]["compute_units"][0]["memory_resources"] = ["node0.ram"]

    sample = from_document(Resources, resources())
    with pytest.raises(ResourceError, match="reaches"):
        bind(sample, environment(separate))


def test_a_unit_that_names_a_foreign_memory_is_refused() -> None:
    document = resources()
    document["nodes"][0]["compute_units"][0]["memory_resources"].append("disk")
    with pytest.raises(ResourceError, match="disk"):
        bind(from_document(Resources, document), environment())
