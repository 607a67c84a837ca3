"""Sentinels: counters whose good value is zero, each shown to fire before it is believed.

For every check a canary is planted first and counted, then removed, and only then the real thing
is counted. Both counts are recorded. Knows counters and canaries; knows no plan and no verdict.
"""

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from harness.plan.layout import TensorSpec
from harness.realize.recorder import StepRecorder
from harness.state.accounting import TensorAccounting
from harness.state.arena import Arena, Memory

CANARY_BYTES = 1 << 20


class Sentinel(Protocol):
    """One counter and the canary that shows that it counts."""

    @property
    def name(self) -> str:
        """Name in the ``sentinels`` table."""

    def planted(self) -> AbstractContextManager[None]:
        """Plant the canary for the duration of the context, and take it away without a trace."""

    def count(self) -> int:
        """Count now; the good value is 0."""


@dataclass(frozen=True, kw_only=True)
class FunctionSentinel:
    """A sentinel from two functions."""

    name: str
    counter: Callable[[], int]
    plant: Callable[[], AbstractContextManager[None]]

    def planted(self) -> AbstractContextManager[None]:
        """Plant by the given function."""
        return self.plant()

    def count(self) -> int:
        """Count by the given function."""
        return self.counter()


def check(sentinels: Sequence[Sentinel], point: str) -> list[dict[str, object]]:
    """Fire each canary, then count for real: the rows of the ``sentinels`` table."""
    rows: list[dict[str, object]] = []
    for sentinel in sentinels:
        with sentinel.planted():
            with_canary = sentinel.count()
        gc.collect()
        count = sentinel.count()
        rows.append(
            {
                "name": sentinel.name,
                "point": point,
                "canary_count": with_canary - count,
                "count": count,
            }
        )
    return rows


class StagingWatch:
    """Weak references and arenas of every staging tensor, watched after release."""

    def __init__(self, arenas: Sequence[Arena]) -> None:
        self._arenas = list(arenas)
        self._weak = [reference for arena in arenas for reference in arena.weak_tensors()]
        self._extra: list[weakref.ref[torch.Tensor]] = []

    def tensors_alive(self) -> Sentinel:
        """Staging tensors that something still refers to."""

        @contextmanager
        def plant() -> Iterator[None]:
            kept = torch.zeros(1)
            self._extra.append(weakref.ref(kept))
            try:
                yield
            finally:
                self._extra.clear()
                del kept

        def count() -> int:
            return sum(reference() is not None for reference in self._weak + self._extra)

        return FunctionSentinel(name="staging_tensors_alive", counter=count, plant=plant)

    def mappings_alive(self) -> Sentinel:
        """Staging mappings that still exist."""

        @contextmanager
        def plant() -> Iterator[None]:
            spare = Memory(resource_id="canary", kind="canary", capacity_bytes=CANARY_BYTES)
            arena = spare.allocate("canary", [TensorSpec(name="canary", dtype="uint8", shape=(1,))])
            self._arenas.append(arena)
            try:
                yield
            finally:
                self._arenas.remove(arena)
                arena.release()

        def count() -> int:
            return sum(arena.is_mapped for arena in self._arenas)

        return FunctionSentinel(name="staging_mappings_alive", counter=count, plant=plant)


def unplanned_tensors(
    accounting: TensorAccounting, arenas: Callable[[], Sequence[Arena]]
) -> Sentinel:
    """Bytes of live tensors that belong to no arena."""

    @contextmanager
    def plant() -> Iterator[None]:
        kept = torch.ones(CANARY_BYTES, dtype=torch.uint8)
        try:
            yield
        finally:
            del kept

    return FunctionSentinel(
        name="unplanned_tensors",
        counter=lambda: accounting.unplanned_bytes(arenas()),
        plant=plant,
    )


def non_finite(name: str, recorder: StepRecorder) -> Sentinel:
    """NaN (``nan``) or infinite (``inf``) elements over all steps, by the recorder's own counter.

    The canary is one such element that goes through the same counter as every output does.
    """
    value = {"nan": float("nan"), "inf": float("inf")}[name]

    @contextmanager
    def plant() -> Iterator[None]:
        before = recorder.num_nan, recorder.num_inf
        recorder.count({"canary": torch.tensor([0.0, value])})
        try:
            yield
        finally:
            recorder.num_nan, recorder.num_inf = before

    return FunctionSentinel(
        name=name,
        counter=lambda: recorder.num_nan if name == "nan" else recorder.num_inf,
        plant=plant,
    )
