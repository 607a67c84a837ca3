"""The predicates of records and verdicts, as frozen types.

Knows what a statement says, nothing of its JSON form (see :mod:`harness.evidence.statement`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.evidence.tables import WrittenTable

RECORD_SCHEMA = "harness.record/1"
VERDICT_SCHEMA = "harness.verdict/1"

Label = Literal["measured", "calculated", "estimated", "declared", "not_evaluated", "not_executed"]
Status = Literal["passed", "failed", "not_evaluated"]


@dataclass(frozen=True, kw_only=True)
class ModelReference:
    """The pinned model a plan is about."""

    repository: str
    revision: str


@dataclass(frozen=True, kw_only=True)
class PlanReference:
    """The plan of a record, by both of its digests."""

    digest: str
    """The plan's own digest, by the rule of its schema."""
    file_digest: str
    """SHA-256 of the plan file's bytes; names it in the store."""
    schema: str
    plan_version: str
    model: ModelReference


@dataclass(frozen=True, kw_only=True)
class BindingReference:
    """Plan resource id -> environment resource id."""

    compute_units: Mapping[str, str]
    memories: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ApplicabilityKey:
    """The conditions under which digests of numbers may be compared."""

    device_class: str
    instruction_set: str
    torch_build: str
    num_threads: int
    dtype: str
    kernel_set: str
    geometry: str
    version: int = 1


@dataclass(frozen=True, kw_only=True)
class FixtureReference:
    """The reference fixture: what was to be made, and what was made."""

    recipe_digest: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class SourceIdentity:
    """Which source ran; ``None`` where it could not be told."""

    git_commit: str | None = None
    git_tree: str | None = None
    dirty: bool | None = None
    diff_digest: str | None = None
    package_digest: str | None = None


PLANTED_FAULT = "planted_fault"
"""Name of the claim that a run was made faulty on purpose; such a record cannot pass."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim about the run and how it came to be known."""

    name: str
    label: Label
    detail: str


@dataclass(frozen=True, kw_only=True)
class RecordPredicate:
    """Everything a record says, apart from the rows of its tables."""

    experiment: str
    plan: PlanReference
    manifest_digest: str | None
    binding: BindingReference
    environment: Mapping[str, Any]
    """The whole environment document, ``harness.environment/1``."""
    applicability_key: ApplicabilityKey | None
    fixture: FixtureReference | None
    source: SourceIdentity
    tables: tuple[WrittenTable, ...]
    totals: Mapping[str, Any]
    """``planned_bytes`` and ``observed_bytes`` by memory id, ``num_steps``, and other counts."""
    claims: tuple[Claim, ...]
    command: tuple[str, ...]
    """Redacted; see :func:`harness.evidence.redact.redact_command`."""
    started_at: str
    """UTC, such as ``2026-01-31T12:00:00Z``."""
    ended_at: str
    result_digest: str | None
    schema: str = RECORD_SCHEMA


@dataclass(frozen=True, kw_only=True)
class AuditorIdentity:
    """Which auditor judged."""

    version: str
    package_digest: str | None


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One declared check as the auditor found it."""

    id: str
    kind: Literal["acceptance", "telemetry"]
    status: Status
    num_differences: int


@dataclass(frozen=True, kw_only=True)
class DifferencesReference:
    """The table ``differences`` of a verdict; present also when it has no row."""

    digest: str
    num_rows: int
    size_bytes: int

    def table(self) -> WrittenTable:
        """The reference as a store reads it."""
        return WrittenTable(
            name="differences",
            realization=None,
            digest=self.digest,
            num_rows=self.num_rows,
            size_bytes=self.size_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class VerdictPredicate:
    """The audit of one record. Holds no time, so that an equal audit has an equal digest."""

    plan_digest: str
    record_digest: str
    auditor: AuditorIdentity
    status: Status
    checks: tuple[CheckResult, ...]
    differences: DifferencesReference
    result_digest: str | None
    unbound: tuple[str, ...]
    """Fields that no check binds."""
    schema: str = VERDICT_SCHEMA
