from types import ModuleType

from harness.evidence.listing import ListedRecord, list_records
from harness.evidence.store import Store


def test_records_are_listed_newest_first_with_their_status(
    store: Store, sample: ModuleType
) -> None:
    old = sample.put_record(store, experiment="old", started_at="2025-01-01T00:00:00Z")
    new = sample.put_record(store, experiment="new", started_at="2026-01-01T00:00:00Z")
    sample.put_verdict(store, old)
    failed = sample.put_verdict(store, old, failed=True)
    assert list_records(store) == [
        ListedRecord(
            digest=new,
            experiment="new",
            plan_digest=sample.PLAN["digest"],
            status=None,
            started_at="2026-01-01T00:00:00Z",
            num_verdicts=0,
        ),
        ListedRecord(
            digest=old,
            experiment="old",
            plan_digest=sample.PLAN["digest"],
            status="disputed",
            started_at="2025-01-01T00:00:00Z",
            num_verdicts=2,
        ),
    ]
    store.path("verdicts", failed).unlink()
    assert [row.status for row in list_records(store)] == [None, "passed"]


def test_a_damaged_file_is_listed_and_hides_no_other(store: Store, sample: ModuleType) -> None:
    good = sample.put_record(store)
    bad = sample.put_record(store, salt="bad")
    store.path("records", bad).write_bytes(b"{}")
    verdict = sample.put_verdict(store, good)
    store.path("verdicts", verdict).write_bytes(b"{}")
    first, second = list_records(store)
    assert (first.digest, first.status, first.problem) == (good, None, None)
    assert (second.digest, second.experiment) == (bad, None)
    assert second.problem is not None
    assert "was changed" in second.problem
    assert "\n" not in second.problem


def test_an_empty_store_lists_nothing(store: Store) -> None:
    assert list_records(store) == []
