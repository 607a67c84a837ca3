"""The other machines of a run, as the first one deals with them.

    first machine                            every other machine, one for each stage
    meet, and compare                 <->    meet, and compare
                                      <-     hello: what it has
    open: nonce, port, reference      ->     starts the producer and the witness of its stage
    (end: stop what still runs)       ->
                                      <-     report: how both ended, and their tables
    close: the verdict                ->     ends

A stage on another machine is waited for like a child of this one. What a machine says is checked
and never believed; one that is lost, late or out of turn is named, and asked no more. Imports no
torch and judges nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from harness.canonical import canonical_bytes, read_json, write_durable
from harness.errors import HarnessError, InvalidInputError
from harness.measure.clock import monotonic_ns
from harness.plan.environment import Environment, environment_document, parse_environment
from harness.plan.recipe import FIXTURE_FILE
from harness.plan.records import Plan, Stage, TimeoutsS
from harness.run.job import Job, Place, write_job
from harness.run.post import LOST, MET, PARCEL, Event, Post
from harness.run.processes import Outcome, not_started
from harness.run.request import Address
from harness.run.watching import STAGE_ENVIRONMENT
from harness.stages.listener import listen

HELLO, OPEN, END, REPORT, CLOSE = "hello", "open", "end", "report", "close"
ENVIRONMENT_FILE = "environment.json"
MAX_ENVIRONMENT_BYTES = 1 << 17
NO_NONCE = "0" * 32
"""Of couriers: they are of a whole run, and nonces are of its realizations."""
COURIER_START_S = 30.0
_REPORT_S = 60.0
"""For a machine to end what runs there, and to report."""
_CLOSE_S = 10.0


class MachinesError(HarnessError):
    """The machines did not meet; ``outcome`` says how the first one noticed."""

    def __init__(self, problem: str, exit_code: int | None) -> None:
        super().__init__(problem)
        self.code = exit_code


def idle_s(plan: Plan) -> float:
    """Longest time in which a machine may hear nothing: all that a run of the plan may take."""
    timeouts, workload = plan.timeouts, plan.workload
    assert timeouts is not None
    assert workload is not None
    whole_run_s = timeouts.realization_s * workload.fresh_realizations
    return timeouts.fixture_s + timeouts.audit_s + whole_run_s + 2.0 * (timeouts.stage_start_s or 0)


def write_environment(folder: Path, environment: Environment) -> Path:
    """Write what a machine observed of itself, to be sent."""
    path = folder / ENVIRONMENT_FILE
    write_durable(path, canonical_bytes(environment_document(environment)))
    return path


@dataclass(kw_only=True)
class _Machine:
    """One other machine, and what is known of it."""

    stage: Stage
    environment: Environment | None = None
    lost: str | None = None
    """Why it is asked no more."""
    awaited: tuple[int, Path] | None = None
    """The realization that it is to report, and where its tables go."""
    report: tuple[Outcome, Outcome] | None = None


class Machines:
    """All machines but the first, by the numbers of their stages."""

    def __init__(self, stages: Sequence[Stage], timeouts: TimeoutsS, post: Post, host: str) -> None:
        """Deal with machines that are still to come.

        Args:
            stages: Of the whole plan, each on a machine.
            timeouts: Of the plan.
            post: This machine's courier.
            host: This machine's address.
        """
        self.host = host
        self._timeouts = timeouts
        self._post = post
        self._others = {n: _Machine(stage=stage) for n, stage in enumerate(stages) if n > 0}

    def meet(self) -> Mapping[str, Environment]:
        """Wait until every machine is here; returns what each has, by its stage.

        Raises:
            MachinesError: When one does not come, or is none of this run's.
        """
        start_s = float(self._timeouts.stage_start_s or 0)
        deadline = monotonic() + start_s + COURIER_START_S
        first = self._post.next(deadline - monotonic())
        if first is None or first.kind != MET:
            reason = f"the machines did not meet within {start_s:g} s"
            code = None if self._post.ended is None else self._post.ended.exit_code
            raise MachinesError(reason if first is None else first.reason, code)
        deadline = monotonic() + float(self._timeouts.stage_wait_s or 0)
        while any(machine.environment is None for machine in self._others.values()):
            event = self._post.next(deadline - monotonic())
            if event is not None:
                self._take(event)
            gone = self.gone or ("a machine does not say what it has" if event is None else None)
            if gone is not None:
                raise MachinesError(gone, None)
        return {
            machine.stage.id: machine.environment
            for machine in self._others.values()
            if machine.environment is not None
        }

    @property
    def gone(self) -> str | None:
        """Which machine is lost, and why; ``None`` while there is none."""
        for machine in self._others.values():
            if machine.lost is not None:
                return f"the machine of {machine.stage.id} is lost: {machine.lost}"
        return None

    def start(
        self, number: int, place: Place, realization: int, fixture: Path, out: Path
    ) -> "tuple[RemoteProducer, RemoteWitness]":
        """Have a machine realize its stage.

        Args:
            number: Of the stage.
            place: Of the first stage, where the others meet it.
            realization: Which fresh realization it is.
            fixture: Folder of the stage's share of the reference.
            out: Folder for the stage's tables.
        """
        machine = self._others[number]
        machine.awaited, machine.report = (realization, out), None
        note = {"kind": OPEN, "realization": realization, "nonce": place.nonce, "port": place.port}
        self._post.send(number, note, [fixture / FIXTURE_FILE])
        return RemoteProducer(self, number), RemoteWitness(self, number)

    def report_of(self, number: int, timeout_s: float) -> tuple[Outcome, Outcome] | None:
        """How a stage's processes ended, as far as it is known within some time."""
        machine, deadline = self._others[number], monotonic() + timeout_s
        while machine.report is None and machine.lost is None:
            event = self._post.next(max(0.0, deadline - monotonic()))
            if event is None:
                return None
            self._take(event)
        return machine.report or _lost(machine)

    def end(self, number: int) -> tuple[Outcome, Outcome]:
        """Have a machine end what still runs there, and report, in bounded time."""
        realization = (self._others[number].awaited or (0,))[0]
        self._post.send(number, {"kind": END, "realization": realization})
        found = self.report_of(number, _REPORT_S)
        if found is None:
            machine = self._others[number]
            machine.lost = f"it did not report within {_REPORT_S:g} s"
            found = _lost(machine)
        return found

    def close(self, record: str, status: str, exit_code: int) -> None:
        """Tell every machine how the run ended, and let it go."""
        note = {"kind": CLOSE, "record": record, "status": status, "exit_code": exit_code}
        for number, machine in self._others.items():
            if machine.lost is None:
                self._post.send(number, note)
        deadline = monotonic() + _CLOSE_S
        # What was sent is on its way until the other end has gone.
        while any(machine.lost is None for machine in self._others.values()):
            event = self._post.next(max(0.0, deadline - monotonic()))
            if event is None:
                return
            self._take(event)

    def _take(self, event: Event) -> None:
        """Note what a courier said."""
        if event.kind == LOST and event.peer is None:
            for machine in self._others.values():
                machine.lost = machine.lost or event.reason
        elif event.peer in self._others:
            machine = self._others[event.peer]
            if event.kind == LOST:
                machine.lost = machine.lost or event.reason
            elif event.kind == PARCEL and machine.lost is None:
                try:
                    _received(machine, event)
                except (HarnessError, OSError) as error:
                    machine.lost = f"it sent what is not taken: {error}"


