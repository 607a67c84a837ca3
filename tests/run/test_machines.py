"""What the first machine makes of what others say: checked, never believed, and in bounded time."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.canonical import canonical_bytes
from harness.cli.stage import address, stage_number
from harness.errors import InvalidInputError
from harness.evidence import tables
from harness.measure.environment import DeviceRequest, probe_environment
from harness.plan.records import Stage, TimeoutsS
from harness.run import machines as rooms
from harness.run.job import Place
from harness.run.machines import Machines, MachinesError, write_environment
from harness.run.post import LOST, MET, PARCEL, Event
from harness.run.processes import MAX_MESSAGE_BYTES, Outcome
from harness.run.reports import REPORT_FILE, take_report, write_report

STAGES = tuple(
    Stage(
        id=f"stage-{number}",
        start_layer=number,
        end_layer=number + 1,
        compute_unit_id=f"stage-{number}.cpu0",
        execution_id=f"stage-{number}.exec",
    )
    for number in range(3)
)
TIMEOUTS = TimeoutsS(fixture_s=60, realization_s=60, audit_s=60, stage_wait_s=1, stage_start_s=1)
PLACE = Place(number=0, nonce="0" * 32, port=1, lead_host="127.0.0.1", own_host="127.0.0.1")


class FakePost:
    """A courier that has said what it will ever say."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = list(events)
        self.sent: list[tuple[int, str]] = []
        self.ended: Outcome | None = None

    def next(self, timeout_s: float) -> Event | None:
        del timeout_s
        return self.events.pop(0) if self.events else None

    def send(self, peer: int, note: Mapping[str, Any], files: Sequence[Path] = ()) -> None:
        del files
        self.sent.append((peer, str(note["kind"])))


def event(said: str, peer: int | None = None, folder: Path | None = None, /, **note: Any) -> Event:
    return Event(kind=said, peer=peer, note=note, folder=folder, reason="pulled the plug")


def outcome(child: str, how: str = "completed") -> Outcome:
    return Outcome(
        child=child,
        realization=0,
        outcome=how,
        exit_code=0,
        signal=None,
        duration_ns=5,
        message=None,
    )


def report(folder: Path, peer: int, realization: Any = 0) -> Event:
    folder.mkdir()
    tables.write(folder, "facts", [{"name": "dtype", "value": "float32"}])
    write_report(folder, (outcome("producer"), outcome("witness")))
    return event(PARCEL, peer, folder, kind="report", realization=realization)


@pytest.fixture
def deal(tmp_path: Path) -> Callable[..., tuple[Machines, FakePost]]:
    """Machines of three stages, of which a realization was asked for."""

    def make(*events: Event, start: bool = True) -> tuple[Machines, FakePost]:
        post = FakePost(events)
        found = Machines(STAGES, TIMEOUTS, post, "127.0.0.1")  # type: ignore[arg-type]
        for number in (1, 2) if start else ():
            (tmp_path / f"out-{number}").mkdir()
            found.start(number, PLACE, 0, tmp_path, tmp_path / f"out-{number}")
        return found, post

    return make


def hello(folder: Path, peer: int) -> Event:
    folder.mkdir()
    write_environment(folder, probe_environment(DeviceRequest(kind="cpu")))
    return event(PARCEL, peer, folder, kind="hello")


def test_machines_meet_and_say_what_they_have(
    deal: Callable[..., tuple[Machines, FakePost]], tmp_path: Path
) -> None:
    found, _ = deal(event(MET), hello(tmp_path / "b", 2), hello(tmp_path / "a", 1), start=False)
    assert set(found.meet()) == {"stage-1", "stage-2"}


@pytest.mark.parametrize(
    ("second", "named"),
    [
        (event(LOST), "pulled the plug"),
        (event(LOST, 2), "machine of stage-2 is lost: pulled the plug"),
        (None, "does not say what it has"),
        ("malformed", "stage-2 is lost: it sent what is not taken"),
        ("report", "a parcel out of turn"),
        ("again", "a parcel out of turn"),
    ],
)
def test_machines_that_do_not_meet_are_named(
    deal: Callable[..., tuple[Machines, FakePost]], tmp_path: Path, second: Any, named: str
) -> None:
    events = [event(MET), hello(tmp_path / "a", 1)]
    if second == "malformed":
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / rooms.ENVIRONMENT_FILE).write_bytes(b"{}")
        second = event(PARCEL, 2, tmp_path / "b", kind="hello")
    elif second == "report":
        second = report(tmp_path / "b", 2)
    elif second == "again":
        second = hello(tmp_path / "b", 1)
    found, _ = deal(*events, *([] if second is None else [second]), start=False)
    with pytest.raises(MachinesError, match=named):
        found.meet()


def test_a_report_is_waited_for_and_taken(
    deal: Callable[..., tuple[Machines, FakePost]], tmp_path: Path
) -> None:
    found, post = deal()
    assert found.report_of(1, 0) is None
    post.events = [report(tmp_path / "a", 1)]
    producer, witness = found.report_of(1, 0) or (None, None)
    assert (producer, witness) == (outcome("producer stage-1"), outcome("witness stage-1"))
    assert [path.name for path in (tmp_path / "out-1").iterdir()] == ["facts.parquet"]
    assert found.gone is None
    assert found.report_of(2, 0) is None


