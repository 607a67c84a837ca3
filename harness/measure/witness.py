"""The witness: a child process that reads another process's ``/proc`` and keeps its own tables.

``python -m harness.measure.witness --pid PID --fd N --out DIR --checkpoint-root PATH``

The producer says *when* to read, which arenas it declares, and its own ``max_rss_bytes``; all
else is the kernel's word, and the tables ``checkpoints`` and ``arenas`` are written by this
process alone. It ends with its producer, whatever happens to that one. Knows nothing of plans and
imports no torch.

Exit codes: 0 finished as asked, 1 the producer ended first, 2 bad arguments or a malformed frame,
3 the process cannot be read here. What was read is written in every case but the last.
"""

import argparse
import contextlib
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import ExitCode, HarnessError, InvalidInputError, NotEvaluableError
from harness.evidence import tables
from harness.measure import proc
from harness.measure.checkpoint_files import CheckpointFiles
from harness.measure.clock import monotonic_ns, utc_timestamp
from harness.measure.pages import ArenaRegistry, PageCount, count_pages
from harness.measure.readings import (
    CheckpointRequest,
    WitnessReading,
    parse_request,
)
from harness.measure.wire import WireError, receive, send

BASELINE = "baseline"
MAX_CHECKPOINTS = 10_000
_ALIVE_CHECK_S = 1.0
_FRAME_S = 30.0


class Witness:
    """Readings of one process, and the table rows made of them.

    Args:
        pid: The process to read.
        checkpoint_files: How to recognize the checkpoint among its open files.

    Raises:
        NotEvaluableError: When the process has ended or may not be read.
    """

    def __init__(self, pid: int, checkpoint_files: CheckpointFiles) -> None:
        self._pid = pid
        self._files = checkpoint_files
        self._started = proc.read_stat(pid).start_ticks
        proc.read_smaps(pid)
        self._registry = ArenaRegistry()
        self._baseline: PageCount | None = None
        self._checkpoints: list[dict[str, Any]] = []
        self._arenas: list[dict[str, Any]] = []

    def is_alive(self) -> bool:
        """Whether the process still runs; a later one of the same number is not it."""
        try:
            found = proc.read_stat(self._pid)
        except HarnessError:
            return False
        return found.start_ticks == self._started and not found.has_ended

    def checkpoint(self, request: CheckpointRequest) -> WitnessReading:
        """Read the process once, and keep the reading as rows unless it is a probe.

        Raises:
            InvalidInputError: When the point was kept before, or comes before the baseline.
            NotEvaluableError: When the process has ended.
        """
        if request.keep and any(row["point"] == request.point for row in self._checkpoints):
            raise InvalidInputError("point was already read", got=request.point)
        if request.keep and len(self._checkpoints) >= MAX_CHECKPOINTS:
            raise InvalidInputError("too many checkpoints", expected=f"at most {MAX_CHECKPOINTS}")
        if self._baseline is None and request.point != BASELINE:
            raise InvalidInputError("no baseline yet", expected=BASELINE, got=request.point)
        read_ns = monotonic_ns()
        stat = proc.read_stat(self._pid)
        if stat.start_ticks != self._started:
            raise NotEvaluableError("the process has ended", got="another one with its number")
        usages = proc.read_smaps(self._pid)
        status = proc.read_status(self._pid)
        descriptors = proc.read_descriptors(self._pid)
        arenas, outside = self._registry.locate(request.arenas, usages)
        pages = count_pages(usages, descriptors, outside)
        baseline = pages if request.point == BASELINE else self._baseline or pages
        reading = WitnessReading(
            unplanned_bytes=pages.unplanned_bytes(baseline),
            private_anonymous_bytes=pages.private_anonymous_bytes,
            shared_anonymous_bytes=pages.shared_anonymous_bytes,
            memfd_bytes=pages.memfd_bytes,
            new_file_bytes=pages.new_file_bytes(baseline),
            new_files=pages.new_files(baseline),
            checkpoint_descriptors=self._files.among_descriptors(descriptors),
            checkpoint_mappings=self._files.among_mappings(usage.mapping for usage in usages),
            vm_rss_bytes=status.vm_rss_bytes,
            uss_bytes=sum(usage.private_bytes for usage in usages),
            arenas=tuple(arenas),
        )
        if request.keep:
            if request.point == BASELINE:
                self._baseline = pages
            self._keep(request, reading, status, stat, len(descriptors), read_ns)
        return reading

    def _keep(
        self,
        request: CheckpointRequest,
        reading: WitnessReading,
        status: proc.ProcessStatus,
        stat: proc.ProcessStat,
        num_descriptors: int,
        read_ns: int,
    ) -> None:
        swapped_in, swapped_out = proc.read_swap_counters()
        row = reading.to_document()
        del row["arenas"]
        row.update(
            point=request.point,
            read_at=utc_timestamp(),
            vm_hwm_bytes=status.vm_hwm_bytes,
            rss_anon_bytes=status.rss_anon_bytes,
            rss_file_bytes=status.rss_file_bytes,
            rss_shmem_bytes=status.rss_shmem_bytes,
            vm_swap_bytes=status.vm_swap_bytes,
            max_rss_bytes=request.max_rss_bytes,
            minor_faults=stat.minor_faults,
            major_faults=stat.major_faults,
            swap_in_pages=swapped_in,
            swap_out_pages=swapped_out,
            num_threads=status.num_threads,
            num_descriptors=num_descriptors,
            process_id=self._pid,
            start_ticks=stat.start_ticks,
            read_ns=read_ns,
        )
        self._checkpoints.append(row)
        for declared, found in zip(request.arenas, reading.arenas, strict=True):
            self._arenas.append(
                {
                    "point": request.point,
                    "materialization_id": declared.materialization_id,
                    "memory_resource_id": declared.memory_resource_id,
                    "declared_bytes": declared.length,
                    "mapped_bytes": found.mapped_bytes,
                    "resident_bytes": found.resident_bytes,
                }
            )

    def write(self, folder: Path) -> int:
        """Write both tables durably; returns the number of checkpoints."""
        tables.write(folder, "checkpoints", self._checkpoints)
        tables.write(folder, "arenas", self._arenas)
        return len(self._checkpoints)


