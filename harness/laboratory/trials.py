"""The ledger of one case's trials: how each ended, and what it proves about itself.

Pure functions over rows: of the record's ``trials`` and ``steps``, and of the armed producers'
``armed_steps`` and ``replay_states``. A trial that was aborted or lost keeps its row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, Any]
Tables = Mapping[int, Sequence[Row]]
COMPLETED = "completed"
LOST = "lost"
"""The child ended well, and left no rows of a replay."""


@dataclass(frozen=True, kw_only=True)
class CaseTables:
    """Everything that was observed of one case, by realization."""

    num_realizations: int
    """Planned."""
    repetitions: int
    """Planned, in each realization."""
    ledger: Sequence[Row] = ()
    """The record's ``trials``."""
    steps: Tables = field(default_factory=dict)
    """The record's ``steps``: the unarmed run."""
    boundaries: Tables = field(default_factory=dict)
    armed_steps: Tables = field(default_factory=dict)
    replay_states: Tables = field(default_factory=dict)

    def completed(self, realization: int) -> bool:
        """Whether a realization ended well and left all its tables."""
        tables = (self.boundaries, self.armed_steps, self.replay_states, self.steps)
        return _outcome(self, realization)[0] == COMPLETED and all(
            realization in table for table in tables
        )


def trial_rows(case: CaseTables) -> list[dict[str, Any]]:
    """Rows of ``case_trials``: one for each planned trial."""
    rows = []
    for realization in range(case.num_realizations):
        outcome, message = _outcome(case, realization)
        if outcome == COMPLETED and not case.completed(realization):
            outcome, message = LOST, "no rows of a replay"
        for repetition in range(case.repetitions):
            facts: dict[str, Any] = dict.fromkeys(
                ("changed_state", "restored_state", "equals_unarmed")
            )
            if outcome == COMPLETED:
                changed, restored = _self_proof(case.replay_states[realization], repetition)
                facts = {
                    "changed_state": changed,
                    "restored_state": restored,
                    "equals_unarmed": _equals_unarmed(
                        case.armed_steps[realization], case.steps[realization], repetition
                    ),
                }
            rows.append(
                {
                    "realization": realization,
                    "repetition": repetition,
                    "outcome": outcome,
                    "message": message,
                    **facts,
                }
            )
    return rows


def _outcome(case: CaseTables, realization: int) -> tuple[str, str | None]:
    for row in case.ledger:
        if row["child"] == "producer" and row["realization"] == realization:
            return str(row["outcome"]), row["message"]
    return "not_started", None


def _self_proof(states: Sequence[Row], repetition: int) -> tuple[bool, bool]:
    """Whether the steps changed the state, and whether the restore had returned the frozen one."""

    def digests(point: str, number: int) -> dict[str, str]:
        return {
            row["name"]: row["digest"]
            for row in states
            if row["point"] == point and row["repetition"] == number
        }

    frozen = digests("frozen", 0)
    restored, after = digests("after_restore", repetition), digests("after_steps", repetition)
    return bool(after) and after != frozen, bool(frozen) and restored == frozen


def _equals_unarmed(armed: Sequence[Row], unarmed: Sequence[Row], repetition: int) -> bool:
    """Whether each output of a replay is one that the unarmed run had at that step."""
    known: dict[tuple[str, int], set[tuple[Any, ...]]] = {}
    for row in unarmed:
        known.setdefault((row["phase"], row["step"]), set()).add(_output(row))
    mine = [row for row in armed if row["repetition"] == repetition]
    return bool(mine) and all(
        _output(row) in known.get((row["phase"], row["step"]), set()) for row in mine
    )


def _output(row: Row) -> tuple[Any, ...]:
    return row["plane_digest"], row["logits_digest"], row["token"]
