"""Checks of what was executed: which steps, that they repeat bitwise, and exact correctness."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from harness.plan.layout import DTYPE_BYTES
from harness.plan.partition import prefill_partition
from harness.plan.records import ModelRange, Plan, Workload
from harness.reconcile.findings import Findings, Key, KeyedRows, Row
from harness.reconcile.view import Subject

_REPEATED = ("token", "plane_digest", "logits_digest", "margin", "num_nan", "num_inf")
_KIND = "sha256:"
Tokens = dict[tuple[str, int], tuple[int | None, str]]
"""By phase and step: the token, and the row that says so."""


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One step that a workload implies: rows [start_position, start_position + num_rows)."""

    phase: str
    step: int
    start_position: int
    num_rows: int
    chooses: bool
    """Whether a token is chosen after it; not so inside a prompt."""


def planned_steps(workload: Workload, spec: ModelRange) -> list[PlannedStep]:
    """The prefill chunks in order, then the decode steps of one repetition."""
    has_head = spec.owns_final_norm_head
    prompt = len(workload.prompt_token_ids)
    prefill = [
        PlannedStep(
            phase="prefill",
            step=index,
            start_position=start,
            num_rows=end - start,
            chooses=has_head and end >= prompt,
        )
        for index, (start, end) in enumerate(prefill_partition(workload))
    ]
    decode = [
        PlannedStep(
            phase="decode", step=step, start_position=prompt + step, num_rows=1, chooses=has_head
        )
        for step in range(workload.decode_steps)
    ]
    return prefill + decode


def step_keys(plan: Plan) -> Iterator[tuple[Key, PlannedStep]]:
    """Keys of the ``steps`` table: one prefill, then every repetition of the decode."""
    workload = plan.workload
    if workload is None:
        return
    for planned in planned_steps(workload, plan.adapter_data.spec):
        repetitions = workload.repetitions if planned.phase == "decode" else 1
        for repetition in range(repetitions):
            yield (repetition, planned.phase, planned.step), planned


def _workload(subject: Subject, findings: Findings) -> Workload | None:
    if subject.plan.workload is None:
        findings.not_evaluated("$.workload", "a workload in the plan", "none")
    return subject.plan.workload


def _outputs(subject: Subject, planned: PlannedStep) -> list[str]:
    """Outputs that the reference fixture holds for one step."""
    recipe = subject.plan.reference_fixture
    declared = recipe.outputs if recipe is not None else ()
    return [name for name in declared if name != "logits" or planned.chooses]


def complete(subject: Subject, findings: Findings) -> None:
    """Exactly the steps that the workload implies, with the tokens of the reference."""
    workload = _workload(subject, findings)
    if workload is None:
        return
    planned_by_key = dict(step_keys(subject.plan))
    expected = {
        key: {"start_position": planned.start_position, "num_rows": planned.num_rows}
        for key, planned in planned_by_key.items()
    }
    tokens = _reference_tokens(subject, findings)
    for _realization, table in subject.view.each(findings, "steps"):
        findings.match(table, expected, rows_noun="a step")
        for key, planned in planned_by_key.items():
            row = table.rows.get(key)
            if row is not None:
                _token(findings, table.path(key), planned, row, tokens)


def _reference_tokens(subject: Subject, findings: Findings) -> Tokens | None:
    """Token after each step, and where the reference says so; every output must agree."""
    if subject.plan.reference_fixture is None:
        return None
    table = subject.view.table(findings, "fixture_outputs")
    if table is None:
        return None
    tokens: Tokens = {}
    for key, row in table.rows.items():
        where = (row["phase"], row["step"])
        token, origin = tokens.setdefault(where, (row["token"], table.path(key)))
        findings.equal(f"{table.path(key)}.token", token, row["token"], origin=origin)
    return tokens


def _token(
    findings: Findings, path: str, planned: PlannedStep, row: Row, tokens: Tokens | None
) -> None:
    if not planned.chooses:
        findings.columns(path, {"token": None, "logits_digest": None, "margin": None}, row)
    else:
        for column in ("token", "logits_digest", "margin"):
            findings.require(row[column] is not None, f"{path}.{column}", "a value", "none")
    if tokens is not None:
        token, origin = tokens.get((planned.phase, planned.step), (None, "no reference output"))
        findings.equal(f"{path}.token", token, row["token"], origin=origin)


def repeat(subject: Subject, findings: Findings) -> None:
    """Token and digests of each step are bitwise equal over repetitions and realizations."""
    workload = _workload(subject, findings)
    if workload is None:
        return
    first: dict[tuple[str, int], tuple[str, Row]] = {}
    for _realization, table in subject.view.each(findings, "steps"):
        for key, planned in step_keys(subject.plan):
            row = table.rows.get(key)
            path = table.path(key)
            if row is None:
                findings.differ(path, "a step", "absent")
                continue
            origin, reference = first.setdefault((planned.phase, planned.step), (path, row))
            for column in _REPEATED:
                if row[column] != reference[column]:
                    findings.differ(
                        f"{path}.{column}", f"{reference[column]} as in {origin}", row[column]
                    )


