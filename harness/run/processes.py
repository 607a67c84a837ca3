"""Child processes: started with a clean environment, bounded in time and output, never orphaned.

A child that dies by any signal, or outlives its time, is an outcome and no exception. Knows nothing
of what the children do.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from harness.measure.clock import monotonic_ns
from harness.measure.proc import process_identity
from harness.run.child import PARENT_PID

MAX_MESSAGE_BYTES = 4096
_INHERITED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    # Lowers the instruction set; the applicability key states the one that results.
    "ATEN_CPU_CAPABILITY",
    "CUDA_VISIBLE_DEVICES",
    # Where kernels are compiled, and kept.
    "CC",
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
    "TRITON_LIBCUDA_PATH",
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one child ended."""

    child: str
    realization: int
    outcome: str
    """``completed``, ``failed``, ``killed``, ``timed_out`` or ``not_started``."""
    exit_code: int | None
    signal: str | None
    duration_ns: int
    message: str | None
    process_id: int | None = None
    start_ticks: int | None = None
    """As the kernel has it; ``None`` for a child that was not started."""

    def row(self) -> dict[str, object]:
        """The row of the ``trials`` table."""
        return dict(vars(self))


def child_environment(num_threads: int) -> dict[str, str]:
    """Environment of every child: an allow list, and what keeps threads and heaps steady."""
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return environment | {
        "OMP_NUM_THREADS": str(num_threads),
        "MKL_NUM_THREADS": str(num_threads),
        "MKL_DYNAMIC": "FALSE",
        "OMP_DYNAMIC": "FALSE",
        # What deterministic matrix products on a GPU ask for; a host takes no notice.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "NVIDIA_TF32_OVERRIDE": "0",
        # The order in which the management library lists devices.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        # One heap: freed pages can be given back, so that growth means something.
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


class Child:
    """One running child; its standard output lines are progress, its error output a message."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
        realization: int = 0,
        pass_fds: Sequence[int] = (),
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.name = name
        self.realization = realization
        self._began = monotonic_ns()
        self._error = bytearray()
        self.process = subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, PARENT_PID: str(os.getpid())},
            pass_fds=list(pass_fds),
        )
        # Until it is waited for, even one that has ended has an entry.
        self._identity = process_identity(self.process.pid)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=_read_lines, args=(self.process.stdout, on_line), daemon=True),
            threading.Thread(
                target=_read_tail, args=(self.process.stderr, self._error), daemon=True
            ),
        ]
        for reader in self._readers:
            reader.start()

    def poll(self) -> int | None:
        """The exit code, or minus the signal, once it has ended."""
        return self.process.poll()

    def end(self) -> None:
        """Kill it, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def wait(self, timeout_s: float) -> Outcome:
        """Wait for the end, at most ``timeout_s``; kill and report what takes longer."""
        timed_out = False
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            self.process.kill()
            code = self.process.wait()
        except BaseException:
            # Whoever interrupts this process may go on living, and its child must not.
            self.process.kill()
            self.process.wait()
            raise
        for reader in self._readers:
            reader.join(timeout=5)
        message = self._error.decode("utf-8", "replace").strip() or None
        name = None
        if timed_out:
            outcome = "timed_out"
            message = f"took longer than {timeout_s:g} s"
        elif code < 0:
            outcome, name = "killed", _signal_name(-code)
        else:
            outcome = "completed" if code == 0 else "failed"
        return Outcome(
            child=self.name,
            realization=self.realization,
            outcome=outcome,
            exit_code=code if code >= 0 else None,
            signal=name,
            duration_ns=monotonic_ns() - self._began,
            message=message if outcome != "completed" else None,
            **self._identity,
        )


def not_started(child: str, realization: int, message: str) -> Outcome:
    """The outcome of a child that was never started."""
    return Outcome(
        child=child,
        realization=realization,
        outcome="not_started",
        exit_code=None,
        signal=None,
        duration_ns=0,
        message=message,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _read_lines(stream: IO[bytes], on_line: Callable[[str], None]) -> None:
    with stream:
        for line in iter(lambda: stream.readline(65536), b""):
            on_line(line.decode("utf-8", "replace").strip())


def _read_tail(stream: IO[bytes], tail: bytearray) -> None:
    with stream:
        # What is there, without waiting for a whole buffer.
        for piece in iter(lambda: os.read(stream.fileno(), 65536), b""):
            tail += piece
            del tail[:-MAX_MESSAGE_BYTES]
