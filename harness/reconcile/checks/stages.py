"""Checks between the stages of a chain: who met, what crossed, and what several of them hold.

Each stage's own realization is judged like a process that runs alone; here one stage's word is
held against another's, and both against the plan.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.plan.layout import DTYPE_BYTES
from harness.plan.records import Plan, Stage
from harness.reconcile.checks.processes import stage_times
from harness.reconcile.checks.steps import PlannedStep, planned_steps
from harness.reconcile.findings import ABSENT, Findings, Key, KeyedRows, Row
from harness.reconcile.view import Subject

OPEN, PLANE, TOKEN, RESTORE = "open", "plane", "token", "restore"
_NONCE = re.compile(r"\A[0-9a-f]{32}\Z")


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One frame that a faithful chain sends from one stage to another."""

    kind: str
    source: int
    target: int
    sequence: int
    """Of frames from this source to this target."""
    start_position: int
    num_rows: int
    step: Key | None
    """Key of the step in which it is sent; ``None`` outside of steps."""

    @property
    def sent(self) -> Key:
        """Key of the sender's row."""
        return ("sent", self.target, self.sequence)

    @property
    def received(self) -> Key:
        """Key of the receiver's row."""
        return ("received", self.source, self.sequence)


def frames(plan: Plan) -> list[Frame]:
    """Every frame of a faithful chain, in an order in which it can be sent."""
    counts: Counter[tuple[int, int]] = Counter()
    found = []
    for kind, source, target, start, rows, step in _events(plan):
        found.append(
            Frame(
                kind=kind,
                source=source,
                target=target,
                sequence=counts[source, target],
                start_position=start,
                num_rows=rows,
                step=step,
            )
        )
        counts[source, target] += 1
    return found


_Event = tuple[str, int, int, int, int, Key | None]


def _events(plan: Plan) -> Iterator[_Event]:
    workload, stages = plan.workload, range(len(plan.stages or ()))
    if workload is None:
        return
    steps = planned_steps(workload, plan.adapter_data.spec)
    prompt = len(workload.prompt_token_ids)
    yield from _around(stages, OPEN, 0)
    yield from _steps(stages, [step for step in steps if step.phase == "prefill"], 0)
    for repetition in range(workload.repetitions):
        yield from _around(stages, RESTORE, prompt)
        yield from _steps(stages, [step for step in steps if step.phase == "decode"], repetition)


def _around(stages: Sequence[int], kind: str, position: int) -> Iterator[_Event]:
    for source, target in pairwise((*stages, stages[0])):
        yield kind, source, target, position, 0, None


def _steps(
    stages: Sequence[int], steps: Sequence[PlannedStep], repetition: int
) -> Iterator[_Event]:
    for step in steps:
        key: Key = (repetition, step.phase, step.step)
        for source, target in pairwise(stages):
            yield PLANE, source, target, step.start_position, step.num_rows, key
        if step.chooses:
            yield TOKEN, stages[-1], stages[0], step.start_position + step.num_rows, 1, key


def complete(subject: Subject, findings: Findings) -> None:
    """Each stage met all others, as the plan has them, under one nonce made for one realization."""
    stages = _stages(subject, findings)
    widths = [_width(subject, findings, number) for number in range(len(stages))]
    nonces: dict[str, str] = {}
    for realization in range(subject.view.num_realizations if stages else 0):
        lead: KeyedRows | None = None
        for number in range(len(stages)):
            table = subject.view.table(findings, "stage_greetings", realization, number)
            if table is None:
                continue
            expected = {
                (n,): {**_greeting(subject, n, stage), "width": widths[n]}
                for n, stage in enumerate(stages)
            }
            findings.match(table, expected, rows_noun="a stage's greeting")
            lead = lead or table
            _as_lead(findings, table, lead)
        first = lead.rows.get((0,)) if lead is not None else None
        if lead is not None and first is not None:
            path = f"{lead.path((0,))}.nonce"
            before = nonces.setdefault(first["nonce"], path)
            findings.require(before == path, path, f"a nonce other than {before}", "the same")
            is_nonce = _NONCE.match(first["nonce"]) is not None
            findings.require(is_nonce, path, "32 hexadecimal digits", first["nonce"])
    for realization in range(subject.view.num_realizations if stages else 0):
        for number in range(len(stages)):
            stage_times(subject, findings, realization, number)


