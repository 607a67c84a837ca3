"""What must hold between the measured figures of a published result, whatever they are.

Resident memory is the sum of its parts, high-water marks and counters do not fall, and a device
holds at least what was declared on it. Knows places and arithmetic, no observed value.
"""

from collections.abc import Iterator
from itertools import pairwise

from harness.plan.published import result_r1 as names
from harness.plan.records import Plan
from harness.reconcile.compare import Place, Relation
from harness.reconcile.published_expected import declared_device_bytes, selected_bytes

_CHECKPOINTS: Place = ("observed", "process_checkpoints")
_NOT_FALLING: tuple[Place, ...] = (
    ("process", "VmHWM_kib"),
    ("ru_maxrss_kib",),
    ("vmstat", "pgfault"),
    ("vmstat", "pgmajfault"),
    ("vmstat", "pswpin"),
    ("vmstat", "pswpout"),
    (names.DEVICE_PEAK,),
)


def relations(plan: Plan) -> Iterator[Relation]:
    """Yield every relation that a result of ``plan`` must satisfy."""
    count = len(names.CHECKPOINT_LABELS)
    for index in range(count):
        yield from _within(plan, index)
    for earlier, later in pairwise(range(count)):
        for field in _NOT_FALLING:
            yield Relation(
                text=f"{field[-1]} does not fall from one checkpoint to the next",
                places=((*_CHECKPOINTS, later, *field), (*_CHECKPOINTS, earlier, *field)),
                holds=lambda after, before: bool(after >= before),
            )
    staging = selected_bytes(plan, "staging")
    yield Relation(
        text=f"at least the staging bytes, {staging}",
        places=(("memory", "transient_upper_bound_bytes"),),
        holds=lambda bound: bool(bound >= staging),
    )


def _within(plan: Plan, index: int) -> Iterator[Relation]:
    checkpoint = (*_CHECKPOINTS, index)
    process = (*checkpoint, "process")
    resident = (*process, "VmRSS_kib")
    allocated, peak = (*checkpoint, names.DEVICE_ALLOCATED), (*checkpoint, names.DEVICE_PEAK)
    yield Relation(
        text="VmRSS = RssAnon + RssFile + RssShmem",
        places=(
            resident,
            *((*process, part) for part in ("RssAnon_kib", "RssFile_kib", "RssShmem_kib")),
        ),
        holds=lambda total, anon, file, shared: bool(total == anon + file + shared),
    )
    yield Relation(
        text="VmHWM is at least VmRSS",
        places=((*process, "VmHWM_kib"), resident),
        holds=lambda high, now: bool(high >= now),
    )
    declared = declared_device_bytes(plan, index)
    yield Relation(
        text=f"allocated device bytes are at least the declared ones, {declared}",
        places=(allocated,),
        holds=lambda total: bool(total >= declared),
    )
    yield Relation(
        text="the device's peak is at least its allocated bytes",
        places=(peak, allocated),
        holds=lambda high, now: bool(high >= now),
    )
    yield Relation(
        text="page faults include the major ones",
        places=((*checkpoint, "vmstat", "pgfault"), (*checkpoint, "vmstat", "pgmajfault")),
        holds=lambda every, major: bool(every >= major),
    )
    yield from _capacities(plan, checkpoint)


def _capacities(plan: Plan, checkpoint: Place) -> Iterator[Relation]:
    capacities = {
        memory.kind: memory.capacity_bytes
        for node in plan.resources.nodes
        for memory in node.memory_resources
    }
    for kind, place, unit_bytes in (
        ("system-ram", (*checkpoint, "process", "VmHWM_kib"), 1024),
        ("system-ram", (*checkpoint, "ru_maxrss_kib"), 1024),
        ("accelerator-vram", (*checkpoint, names.DEVICE_PEAK), 1),
    ):
        limit = capacities.get(kind)
        if limit is not None:
            yield Relation(
                text=f"within the memory's {limit} bytes",
                places=(place,),
                holds=lambda value, limit=limit, unit=unit_bytes: bool(value * unit <= limit),
            )
