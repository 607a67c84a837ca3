"""A group between GPUs that are not there: gloo, which answers as a group of NCCL does.

Work of NCCL tells whether it is done, and is waited for without a bound; work of gloo does not
tell, and is waited for by a thread here.
"""

import threading
import time
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore, Store


class FakeWork:
    """Done when the thread that waits says so."""

    def __init__(self, work: Any, bound: timedelta) -> None:
        self._error: RuntimeError | None = None
        self._thread = threading.Thread(target=self._wait, args=(work, bound), daemon=True)
        self._thread.start()

    def _wait(self, work: Any, bound: timedelta) -> None:
        try:
            work.wait(bound)
        except RuntimeError as error:
            self._error = error

    def is_completed(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> bool:
        assert self.is_completed(), "a wait for work that is not done has no bound"
        if self._error is not None:
            raise self._error
        return True


class FakeGroup:
    """Between stages of one machine."""

    def __init__(self, store: Store, stage: int, num_stages: int, bound: timedelta) -> None:
        gloo: Any = distributed.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = bound
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        self._bound = bound
        self._gloo = gloo(PrefixStore("planes", store), stage, num_stages, options)
        self.num_aborts = 0

    def name(self) -> str:
        return "gloo"

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        return FakeWork(self._gloo.send(tensors, to, tag), self._bound)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        return FakeWork(self._gloo.recv(tensors, source, tag), self._bound)

    def abort(self) -> None:
        self.num_aborts += 1


def silent_send(group: FakeGroup) -> None:
    """From now on nothing that the group sends arrives, and nothing says so."""

    class Never:
        def is_completed(self) -> bool:
            time.sleep(0.01)
            return False

    group.send = lambda *_: Never()  # type: ignore[method-assign]
