"""The digest matrix: boundaries in execution order by trials, and where trials first differ.

Pure functions over rows of ``boundaries`` tables. A digest varies between trials of one case only,
which ran one plan; digests of different cases are never compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import EvidenceError

Row = Mapping[str, Any]
PHASE_ORDER: Mapping[str, int] = {"prefill": 0, "decode": 1}


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """One place in the execution of a step."""

    phase: str
    step: int
    index: int
    """Place in the adapter's ordered list."""
    name: str

    @property
    def label(self) -> str:
        """The boundary as a person reads it."""
        return f"{self.phase} {self.step}: {self.name}"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One replay in one fresh process."""

    realization: int
    repetition: int


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """What every trial had at every boundary, as numbers of distinct values."""

    boundaries: tuple[Boundary, ...]
    """In execution order."""
    trials: tuple[Trial, ...]
    groups: tuple[tuple[int, ...], ...]
    """By boundary and trial: which distinct value it was, numbered in order of appearance."""

    def num_distinct(self, place: int) -> int:
        """Distinct values at one boundary."""
        return len(set(self.groups[place]))

    def varying(self) -> tuple[int, ...]:
        """Places of the boundaries at which trials differ, in execution order."""
        return tuple(p for p in range(len(self.boundaries)) if self.num_distinct(p) > 1)

    def varies_within_a_process(self, place: int) -> bool:
        """Whether two replays of one process differ at a boundary."""
        seen: dict[int, int] = {}
        for trial, group in zip(self.trials, self.groups[place], strict=True):
            if seen.setdefault(trial.realization, group) != group:
                return True
        return False


def build_matrix(tables: Mapping[int, Sequence[Row]]) -> Matrix:
    """Order rows of ``boundaries`` tables, given by realization, into one matrix.

    Raises:
        EvidenceError: When a trial has a boundary twice, or one that another trial has not.
    """
    values: dict[tuple[int, int, int, str], dict[Trial, tuple[Any, ...]]] = {}
    trials: set[tuple[int, int]] = set()
    for realization, rows in tables.items():
        for row in rows:
            trial = Trial(realization=realization, repetition=row["repetition"])
            trials.add((realization, row["repetition"]))
            if row["phase"] not in PHASE_ORDER:
                raise EvidenceError("unknown phase", got=repr(row["phase"]), where="boundaries")
            key = (PHASE_ORDER[row["phase"]], row["step"], row["boundary"], row["name"])
            if trial in values.setdefault(key, {}):
                raise EvidenceError("a boundary was hit twice", got=str(key), where="boundaries")
            values[key][trial] = (row["digest"], row["dtype"], tuple(row["shape"]))
    ordered = tuple(Trial(realization=r, repetition=k) for r, k in sorted(trials))
    phases = {number: phase for phase, number in PHASE_ORDER.items()}
    boundaries, groups = [], []
    for key in sorted(values):
        missing = [trial for trial in ordered if trial not in values[key]]
        if missing:
            raise EvidenceError(
                "a trial lacks a boundary that others have",
                got=f"{missing[0]} lacks {phases[key[0]]} {key[1]}: {key[3]}",
                where="boundaries",
            )
        numbers: dict[tuple[Any, ...], int] = {}
        groups.append(
            tuple(numbers.setdefault(values[key][trial], len(numbers)) for trial in ordered)
        )
        boundaries.append(Boundary(phase=phases[key[0]], step=key[1], index=key[2], name=key[3]))
    return Matrix(boundaries=tuple(boundaries), trials=ordered, groups=tuple(groups))


def matrix_rows(matrix: Matrix) -> list[dict[str, Any]]:
    """Rows of the ``matrix`` table."""
    return [
        {
            "phase": boundary.phase,
            "step": boundary.step,
            "boundary": boundary.index,
            "name": boundary.name,
            "num_distinct": matrix.num_distinct(place),
            "groups": list(matrix.groups[place]),
        }
        for place, boundary in enumerate(matrix.boundaries)
    ]
