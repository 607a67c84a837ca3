"""Audit a stored record again, and say how today's verdict differs from the newest stored one.

Knows one record at a time; which records there are, and who audits which, is ``verify``'s matter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import ExitCode, HarnessError
from harness.evidence.record import LoadedVerdict, RememberingRecord, load_record, load_verdict
from harness.evidence.store import Store
from harness.plan.load import parse_plan
from harness.reconcile.judge import LayoutFor, exit_code, judge
from harness.reconcile.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class Reaudit:
    """One record as it is judged today, beside its newest stored verdict."""

    record: str
    """The record's digest."""
    experiment: str | None
    status: str | None
    """Today's status; ``None`` when the record could not be audited."""
    stored_verdict: str | None
    """Digest of the newest verdict of the store; ``None`` when there is none."""
    stored_status: str | None
    changes: tuple[str, ...]
    """How today's verdict differs from the stored one, sorted; empty when it does not."""
    num_differences: int
    problem: str | None
    """Why it could not be audited."""
    problem_code: ExitCode | None = None

    @property
    def exit_code(self) -> ExitCode:
        """Exit code that this record alone would give.

        A stored failure that fails again is sound evidence of a failure; a record that was never
        judged counts by today's verdict.
        """
        if self.problem_code is not None:
            return self.problem_code
        if self.changes:
            return ExitCode.FAILED
        if self.stored_verdict is not None or self.status is None:
            return ExitCode.PASSED
        return exit_code(self.status)

    def message(self) -> dict[str, Any]:
        """All of it in plain values, for another process."""
        code = None if self.problem_code is None else int(self.problem_code)
        return {**vars(self), "changes": list(self.changes), "problem_code": code}

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> "Reaudit":
        """What :meth:`message` was made of."""
        code = message["problem_code"]
        return cls(
            **{
                **message,
                "changes": tuple(message["changes"]),
                "problem_code": None if code is None else ExitCode(code),
            }
        )


def not_audited(digest: str, error: HarnessError) -> Reaudit:
    """A record that nobody could audit, and why."""
    return Reaudit(
        record=digest,
        experiment=None,
        status=None,
        stored_verdict=None,
        stored_status=None,
        changes=(),
        num_differences=0,
        problem=str(error),
        problem_code=error.exit_code,
    )


def reaudit(
    store: Store, digest: str, stored: str | None, *, layout_for: LayoutFor | None
) -> Reaudit:
    """Audit one record today.

    Args:
        store: Where it is.
        digest: The record's.
        stored: Digest of its newest verdict, or ``None`` when there is none.
        layout_for: Gives a family's layout; ``None`` audits without layouts.
    """
    newest, verdict, problem, code, experiment = None, None, None, None, None
    try:
        newest = None if stored is None else load_verdict(stored, store)
        record = RememberingRecord(**vars(load_record(digest, store)))
        experiment = record.predicate.experiment
        plan = parse_plan(record.plan_bytes(), where=record.predicate.plan.file_digest)
        verdict = judge(plan, record, layout_for=layout_for)
    except HarnessError as error:
        problem, code = str(error), error.exit_code
    changes = _changes(newest, verdict) if newest is not None and verdict is not None else []
    return Reaudit(
        record=digest,
        experiment=experiment,
        status=None if verdict is None else verdict.status,
        stored_verdict=None if newest is None else newest.digest,
        stored_status=None if newest is None else newest.predicate.status,
        changes=tuple(changes),
        num_differences=0 if verdict is None else len(verdict.differences),
        problem=problem,
        problem_code=code,
    )


def _changes(stored: LoadedVerdict, verdict: Verdict) -> list[str]:
    before, now = stored.predicate, verdict
    changes = []
    if before.status != now.status:
        changes.append(f"status: {before.status} then, {now.status} now")
    if before.result_digest != now.result_digest:
        changes.append(f"result digest: {before.result_digest} then, {now.result_digest} now")
    old = {check.id: (check.kind, check.status) for check in before.checks}
    new = {check.id: (check.kind, check.status) for check in now.checks}
    for identifier in sorted(old.keys() | new.keys()):
        one, other = old.get(identifier), new.get(identifier)
        if one != other:
            changes.append(f"{identifier}: {_words(one)} then, {_words(other)} now")
    return sorted(changes) or _moved(stored, verdict)


def _moved(stored: LoadedVerdict, verdict: Verdict) -> list[str]:
    """Say so when equal statuses rest on other differences."""
    try:
        before = {(row["check"], row["path"]) for row in stored.differences()}
    except HarnessError:
        return ["differences: those of then cannot be read"]
    now = {(difference.check, difference.path) for difference in verdict.differences}
    if before == now:
        return []
    return [f"differences: {len(before - now)} gone, {len(now - before)} new"]


def _words(check: tuple[str, str] | None) -> str:
    return "absent" if check is None else f"{check[1]} ({check[0]})"
