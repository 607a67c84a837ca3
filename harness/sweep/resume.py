"""Which cases of a sweep were run before: a passing record of the same plan by the same source.

Knows stores, and what a record says of its plan and source; nothing of how a job is run.
"""

from pathlib import Path

from harness.errors import InvalidInputError, NotEvaluableError
from harness.evidence.find import Condition, find_records
from harness.evidence.index import open_index
from harness.evidence.record import load_record
from harness.evidence.source import package_digest
from harness.evidence.store import Store

_MAX_RECORDS = 1000
"""Newest passing records of one plan that are looked at."""


def passed_before(store: Store, cache: Path, plans: set[str]) -> dict[str, str]:
    """Digest of the newest passing record by plan digest, for plans that have one.

    A record counts when all its verdicts say that it passed and it was made by this very source,
    as told by the digest of the package's files.

    Args:
        store: Where records are looked for.
        cache: The user's cache folder.
        plans: Digests of plans.

    Raises:
        NotEvaluableError: When the source of this installation cannot be told.
    """
    here = package_digest()
    if here is None:
        raise NotEvaluableError(
            "whether a case was run before cannot be told",
            expected="the files of the package that runs",
            got="none that can be read",
            hint="run the sweep without --resume",
        )
    if not store.root.is_dir():
        return {}
    index = open_index(store, cache)
    found = {}
    for plan in sorted(plans):
        asked = [
            Condition(field="plan", value=plan),
            Condition(field="verdict", value="passed"),
        ]
        for row in find_records(store, index, asked, limit=_MAX_RECORDS).records:
            if row.problem is None and _made_here(store, row.digest, here):
                found[plan] = row.digest
                break
    return found


def _made_here(store: Store, digest: str, here: str) -> bool:
    try:
        return load_record(digest, store).predicate.source.package_digest == here
    except InvalidInputError:
        return False
