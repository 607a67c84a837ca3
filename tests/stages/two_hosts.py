"""Two hosts in one: a pair of network namespaces, joined by a cable, with a stage in each.

Run under ``unshare -rn``: ``two_hosts.py FIRST_JOB SECOND_JOB``. The second namespace is that of a
process that only holds it. Prints the exit codes of both stages, as JSON; without jobs it only
joins the namespaces.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

FIRST, SECOND = "10.77.0.1", "10.77.0.2"


def namespace(pid: int | str) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def join_namespaces(holder: int) -> None:
    """Give each namespace one end of a cable and an address of its own."""
    inside = ("nsenter", "-t", str(holder), "-n")
    command("ip", "link", "add", "left", "type", "veth", "peer", "name", "right")
    command("ip", "link", "set", "right", "netns", str(holder))
    for enter, end, address in (((), "left", FIRST), (inside, "right", SECOND)):
        command(*enter, "ip", "addr", "add", f"{address}/24", "dev", end)
        command(*enter, "ip", "link", "set", end, "up")
        command(*enter, "ip", "link", "set", "lo", "up")


def main(jobs: list[str]) -> None:
    holder = subprocess.Popen(["unshare", "-n", "sleep", "600"])
    try:
        deadline = time.monotonic() + 10
        while namespace(holder.pid) == namespace("self"):
            if time.monotonic() > deadline or holder.poll() is not None:
                raise SystemExit("no second network namespace")
            time.sleep(0.02)
        join_namespaces(holder.pid)
        stage = [sys.executable, "-m", "harness.run.stage", "--job"]
        inside = ["nsenter", "-t", str(holder.pid), "-n"]
        running = [
            subprocess.Popen([*enter, *stage, job], stderr=subprocess.PIPE, stdout=sys.stderr)
            for enter, job in zip(([], inside), jobs, strict=False)
        ]
        ended = []
        for process in running:
            _, error = process.communicate(timeout=120)
            ended.append({"code": process.returncode, "message": error.decode()})
        print(json.dumps(ended))
    finally:
        holder.kill()
        holder.wait()


if __name__ == "__main__":
    try:
        main([str(Path(job).absolute()) for job in sys.argv[1:]])
    except (OSError, subprocess.CalledProcessError) as problem:
        raise SystemExit(f"{problem}: {getattr(problem, 'stderr', '')}") from problem
