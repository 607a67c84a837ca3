"""A producer and its witness, started together. Knows how they are connected, not what they do."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.measure.witness_start import witness_argv, witness_pair
from harness.run.processes import Child

WITNESS_END_S = 30.0
"""For a witness to write what it read, once its producer has ended."""


def start_pair(
    argv: Sequence[str],
    *,
    out: Path,
    realization: int,
    checkpoint: Path,
    environment: Mapping[str, str],
    on_line: Callable[[str], None],
    of_stage: str | None = None,
    pass_fds: Sequence[int] = (),
) -> tuple[Child, Child]:
    """Start a producer and the witness that reads its ``/proc``.

    Args:
        argv: The producer's command, but for where it writes and whom it talks to.
        out: Folder for the tables of both.
        realization: Which fresh realization it is.
        checkpoint: Folder whose open and mapped files the witness names.
        environment: Of both.
        on_line: Told the producer's lines of progress.
        of_stage: The stage that they belong to, if the plan has stages.
        pass_fds: Descriptors that the producer inherits besides.
    """
    suffix = "" if of_stage is None else f" {of_stage}"
    theirs, ours = witness_pair()
    with theirs, ours:
        producer = Child(
            f"producer{suffix}",
            [
                *argv,
                *("--out", str(out), "--realization", str(realization)),
                *("--witness-fd", str(theirs.fileno())),
            ],
            environment=environment,
            on_line=on_line,
            realization=realization,
            pass_fds=(theirs.fileno(), *pass_fds),
        )
        witness = Child(
            f"witness{suffix}",
            witness_argv(
                pid=producer.process.pid,
                fd=ours.fileno(),
                folder=out,
                checkpoint_root=checkpoint,
            ),
            environment=environment,
            on_line=lambda line: None,
            realization=realization,
            pass_fds=(ours.fileno(),),
        )
    return producer, witness
