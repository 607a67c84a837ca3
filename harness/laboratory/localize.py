"""``localize``: runs every case in fresh armed processes, and writes one study of them.

    frozen plans -> check all -> (run, record, audit) x cases -> matrix, trials, findings -> study

Each case is an ordinary run of its plan, with its record and verdict; a case that could not start
keeps its place with the reason. Imports no torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.adapters.families import layout_for
from harness.errors import HarnessError, InvalidInputError
from harness.evidence.redact import redact_text
from harness.evidence.store import Store
from harness.evidence.studies import MAX_STUDY_TABLES, StoredTensors, StudyPredicate, StudyTable
from harness.evidence.tables import WrittenTable
from harness.laboratory.cases import FrozenCase
from harness.laboratory.localization import NOT_EVALUATED, case_finding, case_matrix, findings
from harness.laboratory.matrix import matrix_rows
from harness.laboratory.trials import CaseTables, trial_rows
from harness.laboratory.writing import draft, finish, put_rows
from harness.measure.clock import utc_timestamp
from harness.plan.records import Plan
from harness.plan.request import layout_request
from harness.realize.arming import Arming
from harness.realize.schedule import schedule_of
from harness.run.progress import Progress
from harness.run.request import RunRequest
from harness.run.supervisor import Completed, check, execute

KIND = "localization"
MAX_PROBLEM_CHARS = 2000
INTERRUPTED, NOT_BEGUN = "interrupted while it ran", "not begun after an interrupt"


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One case after its trials."""

    case: FrozenCase
    completed: Completed | None
    problem: str | None
    """Why there was no run at all."""


def run_cases(
    base: RunRequest,
    cases: Sequence[FrozenCase],
    arming: Arming,
    progress: Progress,
) -> list[Observed]:
    """Check every case, then run one after another; none that fails ends another.

    An interrupt ends the case that runs, and those after it are not begun; all keep their places.

    Raises:
        HarnessError: When a plan breaks a rule, or has nothing to arm; nothing was started then.
    """
    _require_room(cases)
    requests = [_request(base, case, arming) for case in cases]
    for request in requests:
        require_armable(check(request).plan, arming)
    observed: list[Observed] = []
    for number, (case, request) in enumerate(zip(cases, requests, strict=True), start=1):
        progress.update(f"case {number}/{len(cases)}: {case.name}")
        try:
            completed, problem = execute(request, progress), None
        except HarnessError as error:
            completed, problem = None, redact_text(str(error))[:MAX_PROBLEM_CHARS]
        except KeyboardInterrupt:
            rest = cases[number:]
            observed.append(Observed(case=case, completed=None, problem=INTERRUPTED))
            return observed + [Observed(case=c, completed=None, problem=NOT_BEGUN) for c in rest]
        observed.append(Observed(case=case, completed=completed, problem=problem))
    return observed


RunCases = Callable[[RunRequest, Sequence[FrozenCase], Arming, Progress], list[Observed]]
"""What :func:`run_cases` is."""


def localize(
    base: RunRequest,
    cases: Sequence[FrozenCase],
    arming: Arming,
    progress: Progress,
    *,
    campaign: str | None = None,
    execute_cases: RunCases = run_cases,
) -> tuple[str, StudyPredicate]:
    """Localize over cases; returns the study's digest in ``base.store``, and what it says.

    Args:
        base: Store, cache, device, command and planted fault; the plan is each case's.
        cases: With their frozen plans.
        arming: What every process observes.
        progress: Where the state of the runs is shown.
        campaign: Digest of the campaign whose cases these are, if they are one's.
        execute_cases: Runs the cases; replaced in tests.
    """
    started_at = utc_timestamp()
    observed = execute_cases(base, cases, arming, progress)
    store = Store(base.store)
    tables, tensors, records, listed = references(observed)
    found = []
    for number, each in enumerate(observed):
        case = tables_of(each, arming)
        made = (("matrix", matrix_rows(case_matrix(case))), ("case_trials", trial_rows(case)))
        tables += [put_rows(store, name, rows, case=number) for name, rows in made]
        found.append(case_finding(case))
    study = draft(
        kind=KIND,
        experiment=base.experiment,
        parameters={
            "arming": arming.document(),
            "boundaries_version": boundaries_version(cases),
            "planted_fault": base.planted_fault,
            "campaign": campaign,
            "cases": [described(*pair) for pair in zip(observed, listed, strict=True)],
        },
        records=records,
        tables=tables,
        tensors=tensors,
        command=base.command,
        started_at=started_at,
    )
    return finish(store, study, findings(found))


