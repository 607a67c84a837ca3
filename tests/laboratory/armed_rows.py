"""Rows as armed producers write them, for a few made-up boundaries."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

NAMES = ("token_ids", "embedding", "layers.0.q", "layers.0.kv_written", "logits")
STEPS = (("prefill", 0), ("prefill", 1), ("decode", 0))


def digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def boundary_rows(
    repetitions: int = 2,
    *,
    value: Callable[[int, str, int, str], object] = lambda repetition, phase, step, name: "",
    names: Sequence[str] = NAMES,
    steps: Sequence[tuple[str, int]] = STEPS,
) -> list[dict[str, Any]]:
    """Rows of ``boundaries`` of one process; ``value`` makes digests differ."""
    return [
        {
            "repetition": repetition,
            "phase": phase,
            "step": step,
            "boundary": index,
            "name": name,
            "dtype": "float32",
            "shape": [2, 4],
            "bytes": 32,
            "digest": digest(f"{phase}{step}{name}{value(repetition, phase, step, name)}"),
            "is_kept": False,
        }
        for repetition in range(repetitions)
        for phase, step in steps
        for index, name in enumerate(names)
    ]


def armed_step_rows(
    unarmed: Sequence[dict[str, Any]], repetitions: int = 2
) -> list[dict[str, Any]]:
    """Rows of ``armed_steps`` that repeat a record's steps."""
    columns = ("phase", "step", "num_rows", "token", "plane_digest", "logits_digest")
    return [
        {"repetition": repetition, "is_armed": True, **{name: row[name] for name in columns}}
        for repetition in range(repetitions)
        for row in unarmed
        if row["repetition"] == 0
    ]


def state_rows(repetitions: int = 2) -> list[dict[str, Any]]:
    """Rows of ``replay_states``: the steps change the state, the restore returns it."""

    def row(repetition: int, point: str, text: str) -> dict[str, Any]:
        found = {"repetition": repetition, "point": point, "name": "k"}
        return {**found, "bytes": 8, "digest": digest(text)}

    rows = [row(0, "frozen", "frozen")]
    for repetition in range(repetitions):
        rows.append(row(repetition, "after_restore", "frozen"))
        rows.append(row(repetition, "after_steps", "later"))
    return rows
