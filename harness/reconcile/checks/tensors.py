"""Checks of resident tensors: as the reference transform makes them, and unchanged by decode."""

from collections import Counter
from collections.abc import Iterator

from harness.plan.records import Materialization, Plan
from harness.reconcile.findings import ABSENT, Findings, Key, KeyedRows, Row
from harness.reconcile.intent import is_wanted
from harness.reconcile.view import Subject

_COLUMNS = ("dtype", "shape", "bytes", "digest")


def hashed(plan: Plan) -> Iterator[Materialization]:
    """Materializations whose tensors are hashed: every residency that execution only reads."""
    for intent in plan.materializations:
        if intent.role == "required_residency" and is_wanted(intent):
            yield intent


def expected(subject: Subject, findings: Findings) -> None:
    """Each resident tensor has the bytes that the fixture maker's own transform gives."""
    reference = subject.view.table(findings, "expected_tensors")
    if reference is None:
        return
    _reference_complete(subject, findings, reference)
    by_form: dict[str, list[Key]] = {}
    for key in reference.rows:
        by_form.setdefault(key[0], []).append(key)
    wanted: dict[Key, Row] = {}
    origins: dict[Key, str] = {}
    for intent in hashed(subject.plan):
        for key in by_form.get(intent.representation, []):
            there = (intent.id, key[1], "after_population")
            wanted[there] = {column: reference.rows[key][column] for column in _COLUMNS}
            origins[there] = reference.path(key)
    for _realization, table in subject.view.each(findings, "tensors"):
        populated = KeyedRows(
            table.where,
            table.key_columns,
            (row for key, row in table.rows.items() if key[2] == "after_population"),
        )
        findings.match(populated, wanted, rows_noun="a tensor", origin=origins.__getitem__)
        totals: Counter[str] = Counter()
        for key, row in populated.rows.items():
            totals[key[0]] += row["bytes"]
        for intent in hashed(subject.plan):
            where = f"{table.where}[materialization_id={intent.id},point=after_population].bytes"
            findings.equal(where, intent.expected_bytes, totals[intent.id])


def _reference_complete(subject: Subject, findings: Findings, reference: KeyedRows) -> None:
    forms = {
        intent.representation: (intent.logical_state_id, intent.representation)
        for intent in hashed(subject.plan)
    }
    for key in reference.rows:
        if key[0] not in forms:
            findings.differ(reference.path(key), ABSENT, "a tensor of no planned residency")
    for form in sorted(forms):
        if subject.specs is None or forms[form] not in subject.specs:
            present = any(key[0] == form for key in reference.rows)
            where = f"{reference.where}[representation={form}]"
            findings.require(present, where, "its tensors", ABSENT)
            continue
        specs = {
            (form, spec.name): {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "bytes": spec.num_bytes,
            }
            for spec in subject.specs[forms[form]]
        }
        of_form = KeyedRows(
            reference.where,
            reference.key_columns,
            (row for key, row in reference.rows.items() if key[0] == form),
        )
        findings.match(of_form, specs, rows_noun="a tensor of the representation")


def unchanged(subject: Subject, findings: Findings) -> None:
    """Each resident tensor has the same bytes after decode as after population."""
    for _realization, table in subject.view.each(findings, "tensors"):
        for key, row in table.rows.items():
            identifier, name, point = key
            if point == "after_population":
                later = table.rows.get((identifier, name, "after_decode"))
                path = table.path((identifier, name, "after_decode"))
                if later is None:
                    findings.differ(path, "a tensor", ABSENT)
                else:
                    before = {column: row[column] for column in _COLUMNS}
                    findings.columns(path, before, later, origin=table.path(key))
                continue
            was_there = (identifier, name, "after_population") in table.rows
            if point != "after_decode" or not was_there:
                findings.differ(table.path(key), ABSENT, "a tensor")
