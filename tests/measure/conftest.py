"""A real process with a real witness, for the tests of this room."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.measure.witness_start import start_witness, witness_pair

PROGRAM = Path(__file__).with_name("plants.py")


class Watched:
    """A running producer and its witness."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.root = folder / "checkpoint"
        self.root.mkdir()
        self.file = self.root / "model.safetensors"
        self.file.write_bytes(b"\1" * (1 << 20))
        self.tables = folder / "tables"
        producer_end, witness_end = witness_pair()
        with producer_end:
            self.producer = subprocess.Popen(
                [sys.executable, PROGRAM, str(producer_end.fileno()), self.file, *options],
                pass_fds=(producer_end.fileno(),),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        self.witness = start_witness(
            pid=self.producer.pid, sock=witness_end, folder=self.tables, checkpoint_root=self.root
        )

    def do(self, action: str, **arguments: Any) -> dict[str, Any]:
        assert self.producer.stdin is not None
        assert self.producer.stdout is not None
        line = json.dumps({"do": action, **arguments}) + "\n"
        self.producer.stdin.write(line.encode())
        self.producer.stdin.flush()
        answer = self.producer.stdout.readline()
        assert answer, "the producer ended"
        reply: dict[str, Any] = json.loads(answer)
        return reply

    def read(self, point: str = "probe", *, keep: bool = False) -> dict[str, Any]:
        reply = self.do("read", point=point, keep=keep)
        assert "error" not in reply, reply["error"]
        return reply

    def witness_end(self) -> tuple[int, str]:
        """Exit code and message of the ended witness."""
        code = self.witness.wait(timeout=20)
        assert self.witness.stderr is not None
        return code, self.witness.stderr.read().decode()

    def close(self) -> None:
        for child in (self.producer, self.witness):
            if child.poll() is None:
                child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()


@contextmanager
def watched_in(folder: Path, *options: str) -> Iterator[Watched]:
    running = Watched(folder, *options)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """One producer for a whole module, its baseline read."""
    with watched_in(tmp_path_factory.mktemp("watched")) as running:
        running.read("baseline", keep=True)
        yield running


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Watched]:
    """A producer of the test's own, without torch and without a baseline."""
    with watched_in(tmp_path, "bare") as running:
        yield running
