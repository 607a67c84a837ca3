"""The steps of a workload, fixed before the plan is sealed.

Half-open position intervals, one row per token:

    prefill   [0, c1) [c1, c2) ... [ck, P)                      P prompt tokens, as partitioned
    decode    [P, P+1) [P+1, P+2) ... [P+D-1, P+D)              D decode steps, each repetition

Decode step s feeds the token chosen after step s-1 (the prefill's choice for s = 0).
"""

from dataclasses import dataclass

from harness.plan.partition import prefill_partition
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
    return Schedule(
        chunks=tuple(
            Chunk(
                index=index,
                start_position=start,
                token_ids=prompt[start:end],
                is_last=end >= len(prompt),
            )
            for index, (start, end) in enumerate(prefill_partition(workload))
        ),
        prompt_rows=len(prompt),
        decode_steps=int(workload.decode_steps),
        repetitions=int(workload.repetitions),
    )
