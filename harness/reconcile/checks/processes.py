"""Whether each realization was a process of its own, in its turn, and all its tables are of it.

A process is named by its number and its start time, as the kernel has them. Three write that down
apart: the supervisor that started it, the witness that read it, and the process itself. Records
made before they did are held to the order of their times alone.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise, zip_longest

from harness.reconcile.checks.steps import step_keys
from harness.reconcile.findings import ABSENT, Findings, Key, KeyedRows, Row
from harness.reconcile.view import POINTS, Subject

SEAL, END = "seal", "after_decode"
"""Events between which every step is run."""
_EVENTS = (*(point for point in POINTS if point != END), SEAL, END)
_TIMES = ("received_ns", "compute_ns", "sent_ns", "digest_ns")
_PROCESS = ("process_id", "start_ticks")


def processes(subject: Subject, findings: Findings, trials: KeyedRows) -> None:
    """Hold the times and the names of every producer against those of its witness and its trial."""
    _distinct(findings, trials)
    stages: Sequence[tuple[int | None, str]] = [
        (number, f" {stage.id}") for number, stage in enumerate(subject.plan.stages or ())
    ] or [(None, "")]
    for stage, suffix in stages:
        before: KeyedRows | None = None
        for realization in range(subject.view.num_realizations):
            events = subject.view.table(findings, "lifecycle", realization, stage)
            readings = subject.view.table(findings, "checkpoints", realization, stage)
            key = (f"producer{suffix}", realization)
            for table in (events, readings):
                if table is not None and key in trials.rows:
                    _same_process(findings, table, trials, key)
            if events is None:
                continue
            expected = {(order,): {"event": event} for order, event in enumerate(_EVENTS)}
            findings.match(events, expected, rows_noun="an event")
            _in_order(findings, events, before)
            _while_it_ran(findings, events, trials, key)
            if readings is not None:
                _read_when_asked(findings, readings, events)
            before = events


def stage_times(subject: Subject, findings: Findings, realization: int, stage: int) -> None:
    """What each step took a stage, part by part, is no more than it took as a whole."""
    table = subject.view.table(findings, "stage_times", realization, stage)
    whole = subject.view.table(findings, "step_times", realization, stage)
    if table is None:
        return
    steps = dict(step_keys(subject.plan))
    findings.match(table, {key: {} for key in steps}, rows_noun="the times of a step")
    for key, row in table.rows.items():
        path = table.path(key)
        for column in _TIMES:
            findings.require(row[column] >= 0, f"{path}.{column}", "at least 0", row[column])
        if whole is not None and key in whole.rows:
            took, limit = sum(row[column] for column in _TIMES), whole.rows[key]["duration_ns"]
            expected = f"at most {limit} ns in all, as {whole.path(key)}"
            findings.require(took <= limit, path, expected, took)
    took = sum(row[column] for row in table.rows.values() for column in _TIMES)
    within_window(subject, findings, table, took, (realization, stage))


def within_window(
    subject: Subject,
    findings: Findings,
    table: KeyedRows,
    took_ns: int,
    of: tuple[int, int | None],
) -> None:
    """Steps take no longer than from the seal of the plan to their end, as it was logged.

    Args:
        subject: The record.
        findings: Told of a difference.
        table: Whose rows took ``took_ns`` in all.
        took_ns: Of every step.
        of: Realization and stage.
    """
    events = subject.view.table(findings, "lifecycle", *of)
    moments = {} if events is None else {e["event"]: e["at_ns"] for e in events.rows.values()}
    if {SEAL, END} <= moments.keys():
        window = moments[END] - moments[SEAL]
        findings.require(took_ns <= window, table.where, f"at most {window} ns in all", took_ns)


def _distinct(findings: Findings, trials: KeyedRows) -> None:
    """No two children were one process; those of another stage can be on another machine."""
    seen: dict[tuple[object, ...], str] = {}
    for key, row in trials.rows.items():
        if row.get("process_id") is not None:
            path, of = f"{trials.path(key)}.process_id", key[0].partition(" ")[2]
            before = seen.setdefault((of, *(row[name] for name in _PROCESS)), path)
            findings.require(before == path, path, f"another process than {before}", "the same")


def _same_process(findings: Findings, table: KeyedRows, trials: KeyedRows, key: Key) -> None:
    expected = {name: trials.rows[key].get(name) for name in _PROCESS}
    for each, row in table.rows.items():
        findings.columns(table.path(each), expected, row, origin=trials.path(key))


def _in_order(findings: Findings, events: KeyedRows, before: KeyedRows | None) -> None:
    """Events follow each other, after those of the realization before."""
    moments = _moments(events)
    if before is not None and moments and (earlier := _moments(before)):
        path, first = moments[0]
        ended_path, ended = max(earlier, key=lambda each: each[1])
        if first <= ended:
            findings.differ(path, f"after {ended}, when {ended_path} had been", first)
    for (_path, one), (path, other) in pairwise(moments):
        findings.require(other >= one, path, f"at least {one}, as before", other)


def _while_it_ran(findings: Findings, events: KeyedRows, trials: KeyedRows, key: Key) -> None:
    """A child ran at least as long as from its first event to its last."""
    moments = _moments(events)
    if moments and key in trials.rows:
        took, ran = moments[-1][1] - moments[0][1], trials.rows[key]["duration_ns"]
        path = f"{trials.path(key)}.duration_ns"
        findings.require(took <= ran, path, f"at least {took}, the time of {events.where}", ran)


def _moments(events: KeyedRows) -> list[tuple[str, int]]:
    """Place and time of each event, in order."""
    listed: Iterable[tuple[Key, Row]] = sorted(
        events.rows.items(), key=lambda item: item[1]["order"]
    )
    return [(f"{events.path(key)}.at_ns", row["at_ns"]) for key, row in listed]


def _read_when_asked(findings: Findings, readings: KeyedRows, events: KeyedRows) -> None:
    """The witness read at the point that it names: between the producer's event and its next."""
    listed = sorted(events.rows.values(), key=lambda row: row["order"])
    ends = [row["at_ns"] for row in listed[1:]]
    spans = {row["event"]: (row["at_ns"], end) for row, end in zip_longest(listed, ends)}
    for key, row in readings.rows.items():
        path, read = f"{readings.path(key)}.read_ns", row.get("read_ns")
        if read is None:
            if row.get("process_id") is not None:
                findings.differ(path, "when it was read", ABSENT)
            continue
        if key[0] not in spans:
            continue
        begin, end = spans[key[0]]
        within = f"from {begin}" + ("" if end is None else f" to {end}")
        findings.require(begin <= read and (end is None or read <= end), path, within, read)
