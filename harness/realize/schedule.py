"""The steps of a workload, fixed before the plan is sealed.

Half-open position intervals, one row per token:

    prefill   [0, chunk) [chunk, 2 chunk) ... [k chunk, P)      P prompt tokens
    decode    [P, P+1) [P+1, P+2) ... [P+D-1, P+D)              D decode steps, each repetition

Decode step s feeds the token chosen after step s-1 (the prefill's choice for s = 0).
"""

from dataclasses import dataclass

from harness.plan.records import Workload


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """One prefill call: rows [start, start + len(token_ids)) of the prompt."""

    index: int
    start_position: int
    token_ids: tuple[int, ...]
    is_last: bool


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Everything the execution loop needs of a plan, in plain values."""

    chunks: tuple[Chunk, ...]
    prompt_rows: int
    decode_steps: int
    repetitions: int


def schedule_of(workload: Workload) -> Schedule:
    """Cut a workload into steps: ordered, gap-free, complete."""
    prompt = tuple(int(token) for token in workload.prompt_token_ids)
    rows = int(workload.chunk_rows)
    starts = range(0, len(prompt), rows)
    return Schedule(
        chunks=tuple(
            Chunk(
                index=index,
                start_position=start,
                token_ids=prompt[start : start + rows],
                is_last=start + rows >= len(prompt),
            )
            for index, start in enumerate(starts)
        ),
        prompt_rows=len(prompt),
        decode_steps=int(workload.decode_steps),
        repetitions=int(workload.repetitions),
    )
