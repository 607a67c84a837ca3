import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.errors import NotEvaluableError
from harness.evidence.statement import SourceIdentity
from harness.evidence.store import Store
from harness.sweep import resume
from harness.sweep.resume import passed_before

HERE = f"sha256:{'1' * 64}"


@pytest.fixture(scope="module")
def sample() -> ModuleType:
    """Builders of a small, complete record (see ``tests/evidence/sample.py``)."""
    path = Path(__file__).resolve().parents[1] / "evidence" / "sample.py"
    spec = importlib.util.spec_from_file_location("evidence_sample", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cases(sample: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Adds records to a store, by this source or another; tells which would be skipped."""
    monkeypatch.setattr(resume, "package_digest", lambda: HERE)
    store = Store(tmp_path / "store")

    class Cases:
        def add(self, name: str, *, source: str = HERE, failed: bool | None = False) -> str:
            made_by = SourceIdentity(package_digest=source)
            record: str = sample.put_record(store, salt=name, experiment=name, source=made_by)
            if failed is not None:
                sample.put_verdict(store, record, failed=failed)
            return record

        def skipped(self) -> dict[str, str]:
            plans = {sample.PLAN["digest"], f"sha256:{'0' * 64}"}
            return passed_before(store, tmp_path / "cache", plans)

    return Cases()


def test_a_passing_record_of_the_same_plan_and_source(cases: Any, sample: ModuleType) -> None:
    assert cases.skipped() == {}
    record = cases.add("one")
    assert cases.skipped() == {sample.PLAN["digest"]: record}


def test_other_records_do_not_count(cases: Any) -> None:
    cases.add("failed", failed=True)
    cases.add("not audited", failed=None)
    cases.add("of another source", source=f"sha256:{'2' * 64}")
    assert cases.skipped() == {}


def test_a_record_that_a_later_verdict_contradicts_does_not_count(
    cases: Any, sample: ModuleType, tmp_path: Path
) -> None:
    record = cases.add("one")
    sample.put_verdict(Store(tmp_path / "store"), record, failed=True)
    assert cases.skipped() == {}


def test_a_damaged_record_does_not_count(cases: Any, tmp_path: Path) -> None:
    record = cases.add("one")
    cases.skipped()
    path = Store(tmp_path / "store").path("records", record)
    path.write_bytes(path.read_bytes() + b" ")
    assert cases.skipped() == {}


def test_without_a_known_source_nothing_is_skipped(
    cases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases.add("one")
    monkeypatch.setattr(resume, "package_digest", lambda: None)
    with pytest.raises(NotEvaluableError, match="cannot be told"):
        cases.skipped()
