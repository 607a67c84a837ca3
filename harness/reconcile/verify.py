"""Verify a store: its integrity, and today's audit of every record against the verdict it has.

A record that today's rules judge differently is reported, never rewritten. Knows stores and
verdicts; what is wrong with a file is ``evidence``'s question, what a record says is ``audit``'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ContradictionError, ExitCode, HarnessError
from harness.evidence.log.state import LogState, log_state
from harness.evidence.record import (
    LoadedRecord,
    LoadedVerdict,
    RememberingRecord,
    VerdictLine,
    load_record,
    load_verdict,
    verdicts_by_record,
)
from harness.evidence.scan import Problem
from harness.evidence.signing.keys import AllowedKeys
from harness.evidence.store import Store
from harness.evidence.verify import verify_store
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


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """Everything found in one store."""

    problems: tuple[Problem, ...]
    """Integrity problems, sorted."""
    records: tuple[Reaudit, ...]
    """One entry per readable record, by digest."""
    log: LogState | None
    """The store's log, which was checked; ``None`` when it keeps none."""
    num_keys: int | None
    """Allowed keys, one of which must have signed each record; ``None`` when none was asked for."""

    @property
    def exit_code(self) -> ExitCode:
        """0 when all is sound and as judged before; 1 for damage or a changed verdict."""
        codes = {entry.exit_code for entry in self.records}
        if self.problems or ExitCode.FAILED in codes:
            return ExitCode.FAILED
        return max(codes, default=ExitCode.PASSED)


def verify(
    root: Path,
    plans: Path | None,
    *,
    layout_for: LayoutFor | None,
    keys: AllowedKeys | None = None,
) -> VerifyReport:
    """Verify a store, and optionally a folder of frozen plans.

    Args:
        root: The store's folder.
        plans: A folder of plans with sidecars and manifests, or ``None``.
        layout_for: Gives a family's layout; ``None`` audits without layouts.
        keys: Whose signatures every record must carry; ``None`` asks for none.

    Raises:
        EvidenceError: When a folder does not exist.
    """
    problems = verify_store(root, plans=plans, keys=keys)
    store = Store(root)
    verdicts = verdicts_by_record(store)
    records = tuple(
        _reaudit(store, digest, verdicts.get(digest, []), layout_for)
        for digest in store.digests("records")
    )
    return VerifyReport(
        problems=tuple(problems),
        records=records,
        log=log_state(root),
        num_keys=None if keys is None else len(keys.keys),
    )


def uphold(
    record: LoadedRecord, verdicts: Sequence[LoadedVerdict], *, layout_for: LayoutFor | None
) -> None:
    """Audit a record anew, and refuse it unless every stored verdict says the same.

    Args:
        record: The record, with the store that holds its plan.
        verdicts: Every verdict on it.
        layout_for: Gives a family's layout; ``None`` audits without layouts.

    Raises:
        ContradictionError: When there is no verdict, or one has another status than today's audit.
        InvalidInputError: When the record cannot be audited.
    """
    where = str(record.store.path("records", record.digest))
    hint = "audit it with `harness reconcile --store-verdict`, and look at the differences"
    if not verdicts:
        raise ContradictionError(
            "the record was never audited",
            expected="a verdict in its store",
            got="none",
            where=where,
            hint=hint,
        )
    plan = parse_plan(record.plan_bytes(), where=record.predicate.plan.file_digest)
    status = judge(plan, record, layout_for=layout_for).status
    others = [
        f"{verdict.predicate.status} ({verdict.digest})"
        for verdict in verdicts
        if verdict.predicate.status != status
    ]
    if others:
        raise ContradictionError(
            "a stored verdict contradicts today's audit of the record",
            expected=status,
            got="; ".join(others),
            where=where,
            hint=hint,
        )


def _reaudit(
    store: Store, digest: str, stored: Sequence[VerdictLine], layout_for: LayoutFor | None
) -> Reaudit:
    newest = load_verdict(stored[-1].digest, store) if stored else None
    verdict, problem, code, experiment = None, None, None, None
    try:
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
