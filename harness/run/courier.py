"""The courier: carries parcels between this machine's supervisor and those of other machines.

    meet -> handshake -> (receive from every peer | send what the supervisor asks for) -> end

A process of its own, since it is the one that needs the group of ``torch.distributed``. Says on
standard output what came, one JSON object a line, and is told on standard input what to send; it
ends when that is closed. Knows files and who they are for, and nothing of what they mean.
"""

import argparse
import json
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.adapters.families import layout_for
from harness.canonical import parse_json
from harness.errors import HarnessError
from harness.plan.load import load_plan
from harness.plan.records import Plan
from harness.plan.stages import stage_views
from harness.run.child import PEER_LOST, run_child
from harness.run.devices import ComputeDevice
from harness.run.job import read_job
from harness.run.machines import idle_s
from harness.run.place import ChainPlace
from harness.run.post import LOST, MET, PARCEL
from harness.stages.errors import PeerError
from harness.stages.parcels import receive_parcel, send_parcel
from harness.stages.transport import Transport

MAX_LINE_BYTES = 1 << 16


class Courier:
    """This machine's end of the group of all machines; the first machine is everybody's peer."""

    def __init__(self, transport: Transport, plan: Plan, inbox: Path) -> None:
        """Take over a formed group.

        Args:
            transport: Of all machines, one for each stage.
            plan: Bounds how many parcels come, and how long one is waited for.
            inbox: Folder for what comes.
        """
        assert plan.workload is not None
        self._transport = transport
        self._inbox = inbox
        self._idle_s = idle_s(plan)
        self._max_parcels = 2 * plan.workload.fresh_realizations + 2
        self._telling = threading.Lock()

    def receive_all(self, peer: int) -> None:
        """Take whatever a peer sends, until it is gone."""
        try:
            for number in range(self._max_parcels):
                folder = self._inbox / f"{peer}-{number}"
                note = receive_parcel(self._transport, peer, folder, idle_s=self._idle_s)
                self.tell({"event": PARCEL, "peer": peer, "folder": str(folder), "note": note})
            reason = f"more than {self._max_parcels} parcels"
        except (HarnessError, OSError) as error:
            reason = str(error)
        self.tell({"event": LOST, "peer": peer, "reason": reason})

    def send(self, request: Mapping[str, Any]) -> None:
        """Send what the supervisor asks for; a peer that does not take it is lost."""
        peer = int(request["peer"])
        try:
            files = [Path(name) for name in request["files"]]
            send_parcel(self._transport, peer, request["note"], files)
        except (HarnessError, OSError) as error:
            self.tell({"event": LOST, "peer": peer, "reason": str(error)})

    def tell(self, event: Mapping[str, Any]) -> None:
        """Say one thing to the supervisor."""
        with self._telling:
            print(json.dumps(event), flush=True)


def main() -> int:
    """Entry of the child process."""
    parser = argparse.ArgumentParser(description="carry parcels between machines")
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--inbox", type=Path, required=True)
    parser.add_argument("--listen-fd", type=int, help="a listening socket, on the first machine")
    args = parser.parse_args()
    job = read_job(args.job)
    assert job.place is not None
    plan, number = load_plan(job.plan).plan, job.place.number
    layout = layout_for(plan.adapter_data.family or "")
    listener = None if args.listen_fd is None else socket.socket(fileno=args.listen_fd)
    try:
        own = stage_views(plan, layout, None)[number].plan
        place = ChainPlace(
            job.place,
            whole=plan,
            own=own,
            layout=layout,
            # Parcels are files: whatever the stage executes on, they lie on the host.
            device=ComputeDevice(driver=None),
            listener=listener,
        )
    except PeerError as error:
        print(str(error), file=sys.stderr, flush=True)
        return PEER_LOST
    courier = Courier(place.transport, plan, args.inbox)
    courier.tell({"event": MET})
    peers = range(1, len(plan.stages or ())) if number == 0 else (0,)
    for peer in peers:
        threading.Thread(target=courier.receive_all, args=(peer,), daemon=True).start()
    for line in iter(lambda: sys.stdin.buffer.readline(MAX_LINE_BYTES), b""):
        courier.send(parse_json(line, where="the supervisor", max_bytes=MAX_LINE_BYTES))
    return 0


if __name__ == "__main__":
    run_child(main)