@pytest.mark.parametrize("realization", [1, None, "0", False])
def test_a_report_out_of_turn_loses_the_machine(
    deal: Callable[..., tuple[Machines, FakePost]], tmp_path: Path, realization: Any
) -> None:
    found, _ = deal(report(tmp_path / "a", 2, realization))
    producer, witness = found.report_of(2, 0) or (None, None)
    assert producer is not None
    assert witness is not None
    assert (producer.outcome, witness.outcome) == ("failed", "failed")
    assert "a parcel out of turn" in str(found.gone)
    assert "stage-2" in str(producer.message)
    assert list((tmp_path / "out-2").iterdir()) == []


def test_a_second_report_loses_the_machine(
    deal: Callable[..., tuple[Machines, FakePost]], tmp_path: Path
) -> None:
    found, _ = deal(report(tmp_path / "a", 1), report(tmp_path / "b", 1))
    assert found.report_of(2, 0) is None
    assert "stage-1 is lost: it sent what is not taken: a parcel out of turn" in str(found.gone)
    # What it reported in its turn stands.
    assert (found.report_of(1, 0) or (None,))[0] == outcome("producer stage-1")


def test_a_silent_machine_is_ended_and_lost_in_bounded_time(
    deal: Callable[..., tuple[Machines, FakePost]],
) -> None:
    found, post = deal()
    producer, _ = found.end(1)
    assert post.sent[-1] == (1, "end")
    assert producer.outcome == "failed"
    assert "did not report within" in str(producer.message)
    assert "did not report within" in str(found.gone)


def test_without_its_courier_the_first_machine_has_lost_all(
    deal: Callable[..., tuple[Machines, FakePost]],
) -> None:
    found, _ = deal(event(LOST))
    for number in (1, 2):
        producer, _ = found.report_of(number, 0) or (None, None)
        assert producer is not None
        assert "pulled the plug" in str(producer.message)


def test_tables_that_cannot_be_read_fail_the_stage_and_stay_out(
    deal: Callable[..., tuple[Machines, FakePost]], tmp_path: Path
) -> None:
    sent = report(tmp_path / "a", 1)
    (tmp_path / "a" / "steps.parquet").write_bytes(b"PAR1 nothing PAR1")
    (tmp_path / "a" / "trials.parquet").write_bytes((tmp_path / "a" / "facts.parquet").read_bytes())
    (tmp_path / "a" / "job.json").write_bytes(b"{}")
    found, _ = deal(sent)
    producer, witness = found.report_of(1, 0) or (None, None)
    assert producer is not None
    assert producer.outcome == "failed"
    for name in ("steps.parquet", "trials.parquet", "job.json"):
        assert name in str(producer.message)
    assert witness == outcome("witness stage-1")
    assert [path.name for path in (tmp_path / "out-1").iterdir()] == ["facts.parquet"]


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "passed"},
        {"outcome": 1},
        {"exit_code": True},
        {"exit_code": -9},
        {"exit_code": 256},
        {"signal": "S" * 33},
        {"duration_ns": -1},
        {"duration_ns": "1"},
        {"process_id": -1},
        {"start_ticks": "1"},
        {"message": 1},
        {"more": 1},
    ],
)
def test_a_malformed_outcome_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    write_report(tmp_path, (outcome("producer"), outcome("witness")))
    document = json.loads((tmp_path / REPORT_FILE).read_text())
    document["witness"] |= change
    (tmp_path / REPORT_FILE).write_bytes(canonical_bytes(document))
    with pytest.raises(InvalidInputError, match="not a report"):
        take_report(tmp_path, tmp_path, "stage-1", 0)


def test_a_long_message_is_cut(tmp_path: Path) -> None:
    ended = replace(outcome("producer", "failed"), message="x" * 5000)
    write_report(tmp_path, (ended, outcome("witness")))
    (producer, _), _ = take_report(tmp_path, tmp_path, "stage-1", 0)
    assert producer.message == "x" * MAX_MESSAGE_BYTES


def test_a_stage_takes_the_number_that_a_launcher_gives() -> None:
    assert stage_number(2, None, 3, {}) == 2
    assert stage_number(None, "RANK", 3, {"RANK": "1"}) == 1
    for text in ("3", "-1", "", "two", "1.0", "²"):
        with pytest.raises(InvalidInputError, match="not the number of a stage"):
            stage_number(None, "RANK", 3, {"RANK": text})
    for number, stages in ((3, 3), (-1, 3), (0, 0)):
        with pytest.raises(InvalidInputError, match="not the number of a stage"):
            stage_number(number, None, stages, {})
    with pytest.raises(InvalidInputError, match="not the number of a stage"):
        stage_number(None, "RANK", 3, {})


def test_where_the_first_machine_listens_is_host_and_port() -> None:
    found = address("192.0.2.1:29500")
    assert (found.host, found.port) == ("192.0.2.1", 29500)
    for text in ("192.0.2.1", ":1", "a:0", "a:65536", "a:1\n", "a b:1", "a:b"):
        with pytest.raises(InvalidInputError, match="not an address"):
            address(text)
