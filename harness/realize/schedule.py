"""The steps of a workload, fixed before the plan is sealed.

Half-open position intervals, one row per token:

    prefill   [0, c1) [c1, c2) ... [ck, P)                      P prompt tokens, as partitioned
    decode    [P, P+1) [P+1, P+2) ... [P+D-1, P+D)              D decode steps, each repetition

Decode step s feeds the token chosen after step s-1 (the prefill's choice for s = 0), or the one
that the workload lists.
"""

from dataclasses import dataclass

from harness.plan.partition import prefill_partition
from harness.plan.records import ModelRange, Workload


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """One prefill call: rows [start, start + len(token_ids)) of the prompt."""

    index: int
    start_position: int
    token_ids: tuple[int, ...]
    is_last: bool


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One step of a schedule, whatever its phase."""

    phase: str
    """``prefill`` or ``decode``."""
    step: int
    """Chunk of the prompt, or decode step."""
    start_position: int
    num_rows: int
    wants_logits: bool


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Everything the execution loop needs of a plan, in plain values."""

    chunks: tuple[Chunk, ...]
    prompt_rows: int
    decode_steps: int
    repetitions: int
    has_head: bool
    """Whether the range has logits to choose a token from."""
    decode_token_ids: tuple[int, ...] | None
    """Token fed at each decode step; ``None`` for the one chosen before it."""

    def decode_input(self, step: int, chosen: int | None) -> int:
        """Token that a decode step feeds, where ``chosen`` is the choice after the step before.

        Raises:
            ValueError: When there is neither a listed token nor a chosen one.
        """
        token = chosen if self.decode_token_ids is None else self.decode_token_ids[step]
        if token is None:
            raise ValueError(f"expected a token for decode step {step}, got none")
        return token

    def steps(self) -> tuple[PlannedStep, ...]:
        """Every step in execution order, decoding once."""
        prefill = [
            PlannedStep(
                phase="prefill",
                step=chunk.index,
                start_position=chunk.start_position,
                num_rows=len(chunk.token_ids),
                wants_logits=chunk.is_last and self.has_head,
            )
            for chunk in self.chunks
        ]
        decode = [
            PlannedStep(
                phase="decode",
                step=step,
                start_position=self.prompt_rows + step,
                num_rows=1,
                wants_logits=self.has_head,
            )
            for step in range(self.decode_steps)
        ]
        return (*prefill, *decode)

    def inputs(self, step: PlannedStep, chosen: int | None) -> tuple[int, ...]:
        """Token ids of one step, where ``chosen`` is the choice after the step before."""
        if step.phase == "prefill":
            return self.chunks[step.step].token_ids
        return (self.decode_input(step.step, chosen),)


def schedule_of(workload: Workload, spec: ModelRange) -> Schedule:
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
        has_head=spec.owns_final_norm_head,
        decode_token_ids=workload.decode_token_ids,
    )