def exact(subject: Subject, findings: Findings) -> None:
    """Every output of every step equals the reference fixture's, element by element."""
    workload = _workload(subject, findings)
    if workload is None:
        return
    if subject.plan.reference_fixture is None:
        findings.not_evaluated("$.reference_fixture", "a reference fixture in the plan", "none")
        return
    fixture = subject.view.table(findings, "fixture_outputs")
    if fixture is None:
        return
    _fixture_complete(subject, findings, fixture, workload)
    for realization, table in subject.view.each(findings, "correctness"):
        expected: dict[Key, dict[str, object]] = {}
        origins: dict[Key, str] = {}
        for key, planned in step_keys(subject.plan):
            for output in _outputs(subject, planned):
                where = (planned.phase, planned.step, output)
                expected[(*key, output)] = _exact_columns(fixture.rows.get(where))
                origins[(*key, output)] = fixture.path(where)
        findings.match(table, expected, rows_noun="a comparison", origin=origins.__getitem__)
        _digests_equal(subject, findings, fixture, realization, workload)


def _exact_columns(reference: Row | None) -> dict[str, object]:
    columns: dict[str, object] = {"num_different": 0, "max_abs": 0.0, "max_rel": 0.0}
    if reference is not None:
        columns["num_elements"] = math.prod(reference["shape"])
        columns["fixture_digest"] = reference["digest"]
    return columns


def _fixture_complete(
    subject: Subject, findings: Findings, fixture: KeyedRows, workload: Workload
) -> None:
    planned = planned_steps(workload, subject.plan.adapter_data.spec)
    expected: dict[Key, Row] = {
        (step.phase, step.step, output): {}
        for step in planned
        for output in _outputs(subject, step)
    }
    findings.match(fixture, expected, rows_noun="a reference output")
    rows_of = {(item.phase, item.step): item.num_rows for item in planned}
    compute = subject.plan.determinism.dtype if subject.plan.determinism is not None else None
    for key, row in fixture.rows.items():
        path = fixture.path(key)
        size = math.prod(row["shape"]) * DTYPE_BYTES.get(row["dtype"], 0)
        findings.equal(f"{path}.bytes", size, row["bytes"])
        _has_kind(findings, f"{path}.digest", row["digest"])
        dtype, num_rows = compute, rows_of.get((key[0], key[1]))
        if key[2] == "logits":
            dtype, num_rows = "float32", None  # [V]: of the last row, always in float32
        findings.equal(f"{path}.dtype", dtype, row["dtype"])
        if num_rows is not None:
            findings.equal(f"{path}.shape", [num_rows, *row["shape"][1:2]], row["shape"])


def _digests_equal(
    subject: Subject,
    findings: Findings,
    fixture: KeyedRows,
    realization: int,
    workload: Workload,
) -> None:
    """Compare step digests with the fixture's; one of another kind could not be compared."""
    steps = subject.view.table(findings, "steps", realization)
    if steps is None:
        return
    for key, planned in step_keys(subject.plan):
        for output in _outputs(subject, planned):
            reference = fixture.rows.get((planned.phase, planned.step, output))
            row = steps.rows.get(key)
            if reference is None or row is None:
                continue
            got = row[f"{output}_digest"]
            path = f"{steps.path(key)}.{output}_digest"
            if _has_kind(findings, path, got) and _is_of_kind(reference["digest"]):
                origin = fixture.path((planned.phase, planned.step, output))
                findings.equal(path, reference["digest"], got, origin=origin)


def _has_kind(findings: Findings, path: str, digest: object) -> bool:
    found = _is_of_kind(digest)
    findings.require(found, path, f"a digest of kind {_KIND}", digest)
    return found


def _is_of_kind(digest: object) -> bool:
    return isinstance(digest, str) and digest.startswith(_KIND)


def finite(subject: Subject, findings: Findings) -> None:
    """No step and no compared output holds a NaN or an infinite element."""
    for name in ("steps", "correctness"):
        for _realization, table in subject.view.each(findings, name):
            for key, row in table.rows.items():
                findings.columns(table.path(key), {"num_nan": 0, "num_inf": 0}, row)
                margin = row.get("margin")
                findings.require(
                    margin is None or (math.isfinite(margin) and margin >= 0.0),
                    f"{table.path(key)}.margin",
                    "a finite margin of at least 0",
                    str(margin),
                )