def _answer(sock: socket.socket, message: Mapping[str, Any]) -> None:
    try:
        send(sock, message)
    except WireError as error:
        send(sock, {"error": str(error)})


def _next(sock: socket.socket, witness: Witness) -> dict[str, Any] | None:
    """The next request, or ``None`` when the producer has ended or closed its end."""
    while not select.select([sock], [], [], _ALIVE_CHECK_S)[0]:
        # A forked child of the producer could keep the socket open after it.
        if not witness.is_alive():
            return None
    try:
        return receive(sock, timeout_s=_FRAME_S)
    except TimeoutError as error:
        raise WireError("frame is malformed", got=str(error)) from error


def serve(sock: socket.socket, witness: Witness, folder: Path) -> ExitCode:
    """Answer requests until ``finish`` or the end of the producer, then write the tables.

    Raises:
        WireError: On a malformed frame; the tables have been written then.
    """
    try:
        while (request := _next(sock, witness)) is not None:
            if request == {"request": "finish"}:
                num_checkpoints = witness.write(folder)
                _answer(sock, {"finished": True, "num_checkpoints": num_checkpoints})
                return ExitCode.PASSED
            try:
                reply = witness.checkpoint(parse_request(request)).to_document()
            except HarnessError as error:
                reply = {"error": str(error)}
            _answer(sock, reply)
    except WireError as error:
        witness.write(folder)
        with contextlib.suppress(OSError):
            _answer(sock, {"error": str(error)})
        raise
    except ConnectionError:  # the producer ended while it was being answered
        pass
    witness.write(folder)
    print("witness: the producer ended before it asked to finish", file=sys.stderr)
    return ExitCode.FAILED


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="harness.measure.witness")
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--fd", type=int, required=True, help="inherited stream socket")
    parser.add_argument("--out", type=Path, required=True, help="folder of the two tables")
    parser.add_argument("--checkpoint-root", type=Path, required=True)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the witness; returns the process's exit code."""
    options = _arguments(arguments)
    # An interrupt of the terminal reaches the whole group; this process ends with its producer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with socket.socket(fileno=options.fd) as sock:
            witness = Witness(options.pid, CheckpointFiles(options.checkpoint_root))
            return serve(sock, witness, options.out)
    except HarnessError as error:
        print(f"witness: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"witness: {error}", file=sys.stderr)
        return ExitCode.INVALID_INPUT


if __name__ == "__main__":
    sys.exit(main())
