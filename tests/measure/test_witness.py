"""The witness against real processes with real copies in their memory."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.evidence import tables
from harness.measure.wire import MAX_FRAME_BYTES, receive, send
from harness.measure.witness_start import start_witness, witness_pair

MIB = 1 << 20
PLAIN_GROWTH_BYTES = 512 << 10
SEEN_BYTES = MIB - (64 << 10)
"""Least growth that a mirror of 1 MiB shows: the heap around it may give a few pages back."""
KIND_OF_PLANT = {
    "tensor": "private_anonymous_bytes",
    "numpy": "private_anonymous_bytes",
    "bytearray": "private_anonymous_bytes",
    "private_mmap": "private_anonymous_bytes",
    "cpp_storage": "private_anonymous_bytes",
    "c_heap": "private_anonymous_bytes",
    "shared_mmap": "shared_anonymous_bytes",
    "memfd": "memfd_bytes",
    "memfd_unmapped": "memfd_bytes",
    "shared_tensor": "new_file_bytes",
    "data_file": "new_file_bytes",
    "executable_data_file": "new_file_bytes",
    "private_file": "new_file_bytes",
    "temporary_file": "new_file_bytes",
}


def rows(folder: Path, name: str) -> list[dict]:
    return tables.decode(name, (folder / f"{name}.parquet").read_bytes(), where=name)


def test_plain_computation_is_no_growth(watched) -> None:
    for _ in range(3):
        watched.do("work")
        assert watched.read()["unplanned_bytes"] < PLAIN_GROWTH_BYTES


@pytest.mark.parametrize("plant", sorted(KIND_OF_PLANT))
def test_planted_mirror_is_seen_and_its_end_too(watched, plant: str) -> None:
    before = watched.read()
    # The canary: a mirror of a known kind is seen in this very process before the one under test.
    watched.do("plant", kind="bytearray")
    canary = watched.read()
    watched.do("drop")
    watched.do("plant", kind=plant)
    during = watched.read()
    watched.do("drop")
    after = watched.read()
    assert canary["unplanned_bytes"] - before["unplanned_bytes"] >= SEEN_BYTES
    kind = KIND_OF_PLANT[plant]
    assert before["unplanned_bytes"] < PLAIN_GROWTH_BYTES
    assert during[kind] - before[kind] >= SEEN_BYTES
    assert during["unplanned_bytes"] - before["unplanned_bytes"] >= SEEN_BYTES
    assert after["unplanned_bytes"] < PLAIN_GROWTH_BYTES
    assert bool(set(during["new_files"]) - set(before["new_files"])) == (kind == "new_file_bytes")
    mapped = ["model.safetensors"] if plant in ("data_file", "executable_data_file") else []
    if plant != "private_file":
        assert during["checkpoint_mappings"] == mapped
    assert after["checkpoint_mappings"] == after["checkpoint_descriptors"] == []


def test_checkpoint_descriptor_is_seen(watched) -> None:
    watched.do("open")
    assert watched.read()["checkpoint_descriptors"] == ["model.safetensors"]
    watched.do("drop")
    assert watched.read()["checkpoint_descriptors"] == []


def test_arenas_from_allocation_to_release_and_the_tables(fresh) -> None:
    size = 4 * MIB
    assert fresh.read("baseline", keep=True)["unplanned_bytes"] == 0
    fresh.do("allocate", name="m1", size_bytes=size, fill_bytes=size // 2)
    fresh.do("allocate", name="m2", size_bytes=MIB, fill_bytes=0)
    first = fresh.read("after_allocation", keep=True)
    assert first["unplanned_bytes"] < PLAIN_GROWTH_BYTES
    assert first["arenas"] == [
        {"materialization_id": "m1", "mapped_bytes": size, "resident_bytes": size // 2},
        {"materialization_id": "m2", "mapped_bytes": MIB, "resident_bytes": 0},
    ]
    fresh.do("plant", kind="shared_mmap")
    assert MIB <= fresh.read()["unplanned_bytes"] < MIB + PLAIN_GROWTH_BYTES
    fresh.do("drop")
    fresh.do("release", name="m1")
    assert fresh.read("after_release", keep=True)["arenas"][0] == {
        "materialization_id": "m1",
        "mapped_bytes": 0,
        "resident_bytes": 0,
    }
    assert fresh.do("finish") == {"num_checkpoints": 3}
    assert fresh.witness_end() == (0, "")
    checkpoints = {row["point"]: row for row in rows(fresh.tables, "checkpoints")}
    assert list(checkpoints) == ["baseline", "after_allocation", "after_release"]
    for row in checkpoints.values():
        parts = row["rss_anon_bytes"] + row["rss_file_bytes"] + row["rss_shmem_bytes"]
        assert row["vm_rss_bytes"] == parts
        assert row["vm_hwm_bytes"] >= row["vm_rss_bytes"] > 0
        assert 0 < row["uss_bytes"] < row["vm_rss_bytes"] + MIB
        assert row["max_rss_bytes"] > 0
        assert row["num_threads"] == 1
    assert checkpoints["after_allocation"]["minor_faults"] > checkpoints["baseline"]["minor_faults"]
    grown = checkpoints["after_allocation"]["rss_shmem_bytes"]
    assert grown - checkpoints["baseline"]["rss_shmem_bytes"] == size // 2
    for name in ("unplanned_bytes", "private_anonymous_bytes", "shared_anonymous_bytes"):
        assert checkpoints["after_allocation"][name] == first[name]
    assert [(row["point"], row["materialization_id"]) for row in rows(fresh.tables, "arenas")] == [
        ("after_allocation", "m1"),
        ("after_allocation", "m2"),
        ("after_release", "m1"),
        ("after_release", "m2"),
    ]
    arena = rows(fresh.tables, "arenas")[0]
    assert (arena["declared_bytes"], arena["memory_resource_id"]) == (size, "node0.ram")


def test_mapping_that_takes_a_released_arenas_address_is_unplanned(fresh) -> None:
    fresh.read("baseline", keep=True)
    fresh.do("allocate", name="m1", size_bytes=2 * MIB, fill_bytes=2 * MIB)
    fresh.read("after_allocation", keep=True)
    address = fresh.do("release", name="m1")["address"]
    taken = fresh.do("allocate_undeclared", name="other", size_bytes=2 * MIB)["address"]
    if taken != address:
        pytest.skip("the kernel put the second mapping elsewhere")
    reading = fresh.read("after_release", keep=True)
    assert reading["arenas"][0]["mapped_bytes"] == 0
    assert reading["unplanned_bytes"] >= 2 * MIB


def test_order_of_points(fresh) -> None:
    refused = fresh.do("read", point="after_release", keep=True)
    assert "no baseline yet" in refused["error"]
    assert fresh.read("baseline", keep=False)["unplanned_bytes"] == 0
    assert "no baseline yet" in fresh.do("read", point="probe", keep=False)["error"]
    fresh.read("baseline", keep=True)
    assert "already read" in fresh.do("read", point="baseline", keep=True)["error"]
    fresh.do("plant", kind="private_mmap")
    # A probe of the baseline, now, must not move it.
    fresh.read("baseline", keep=False)
    assert fresh.read()["unplanned_bytes"] >= MIB
    assert "bad point" in fresh.do("read", point="Not A Point", keep=True)["error"]
    assert fresh.do("finish") == {"num_checkpoints": 1}
    assert [row["point"] for row in rows(fresh.tables, "checkpoints")] == ["baseline"]


def test_killed_producer_leaves_what_was_read(fresh) -> None:
    fresh.read("baseline", keep=True)
    fresh.producer.send_signal(signal.SIGKILL)
    fresh.producer.wait()
    code, message = fresh.witness_end()
    assert (code, "ended before" in message) == (1, True)
    assert [row["point"] for row in rows(fresh.tables, "checkpoints")] == ["baseline"]
    assert rows(fresh.tables, "arenas") == []


class Raw:
    """A witness of a sleeping process, spoken to from here."""

    def __init__(self, folder: Path) -> None:
        self.tables = folder / "tables"
        root = folder / "checkpoint"
        root.mkdir()
        self.process = subprocess.Popen(["sleep", "1000"])
        self.sock, end = witness_pair()
        self.witness = start_witness(
            pid=self.process.pid, sock=end, folder=self.tables, checkpoint_root=root
        )

    def ask(self, message: dict) -> dict | None:
        send(self.sock, message)
        return receive(self.sock, timeout_s=20)

    def read(self, point: str, **changes: object) -> dict | None:
        message = {
            "request": "checkpoint",
            "point": point,
            "arenas": [],
            "max_rss_bytes": None,
            "keep": True,
        }
        return self.ask(message | changes)

    def end(self) -> tuple[int, str]:
        _, message = self.witness.communicate(timeout=20)
        return self.witness.returncode, message.decode()

    def close(self) -> None:
        self.sock.close()
        for child in (self.process, self.witness):
            child.kill()
            child.wait()
        if self.witness.stderr is not None:
            self.witness.stderr.close()


@pytest.fixture
def raw(tmp_path: Path):
    running = Raw(tmp_path)
    yield running
    running.close()


def test_bad_request_is_answered_and_ends_nothing(raw: Raw) -> None:
    for message in (
        {},
        {"request": "other"},
        {"request": "finish", "more": 1},
        {"request": "checkpoint"},
    ):
        assert "bad request" in raw.ask(message)["error"]
    assert "bad point" in raw.read("../baseline")["error"]
    assert "bad keep" in raw.read("baseline", keep="yes")["error"]
    assert raw.read("baseline")["private_anonymous_bytes"] > 0
    assert raw.ask({"request": "finish"}) == {"finished": True, "num_checkpoints": 1}
    assert raw.end() == (0, "")


@pytest.mark.parametrize("sent", [(MAX_FRAME_BYTES + 1).to_bytes(4, "big"), b'\0\0\0\x08{ "a":1}'])
def test_malformed_frame_ends_the_witness_with_a_message(raw: Raw, sent: bytes) -> None:
    raw.read("baseline")
    raw.sock.sendall(sent)
    code, message = raw.end()
    assert code == 2
    assert "frame" in message
    assert "Traceback" not in message
    assert "frame" in receive(raw.sock, timeout_s=5)["error"]
    assert [row["point"] for row in rows(raw.tables, "checkpoints")] == ["baseline"]


def test_half_a_frame_and_the_end(raw: Raw) -> None:
    raw.read("baseline")
    raw.sock.sendall(b"\0\0\0\x20{")
    raw.sock.close()
    assert raw.end()[0] == 1
    assert len(rows(raw.tables, "checkpoints")) == 1


def test_witness_ends_with_the_process_though_its_socket_stays_open(raw: Raw) -> None:
    raw.read("baseline")
    raw.process.kill()  # not reaped: also a zombie has ended
    assert raw.end()[0] == 1
    assert len(rows(raw.tables, "checkpoints")) == 1


def test_ended_process_cannot_be_read(raw: Raw) -> None:
    raw.read("baseline")
    raw.process.kill()
    os.waitid(os.P_PID, raw.process.pid, os.WEXITED | os.WNOWAIT)
    try:
        reply = raw.read("after_decode")
    except OSError:
        reply = None
    assert reply is None or "has ended" in reply["error"]


def at_rest(process: psutil.Process):
    """The memory of a process that has come to the end of its start."""
    before = None
    while True:
        info = process.memory_full_info()
        if process.status() == psutil.STATUS_SLEEPING and info == before:
            return info
        before = info
        time.sleep(0.1)


def test_interrupted_witness_stays_with_its_producer_and_agrees_with_psutil(raw: Raw) -> None:
    process = psutil.Process(raw.process.pid)
    info = at_rest(process)
    raw.read("baseline")
    raw.witness.send_signal(signal.SIGINT)
    raw.read("after_decode", max_rss_bytes=5)
    assert raw.ask({"request": "finish"})["num_checkpoints"] == 2
    assert raw.end() == (0, "")
    first, second = rows(raw.tables, "checkpoints")
    assert first["uss_bytes"] == second["uss_bytes"] == info.uss
    assert first["vm_swap_bytes"] == info.swap
    assert abs(first["vm_rss_bytes"] - info.rss) <= MIB
    assert first["num_descriptors"] == process.num_fds()
    assert (first["max_rss_bytes"], second["max_rss_bytes"]) == (None, 5)
    assert first["read_at"] <= second["read_at"]


def test_nothing_is_overwritten(raw: Raw) -> None:
    raw.tables.mkdir()
    (raw.tables / "checkpoints.parquet").write_bytes(b"older")
    raw.read("baseline")
    assert raw.ask({"request": "finish"}) is None
    code, message = raw.end()
    assert code == 2
    assert "checkpoints.parquet" in message
    assert "Traceback" not in message
    assert (raw.tables / "checkpoints.parquet").read_bytes() == b"older"


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "harness.measure.witness", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, **options)


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"--fd": "999"}, 2, "witness:"),
        ({"--checkpoint-root": "/nonexistent"}, 2, "no checkpoint there"),
        ({"--pid": "4194305"}, 3, "has ended"),
    ],
)
def test_bad_arguments_are_one_message(tmp_path: Path, changes: dict, code: int, said: str) -> None:
    left, right = socket.socketpair()
    with left, right:
        options = {
            "--pid": str(os.getpid()),
            "--fd": str(right.fileno()),
            "--out": str(tmp_path / "tables"),
            "--checkpoint-root": str(tmp_path),
        }
        given = [part for option in (options | changes).items() for part in option]
        ended = run(*given, pass_fds=(right.fileno(),))
    assert ended.returncode == code
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_imports_no_torch() -> None:
    code = (
        "import sys, harness.measure.witness, harness.measure.doctor; print('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert ended.stdout == "False\n", ended.stderr
