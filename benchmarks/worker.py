"""A contender as the benchmark sees it: a process that answers requests, one JSON object a line.

A worker that crashes, hangs or answers nonsense is a reason and ends nothing else. Knows neither
what runs inside nor what is measured.
"""

import contextlib
import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

MAX_ANSWER_BYTES = 1 << 20


class WorkerError(Exception):
    """Why a worker gave no answer."""


class Worker:
    """One running process; see ``benchmarks/workers/serving.py`` for its side."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._buffer = bytearray()
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=dict(environment),
        )

    def ask(self, operation: str, timeout_s: float, **arguments: Any) -> dict[str, Any]:
        """Send one request and wait for its answer.

        Raises:
            WorkerError: When it refused, ended, took longer than ``timeout_s`` or answered
                something else than one object. Except after a refusal the process is ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": operation, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._line(time.monotonic() + timeout_s)
        except TimeoutError:
            self.close()
            raise WorkerError(f"no answer to {operation!r} within {timeout_s:g} s") from None
        except (EOFError, BrokenPipeError):
            raise WorkerError(f"ended at {operation!r}: {self._last_words()}") from None
        try:
            answer = json.loads(line)
            if answer.keys() == {"error"}:
                raise WorkerError(str(answer["error"]))
            if answer.keys() == {"answer"} and isinstance(answer["answer"], dict):
                return dict(answer["answer"])
        except (ValueError, AttributeError):
            pass
        self.close()
        raise WorkerError(f"answered nonsense to {operation!r}: {line[:80]!r}")

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # what was still to be sent
                stream.close()

    def _line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise TimeoutError
                piece = os.read(descriptor, 65536)
                if not piece:
                    raise EOFError
                self._buffer += piece
                if len(self._buffer) > MAX_ANSWER_BYTES:
                    return bytes(self._buffer)
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return line

    def _last_words(self) -> str:
        code = self._process.wait()
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - 4096))
        lines = self._said.read().decode("utf-8", "replace").strip().splitlines()
        self.close()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"{how}; {lines[-1][:400]}" if lines else how