def _stages(subject: Subject, findings: Findings) -> tuple[Stage, ...]:
    if subject.plan.stages is None:
        findings.differ("$.stages", "a plan with stages", ABSENT)
    return subject.plan.stages or ()


def _greeting(subject: Subject, number: int, stage: Stage) -> Row:
    plan, record = subject.plan, subject.predicate
    key, package = record.applicability_key, record.source.package_digest
    return {
        "num_stages": len(plan.stages or ()),
        "plan_digest": plan.digest,
        "start_layer": stage.start_layer,
        "end_layer": stage.end_layer,
        **({} if plan.determinism is None else {"dtype": plan.determinism.dtype}),
        **({} if package is None else {"package_digest": package}),
        **(
            {}
            if key is None
            else {"instruction_set": key.instruction_set, "torch_build": key.torch_build}
        ),
    }


def _as_lead(findings: Findings, table: KeyedRows, lead: KeyedRows) -> None:
    """Each stage heard of all stages what the first one heard, and all share one nonce."""
    first = lead.rows.get((0,))
    for key, row in table.rows.items():
        if key in lead.rows:
            findings.columns(table.path(key), lead.rows[key], row, origin=lead.path(key))
        if first is not None:
            shared = {"nonce": first["nonce"]}
            findings.columns(table.path(key), shared, row, origin=lead.path((0,)))


def crossings(subject: Subject, findings: Findings) -> None:
    """Exactly the planned frames crossed, and each plane has one digest on both of its sides."""
    stages, planned = _stages(subject, findings), frames(subject.plan)
    for realization in range(subject.view.num_realizations if stages else 0):
        steps = [
            subject.view.table(findings, "steps", realization, number)
            for number in range(len(stages))
        ]
        widths = [_width(subject, findings, number) for number in range(len(stages))]
        for number in range(len(stages)):
            table = subject.view.table(findings, "crossings", realization, number)
            if table is None:
                continue
            expected: dict[Key, Row] = {}
            origins: dict[Key, str] = {}
            for frame in planned:
                if number in (frame.source, frame.target):
                    key = frame.sent if number == frame.source else frame.received
                    expected[key] = _columns(subject, frame, steps[frame.source], widths)
                    origins[key] = _origin(frame, steps[frame.source])
            findings.match(table, expected, rows_noun="a frame", origin=origins.__getitem__)


def _width(subject: Subject, findings: Findings, number: int) -> int | None:
    """Elements in a row of a stage's planes, as the reference has them."""
    table = subject.view.table(findings, "fixture_outputs", None, number)
    row = None if table is None else table.rows.get(("prefill", 0, "plane"))
    return None if row is None or len(row["shape"]) != 2 else row["shape"][1]


def _columns(
    subject: Subject, frame: Frame, steps: KeyedRows | None, widths: Sequence[int | None]
) -> Row:
    settings, width = subject.plan.determinism, widths[frame.source]
    columns: dict[str, object] = {
        "kind": frame.kind,
        "session": 1,
        "start_position": frame.start_position,
        "num_rows": frame.num_rows,
        "dtype": "int64",
        "bytes": DTYPE_BYTES["int64"] * frame.num_rows,
        "digest": None,
    }
    if frame.kind == PLANE and settings is not None:
        columns["dtype"] = settings.dtype
        size = frame.num_rows * (width or 0) * DTYPE_BYTES[settings.dtype]
        # What the sender put out: the digest that its own step has.
        row = None if steps is None or frame.step is None else steps.rows.get(frame.step)
        columns |= {"bytes": size, "digest": ABSENT if row is None else row["plane_digest"]}
    return columns


