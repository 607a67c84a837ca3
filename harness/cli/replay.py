"""``harness replay`` and ``harness state``: reproduce a record, and say in which state it is."""

import signal
from argparse import Namespace

from harness.checkpoint.cache import default_cache
from harness.cli.device import device_of
from harness.cli.output import print_json, print_lines
from harness.cli.records import find_record
from harness.errors import ExitCode, HarnessError
from harness.evidence.record import LoadedRecord
from harness.laboratory.record_states import history, newest_verdict, set_state, state_of
from harness.laboratory.replay import replay as run_replay
from harness.laboratory.states import PERSON, REPLAY, VALID, ground
from harness.plan.load import parse_plan
from harness.run.progress import Progress
from harness.run.request import RunRequest

_CODES = {
    "valid": ExitCode.PASSED,
    "stale": ExitCode.FAILED,
    "degraded": ExitCode.FAILED,
    "inapplicable": ExitCode.NOT_EVALUABLE,
}


def replay(options: Namespace) -> int:
    """Run a recorded plan again, compare every digest, and set the record's state."""
    record = find_record(options.record, options.store)
    plan = parse_plan(record.plan_bytes(), where=record.predicate.plan.file_digest).plan
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    base = RunRequest(
        experiment=record.predicate.experiment,
        plan_path=options.store,
        plan_digest=None,
        store=record.store.root,
        cache=options.cache or default_cache(),
        device=device_of(plan),
        accept_terms=options.accept_terms,
        command=("harness", *options.command_line),
    )
    with Progress() as progress:
        digest, study = run_replay(record, base, progress)
    found = study.findings
    note = _set(record, digest, found["state"], options)
    if options.json:
        print_json({"study": digest, "findings": dict(found), "note": note})
    else:
        counts = ", ".join(f"{count} {name}" for name, count in found["counts"].items() if count)
        lines = [f"digests    {counts}"]
        if found["inapplicable_fields"]:
            lines.append(f"key        other {', '.join(found['inapplicable_fields'])}")
        first = found["first_not_reproduced"]
        if first is not None:
            lines.append(f"first      {first['table']} {first['place']}: {first['column']}")
        if not found["is_whole"]:
            lines.append(f"problem    the replay did not run to its end: {study.records[1]}")
        print_lines([*lines, f"state      {note}", f"study      {digest}"])
    return int(_CODES.get(found["state"], ExitCode.NOT_EVALUABLE))


def _set(record: LoadedRecord, digest: str, state: str | None, options: Namespace) -> str:
    """Set what the replay says, where it may; returns what the record's state is."""
    before = state_of(record)
    if state is None or state == before:
        return before
    try:
        set_state(
            record,
            state,
            actor=REPLAY,
            reason=f"replay {digest}",
            evidence=digest,
            command=("harness", *options.command_line),
        )
    except HarnessError as error:
        return f"{before} ({error.problem})"
    return state


def state(options: Namespace) -> int:
    """Show the state of a record with its history, or set one as a person."""
    record = find_record(options.record, options.store)
    if options.set is not None:
        set_state(
            record,
            options.set,
            actor=PERSON,
            reason=options.reason or "",
            command=("harness", *options.command_line),
        )
    entries, now = history(record), state_of(record)
    if options.json:
        print_json({"state": now, "history": [vars(entry) for entry in entries]})
    else:
        lines = [f"{now:<13}{record.digest}"]
        lines.append(f"  {ground(newest_verdict(record)):<13}auditor: by its newest verdict")
        lines += [f"  {e.state:<13}{e.actor}: {e.reason}" for e in entries]
        print_lines(lines)
    return int(ExitCode.PASSED if now == VALID else ExitCode.FAILED)
