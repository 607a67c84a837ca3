"""Checks that are usually only reported: times of steps, and resident memory."""

from harness.reconcile.checks.processes import within_window
from harness.reconcile.checks.steps import step_keys
from harness.reconcile.findings import Findings, Key, Row
from harness.reconcile.view import POINTS, Subject


def step_times(subject: Subject, findings: Findings) -> None:
    """Every step that the workload implies was timed, within the time that all of them took."""
    workload = subject.plan.workload
    if workload is None:
        findings.not_evaluated("$.workload", "a workload in the plan", "none")
        return
    expected: dict[Key, Row] = {key: {} for key, _planned in step_keys(subject.plan)}
    for realization, table in subject.view.each(findings, "step_times"):
        findings.match(table, expected, rows_noun="a time")
        for key, row in table.rows.items():
            path = table.path(key)
            for column, least in (("duration_ns", 1), ("sentinel_ns", 0)):
                value = row[column]
                findings.require(value >= least, f"{path}.{column}", f"at least {least}", value)
        took = sum(row["duration_ns"] + row["sentinel_ns"] for row in table.rows.values())
        within_window(subject, findings, table, took, (realization, None))


def resident(subject: Subject, findings: Findings) -> None:
    """Resident memory was read at every point; a limit of the check is in bytes."""
    checks = subject.plan.checks
    listed = (*checks.acceptance, *checks.telemetry) if checks is not None else ()
    limits = [check.limit for check in listed if check.id == findings.check]
    for _realization, table in subject.view.each(findings, "checkpoints"):
        for point in POINTS:
            row = table.rows.get((point,))
            path = table.path((point,))
            if row is None:
                findings.differ(path, "a reading", "absent")
                continue
            for limit in limits:
                if isinstance(limit, int | float):
                    rss = row["vm_rss_bytes"]
                    findings.require(rss <= limit, f"{path}.vm_rss_bytes", f"at most {limit}", rss)
