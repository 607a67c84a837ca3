"""Verify a store: its integrity, and today's audit of every record against the verdict it has.

A record that today's rules judge differently is reported, never rewritten. Knows stores and
verdicts; what is wrong with a file is ``evidence``'s question, what a record says is ``audit``'s.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ContradictionError, ExitCode, HarnessError
from harness.evidence.log.state import LogState, log_state
from harness.evidence.record import LoadedRecord, LoadedVerdict, verdicts_by_record
from harness.evidence.scan import Problem
from harness.evidence.signing.keys import AllowedKeys
from harness.evidence.store import Store
from harness.evidence.verify import verify_store
from harness.plan.load import parse_plan
from harness.reconcile.judge import LayoutFor, judge
from harness.reconcile.reaudit import Reaudit, not_audited, reaudit

Elsewhere = Callable[[str, str | None], Reaudit]
"""Has another process audit a record of the store, given its digest and its newest verdict's.

Raises HarnessError when it gave no answer, and is not asked again then."""


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
    elsewhere: Elsewhere | None = None,
) -> VerifyReport:
    """Verify a store, and optionally a folder of frozen plans.

    Args:
        root: The store's folder.
        plans: A folder of plans with sidecars and manifests, or ``None``.
        layout_for: Gives a family's layout; ``None`` audits without layouts.
        keys: Whose signatures every record must carry; ``None`` asks for none.
        elsewhere: Audits records beside this process; ``None`` audits all of them here.

    Raises:
        EvidenceError: When a folder does not exist.
    """
    store = Store(root)
    stored = {record: lines[-1].digest for record, lines in verdicts_by_record(store).items()}
    # Statements grow with the tables they name: the last one to be audited is then a short one.
    digests = sorted(store.digests("records"), key=lambda each: -store.size("records", each))
    waiting = deque(digests)
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        asked = pool.submit(_ask, elsewhere, waiting, stored) if elsewhere is not None else None
        problems = verify_store(root, plans=plans, keys=keys)
        records = [
            reaudit(store, digest, stored.get(digest), layout_for=layout_for)
            for digest in _taken(waiting)
        ]
        records += asked.result() if asked is not None else []
    finally:
        waiting.clear()
        pool.shutdown(wait=False)
    return VerifyReport(
        problems=tuple(problems),
        records=tuple(sorted(records, key=lambda entry: entry.record)),
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


def _taken(waiting: deque[str]) -> Iterator[str]:
    """Takes one after another, also while others take from it."""
    while True:
        try:
            yield waiting.popleft()
        except IndexError:
            return


def _ask(elsewhere: Elsewhere, waiting: deque[str], stored: Mapping[str, str]) -> list[Reaudit]:
    """What the other process found; it is left alone once it gave no answer."""
    found = []
    for digest in _taken(waiting):
        try:
            found.append(elsewhere(digest, stored.get(digest)))
        except HarnessError as error:
            return [*found, not_audited(digest, error)]
    return found
