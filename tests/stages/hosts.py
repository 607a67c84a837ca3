"""Several hosts in one: network namespaces on one bridge, and a command in each of them.

Run under ``unshare -rn``: ``hosts.py COMMANDS``, a JSON list of commands, one for each host. The
namespaces but the first are those of processes that only hold them. Prints exit code, output and
message of each command, as JSON; without commands it only joins two namespaces.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence

BRIDGE = "bridge0"


def address(host: int) -> str:
    """Of a host, counted from 0."""
    return f"10.77.0.{host + 1}"


def namespace(pid: int | str) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def inside(holder: subprocess.Popen[bytes]) -> tuple[str, ...]:
    """What makes a command run in a holder's namespace."""
    return ("nsenter", "-t", str(holder.pid), "-n")


def make_bridge() -> None:
    """The first host's own end of the network."""
    command("ip", "link", "set", "lo", "up")
    command("ip", "link", "add", BRIDGE, "type", "bridge")
    command("ip", "addr", "add", f"{address(0)}/24", "dev", BRIDGE)
    command("ip", "link", "set", BRIDGE, "up")


def join_host(holder: subprocess.Popen[bytes], host: int) -> None:
    """Give a namespace one end of a cable to the bridge, and an address of its own."""
    near, far = f"near{host}", f"far{host}"
    command("ip", "link", "add", near, "type", "veth", "peer", "name", far)
    command("ip", "link", "set", far, "netns", str(holder.pid))
    command("ip", "link", "set", near, "master", BRIDGE)
    command("ip", "link", "set", near, "up")
    for words in (
        ("addr", "add", f"{address(host)}/24", "dev", far),
        ("link", "set", far, "up"),
        ("link", "set", "lo", "up"),
    ):
        command(*inside(holder), "ip", *words)


def hold() -> subprocess.Popen[bytes]:
    """A process in a network namespace of its own."""
    holder = subprocess.Popen(["unshare", "-n", "sleep", "600"])
    deadline = time.monotonic() + 10
    while namespace(holder.pid) == namespace("self"):
        if time.monotonic() > deadline or holder.poll() is not None:
            raise SystemExit("no second network namespace")
        time.sleep(0.02)
    return holder


def main(commands: Sequence[Sequence[str]]) -> None:
    holders: list[subprocess.Popen[bytes]] = []
    try:
        make_bridge()
        for host in range(1, max(2, len(commands))):
            holders.append(hold())
            join_host(holders[-1], host)
        enter = [(), *(inside(holder) for holder in holders)]
        running = [
            subprocess.Popen(
                [*way, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for way, words in zip(enter, commands, strict=False)
        ]
        ended = []
        for process in running:
            output, message = process.communicate(timeout=120)
            ended.append({"code": process.returncode, "output": output, "message": message})
        print(json.dumps(ended))
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]) if len(sys.argv) > 1 else [])
    except (OSError, subprocess.CalledProcessError) as problem:
        raise SystemExit(f"{problem}: {getattr(problem, 'stderr', '')}") from problem