def _origin(frame: Frame, steps: KeyedRows | None) -> str:
    if frame.kind != PLANE or steps is None or frame.step is None:
        return ""
    return steps.path(frame.step)


def tokens(subject: Subject, findings: Findings) -> None:
    """Each token that the last stage chose left it and reached the first; no other frame did."""
    stages, planned = _stages(subject, findings), frames(subject.plan)
    for realization in range(subject.view.num_realizations if stages else 0):
        steps = subject.view.table(findings, "steps", realization, len(stages) - 1)
        for number in range(len(stages)):
            table = subject.view.table(findings, "crossings", realization, number)
            if table is None or steps is None:
                continue
            chosen = {}
            for frame in planned:
                if frame.kind == TOKEN and frame.step is not None:
                    row = steps.rows.get(frame.step)
                    token = None if row is None else row["token"]
                    key = frame.sent if number == frame.source else frame.received
                    if number in (frame.source, frame.target):
                        chosen[key] = token, steps.path(frame.step)
            for key in chosen.keys() - table.rows.keys():
                findings.differ(table.path(key), "the token's frame", ABSENT)
            for key, row in table.rows.items():
                token, origin = chosen.get(key, (None, ""))
                findings.equal(f"{table.path(key)}.token", token, row["token"], origin=origin)


def shared_state(subject: Subject, findings: Findings) -> None:
    """What several stages hold or read is the same on each: a tied table on the first and last."""
    if not _stages(subject, findings):
        return
    if subject.support is None:
        where = "$.stages"
        findings.not_evaluated(where, "each stage's tensors, by an adapter's layout", ABSENT)
        return
    readers: Counter[str] = Counter()
    states: dict[str, str] = {}
    for part in subject.parts:
        for entry in part.manifest or ():
            readers[entry.key] += 1
            states[entry.key] = entry.logical_state_id
    shared = {key for key, number in readers.items() if number > 1}
    for realization in range(subject.view.num_realizations):
        held = _compared(subject, findings, realization)
        _fetched(subject, findings, realization, shared)
        for state in sorted({states[key] for key in shared} - held):
            where = f"tables/tensors/r{realization}[logical_state_id={state}]"
            findings.differ(where, "a tensor that several stages hold", ABSENT)


def _compared(subject: Subject, findings: Findings, realization: int) -> set[str]:
    """Compare resident tensors of one name; returns the states that have such tensors."""
    first: dict[tuple[object, ...], tuple[int, str, Row]] = {}
    held: defaultdict[tuple[object, ...], set[int]] = defaultdict(set)
    for number, part in enumerate(subject.parts):
        table = part.view.table(findings, "tensors", realization)
        forms = {
            item.id: (item.logical_state_id, item.representation)
            for item in part.plan.materializations
        }
        for key, row in () if table is None else table.rows.items():
            if key[0] not in forms:
                continue
            what = (*forms[key[0]], *key[1:])
            assert table is not None
            origin = first.setdefault(what, (number, table.path(key), row))
            held[what].add(number)
            columns = {name: origin[2][name] for name in ("dtype", "shape", "bytes", "digest")}
            findings.columns(table.path(key), columns, row, origin=origin[1])
    return {str(what[0]) for what, numbers in held.items() if len(numbers) > 1}


def _fetched(subject: Subject, findings: Findings, realization: int, shared: set[str]) -> None:
    """What several stages read of the checkpoint has one digest."""
    first: dict[Key, tuple[str, Mapping[str, object]]] = {}
    for part in subject.parts:
        table = part.view.table(findings, "fetches", realization)
        for key, row in () if table is None else table.rows.items():
            if key[0] in shared and table is not None:
                origin, other = first.setdefault(key, (table.path(key), row))
                path = f"{table.path(key)}.digest"
                findings.equal(path, other["digest"], row["digest"], origin=origin)
