"""Every error a user of the harness can meet, and the exit code each one means.

    HarnessError
    +- InvalidInputError      exit 2: a file, override, plan, record or checkpoint is not valid
    |  +- PlanError           a plan breaks a rule (carries every finding)
    |  +- CheckpointError     a checkpoint file is malformed, hostile, or not the pinned one
    |  +- EvidenceError       a store, record or table is malformed
    +- ContradictionError     exit 1: evidence that a fresh audit contradicts
    +- NotEvaluableError      exit 3: valid, but it cannot be evaluated on this machine
    |  +- ResourceError       no device or memory here meets the plan, or memory ran out

A message says what was expected, what was got, where, and what to do. This module knows nothing
of plans, models or processes.
"""

from collections.abc import Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes of every command."""

    PASSED = 0
    FAILED = 1
    INVALID_INPUT = 2
    NOT_EVALUABLE = 3


class HarnessError(Exception):
    """Base of all expected errors; ``str()`` is the complete message for a person."""

    exit_code = ExitCode.INVALID_INPUT

    def __init__(
        self,
        problem: str,
        *,
        expected: str | None = None,
        got: str | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.problem = problem
        self.expected = expected
        self.got = got
        self.where = where
        self.hint = hint
        super().__init__(problem)

    def __str__(self) -> str:
        parts = [self.problem]
        for label, text in (
            ("expected", self.expected),
            ("got", self.got),
            ("where", None if self.where is None else _visible(self.where)),
            ("what to do", self.hint),
        ):
            if text is not None:
                parts.append(f"  {label}: {text}")
        return "\n".join(parts)


def _visible(text: str) -> str:
    """Names of files may hold anything, line breaks and terminal controls too."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


class InvalidInputError(HarnessError):
    """Input that is not valid; nothing was started and nothing was lost."""


class PlanError(InvalidInputError):
    """A plan that breaks one or more rules; ``findings`` lists every one, sorted."""

    def __init__(
        self, problem: str, findings: Sequence[object] = (), **details: str | None
    ) -> None:
        super().__init__(problem, **details)
        self.findings = tuple(findings)

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  - {finding}" for finding in self.findings)])


class CheckpointError(InvalidInputError):
    """A checkpoint that is malformed, hostile, incomplete, or not the pinned one."""


class EvidenceError(InvalidInputError):
    """A store, record or table that is malformed or refers to something missing."""


class ContradictionError(HarnessError):
    """Valid evidence that a fresh audit contradicts, or that none has judged."""

    exit_code = ExitCode.FAILED


class NotEvaluableError(HarnessError):
    """A valid request that this machine, or this build, cannot evaluate."""

    exit_code = ExitCode.NOT_EVALUABLE


class ResourceError(NotEvaluableError):
    """No bound device or memory meets the plan, or a planned memory is exhausted."""