def _received(machine: _Machine, event: Event) -> None:
    """Take a parcel, if it is that machine's turn to send it.

    Raises:
        InvalidInputError: When it is not, or holds something else.
    """
    kind, folder = event.note.get("kind"), event.folder
    assert folder is not None
    if kind == HELLO and machine.environment is None:
        document = read_json(folder / ENVIRONMENT_FILE, max_bytes=MAX_ENVIRONMENT_BYTES)
        machine.environment = parse_environment(document, where=f"machine of {machine.stage.id}")
        return
    realization, awaited = event.note.get("realization"), machine.awaited
    is_awaited = awaited is not None and type(realization) is int and realization == awaited[0]
    if kind == REPORT and awaited is not None and is_awaited:
        from harness.run.reports import take_report  # reads tables: long to load

        (number, out), machine.awaited = awaited, None
        (producer, witness), refused = take_report(folder, out, machine.stage.id, number)
        if refused:
            message = f"tables that cannot be taken: {'; '.join(refused)}"
            producer = replace(producer, outcome="failed", message=message)
        machine.report = producer, witness
        return
    raise InvalidInputError("a parcel out of turn", got=f"{kind!r:.80} of {realization!r:.80}")


def _lost(machine: _Machine) -> tuple[Outcome, Outcome]:
    """Outcomes of processes of which nobody can tell any more."""
    realization = (machine.awaited or (0,))[0]
    message = f"the machine of {machine.stage.id} is lost: {machine.lost}"
    producer, witness = (
        replace(not_started(f"{child} {machine.stage.id}", realization, message), outcome="failed")
        for child in ("producer", "witness")
    )
    return producer, witness


class RemoteProducer:
    """A stage's producer on another machine; waited for like a child of this one."""

    def __init__(self, machines: Machines, number: int) -> None:
        self._machines = machines
        self._number = number
        self._began_ns = monotonic_ns()

    def poll(self) -> int | None:
        """0 or 1 once it is known that it ended, well or not."""
        found = self._machines.report_of(self._number, 0)
        return None if found is None else int(found[0].outcome != "completed")

    def wait(self, timeout_s: float) -> Outcome:
        """How it ended; what still runs after ``timeout_s`` is ended there."""
        found = self._machines.report_of(self._number, timeout_s)
        return (found or self._machines.end(self._number))[0]

    def end(self) -> None:
        """End it there, if it still runs."""
        if self.poll() is None:
            self._machines.end(self._number)


class RemoteWitness(RemoteProducer):
    """The same stage's witness, which ends with the producer."""

    def wait(self, timeout_s: float) -> Outcome:
        """How it ended, as it was reported with the producer."""
        found = self._machines.report_of(self._number, timeout_s)
        return (found or self._machines.end(self._number))[1]


@contextmanager
def first_machine(
    job: Job,
    stages: Sequence[Stage],
    timeouts: TimeoutsS,
    *,
    address: Address,
    environment: Mapping[str, str],
    work: Path,
    argv: Sequence[str],
) -> Iterator[Machines]:
    """Listen for the machines of the other stages.

    Args:
        job: Of this machine's stage.
        stages: Of the whole plan.
        timeouts: Of the plan.
        address: Of this machine, and the port to listen at.
        environment: Variables of the courier.
        work: Folder for what comes.
        argv: The courier's command.

    Raises:
        NotEvaluableError: When the port is in use, or the address is not this machine's.
    """
    with listen(address.host, address.port) as listener:
        place = Place(
            number=0,
            nonce=NO_NONCE,
            port=listener.getsockname()[1],
            lead_host=address.host,
            own_host=address.host,
        )
        path = work / "courier.json"
        write_job(path, replace(job, place=place))
        post = Post(
            [
                *(*argv, "--job", str(path), "--inbox", str(work / "inbox")),
                *("--listen-fd", str(listener.fileno())),
            ],
            {**environment, **STAGE_ENVIRONMENT},
            pass_fds=(listener.fileno(),),
        )
    with post:
        yield Machines(stages, timeouts, post, address.host)
