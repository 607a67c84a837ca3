"""Hosts of one machine on a network with a delay and a rate: namespaces, and wires between them.

Each host is a network namespace with one interface; what it sends is held for the delay, after the
time that its bytes take at the rate, and then given to the host whose address it bears. A process
of this machine carries every packet, so delays below a few tenths of a millisecond are not kept.
Must be used in a user namespace of its own (``unshare -rn``). Knows packets, nothing of what they
carry.
"""

import ctypes
import fcntl
import heapq
import os
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_LARGEST_PACKET = 1 << 16
_DESTINATION = slice(16, 20)
"""Of an IPv4 header."""


def address(host: int) -> str:
    """Of a host, counted from 0."""
    return f"10.78.0.{host + 1}"


class Network:
    """Some hosts; use as a context manager, whose end ends what still runs on them."""

    def __init__(self, num_hosts: int, *, delay_s: float, bytes_per_s: float | None) -> None:
        """Make hosts.

        Args:
            num_hosts: How many.
            delay_s: Of every packet on its way.
            bytes_per_s: What a host sends in a second; ``None`` without a limit.
        """
        self._delay_s = delay_s
        self._bytes_per_s = bytes_per_s
        self._holders = [_hold() for _ in range(num_hosts)]
        self._wires = [_wire(holder.pid, n) for n, holder in enumerate(self._holders)]
        self._ended = threading.Event()
        self._carrier = threading.Thread(target=self._carry, daemon=True)

    def __enter__(self) -> "Network":
        self._carrier.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._carrier.join()
        for holder in self._holders:
            holder.kill()
            holder.wait()
        for wire in self._wires:
            os.close(wire)

    def inside(self, host: int) -> tuple[str, ...]:
        """What makes a command run on a host."""
        return ("nsenter", "-t", str(self._holders[host].pid), "-n")

    def _carry(self) -> None:
        """Take packets from all wires, and give each on when its time has come."""
        by_address = {
            bytes(map(int, address(host).split("."))): wire for host, wire in enumerate(self._wires)
        }
        free_at = dict.fromkeys(self._wires, 0.0)
        held: list[tuple[float, int, int, bytes]] = []
        count = 0
        while not self._ended.is_set():
            wait_s = 0.1 if not held else max(0.0, min(0.1, held[0][0] - time.monotonic()))
            for wire in select.select(self._wires, [], [], wait_s)[0]:
                packet = os.read(wire, _LARGEST_PACKET)
                to = by_address.get(packet[_DESTINATION])
                if to is None:
                    continue
                takes_s = len(packet) / self._bytes_per_s if self._bytes_per_s else 0.0
                free_at[wire] = max(free_at[wire], time.monotonic()) + takes_s
                count += 1
                heapq.heappush(held, (free_at[wire] + self._delay_s, count, to, packet))
            while held and held[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(held)
                os.write(to, packet)


def _hold() -> subprocess.Popen[bytes]:
    """A process in a network namespace of its own."""
    holder = subprocess.Popen(["unshare", "-n", "sleep", "3600"])
    own = os.readlink("/proc/self/ns/net")
    deadline = time.monotonic() + 10
    while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
        if time.monotonic() > deadline or holder.poll() is not None:
            raise SystemExit("no network namespace of its own is to be had here")
        time.sleep(0.02)
    return holder


@contextmanager
def _in_namespace(pid: int) -> Iterator[None]:
    """Do something in another process's network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/self/ns/net").open() as own, Path(f"/proc/{pid}/ns/net").open() as other:
        if libc.setns(other.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
        try:
            yield
        finally:
            libc.setns(own.fileno(), _CLONE_NEWNET)


def _wire(pid: int, host: int) -> int:
    """A host's interface, as the descriptor at which its packets come out and go in."""
    with _in_namespace(pid):
        wire = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(wire, _TUNSETIFF, struct.pack("16sH", b"wire0", _IFF_TUN | _IFF_NO_PI))
        for words in (
            ("addr", "add", f"{address(host)}/24", "dev", "wire0"),
            ("link", "set", "wire0", "up"),
            ("link", "set", "lo", "up"),
        ):
            subprocess.run(["ip", *words], check=True)
    return wire