def references(
    observed: Sequence[Observed],
) -> tuple[list[StudyTable], list[StoredTensors], list[str], list[int | None]]:
    """Tables, tensors and records of all cases, and each case's place among the records."""
    tables: list[StudyTable] = []
    tensors: list[StoredTensors] = []
    records: list[str] = []
    places: list[int | None] = []
    for number, each in enumerate(observed):
        places.append(None if each.completed is None else len(records))
        if each.completed is not None:
            records.append(each.completed.record)
            left = each.completed.observed
            tables += [_of_case(number, table) for table in left.gathered.written]
            tensors += [replace(file, case=number) for file in left.tensors]
    return tables, tensors, records, places


def _of_case(number: int, table: WrittenTable) -> StudyTable:
    # What is armed has no stages.
    fields = {name: value for name, value in vars(table).items() if name != "stage"}
    return StudyTable(case=number, **fields)


def tables_of(observed: Observed, arming: Arming) -> CaseTables:
    """Everything that was observed of one case."""
    planned = CaseTables(num_realizations=_processes(observed.case), repetitions=arming.repetitions)
    if observed.completed is None:
        return planned
    rows, armed = observed.completed.gathered.rows, observed.completed.observed.gathered.rows

    def of(source: Any, name: str) -> dict[int, Any]:
        return {n: each for n, each in source.get(name, {}).items() if n is not None}

    return replace(
        planned,
        ledger=rows.get("trials", {}).get(None, []),
        steps=of(rows, "steps"),
        boundaries=of(armed, "boundaries"),
        armed_steps=of(armed, "armed_steps"),
        replay_states=of(armed, "replay_states"),
    )


def require_armable(plan: Plan, arming: Arming) -> None:
    """Refuse an arming that a plan has nothing for.

    Raises:
        InvalidInputError: When no step or no boundary passes.
    """
    request = layout_request(plan)
    layout = layout_for(plan.adapter_data.family or "")
    names = layout.boundaries(request.config, request.spec)
    steps = schedule_of(request.workload, request.spec).steps()
    places = [(step.phase, step.step) for step in steps]
    first = (arming.replay_phase, arming.replay_step)
    passing = [
        step
        for step in (steps[places.index(first) :] if first in places else ())
        if arming.passes_step(step.phase, step.step, step.num_rows)
    ]
    if not passing or not any(arming.passes_boundary(name) for name in names):
        raise InvalidInputError(
            "the plan has nothing that this arming lets pass",
            expected=f"steps among {', '.join(f'{phase} {step}' for phase, step in places[:20])}",
            got=str(arming.document()),
            where=plan.digest,
        )


def _require_room(cases: Sequence[FrozenCase]) -> None:
    """Refuse what would not fit into one study, before it was run."""
    # Four tables of each process, two of the case, and what a study has of its own.
    needed = sum(4 * _processes(case) + 2 for case in cases)
    if needed > MAX_STUDY_TABLES:
        raise InvalidInputError(
            "too many cases and processes for one study",
            expected=f"at most {MAX_STUDY_TABLES} tables",
            got=f"{needed} of {len(cases)} cases",
            hint="study fewer cases or processes at once",
        )


def _request(base: RunRequest, case: FrozenCase, arming: Arming) -> RunRequest:
    assert case.plan.path is not None
    if case.planted is not None:
        base = replace(
            base,
            planted_fault=None,
            producer_argv=RunRequest.producer_argv,
            fixture_argv=RunRequest.fixture_argv,
        )
    return replace(
        base,
        plan_path=case.plan.path,
        plan_digest=case.plan.plan.digest,
        arming=arming,
        **(case.planted or {}),
    )


def described(observed: Observed, record: int | None) -> dict[str, Any]:
    """One case as a study's parameters tell of it."""
    completed = observed.completed
    return {
        "point": dict(observed.case.point),
        "plan_digest": observed.case.plan.plan.digest,
        "num_realizations": _processes(observed.case),
        "record": record,
        "audit": NOT_EVALUATED if completed is None else str(completed.verdict["status"]),
        "problem": observed.problem,
    }


def boundaries_version(cases: Sequence[FrozenCase]) -> str:
    """Version of the boundary list of cases, which are of one family."""
    return layout_for(cases[0].plan.plan.adapter_data.family or "").boundaries_version


def _processes(case: FrozenCase) -> int:
    workload = case.plan.plan.workload
    assert workload is not None
    return workload.fresh_realizations
