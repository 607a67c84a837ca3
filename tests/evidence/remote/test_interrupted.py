"""A push or a pull that ends at any step: what is there is whole, and the next one completes it."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.errors import NotEvaluableError
from harness.evidence.remote.address import open_remote
from harness.evidence.remote.check import check_remote
from harness.evidence.remote.folder import FolderRemote
from harness.evidence.remote.pull import pull_all
from harness.evidence.remote.push import push_all
from harness.evidence.remote.remote import Remote
from harness.evidence.store import Store
from harness.evidence.verify import verify_store

Tree = Callable[[Path], dict[str, bytes]]
HARMLESS = {"extra", "leftover", "unlogged"}


@dataclass
class Breaking:
    """A remote that is lost at one of the calls to it, before or after that call had its effect."""

    inner: Remote
    fail_at: int
    after: bool
    calls: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return self.inner.url

    def _step(self) -> bool:
        with self.lock:
            self.calls += 1
            return self.calls >= self.fail_at

    def _do(self, act: Callable[[], object]) -> object:
        lost = self._step()
        if lost and not self.after:
            raise NotEvaluableError("lost")
        result = act()
        if lost:
            raise NotEvaluableError("lost")
        return result

    def names(self, folder: str) -> dict[str, int]:
        return self._do(lambda: self.inner.names(folder))  # type: ignore[return-value]

    def size(self, name: str) -> int | None:
        return self._do(lambda: self.inner.size(name))  # type: ignore[return-value]

    def pieces(self, name: str, size_bytes: int) -> Iterator[bytes]:
        yield from self._do(lambda: list(self.inner.pieces(name, size_bytes)))  # type: ignore[misc]

    def put(self, name: str, data: bytes, *, replace: bool = False) -> None:
        self._do(lambda: self.inner.put(name, data, replace=replace))


def every_step(act: Callable[[int], bool], stride: int) -> int:
    """Call ``act`` with each step until it says that it was not interrupted; returns the last."""
    for step in range(1, 500, stride):
        if act(step):
            return step
    raise AssertionError("it never came to its end")


STEPS = pytest.mark.parametrize(
    ("after", "stride"),
    [
        (True, 4),
        pytest.param(True, 1, marks=pytest.mark.slow),
        pytest.param(False, 1, marks=pytest.mark.slow),
    ],
)


@STEPS
def test_a_push_that_is_lost_at_any_step(
    after: bool, stride: int, filled: Store, fast: Path, tree: Tree
) -> None:
    def attempt(step: int) -> bool:
        remote = FolderRemote(root=fast / f"{step}")
        whole = True
        try:
            push_all(filled, Breaking(remote, step, after))
        except NotEvaluableError:
            whole = False
        if remote.root.exists() and any(remote.names("records")):
            assert {each.kind for each in check_remote(remote).problems} <= HARMLESS
        if not whole:
            push_all(filled, remote)
        assert tree(remote.root) == tree(filled.root)
        shutil.rmtree(remote.root)
        return whole

    assert every_step(attempt, stride) > 15


@STEPS
def test_a_pull_that_is_lost_at_any_step(
    after: bool, stride: int, filled: Store, fast: Path, tree: Tree
) -> None:
    def attempt(step: int) -> bool:
        back = Store(fast / f"{step}")
        whole = True
        try:
            pull_all(Breaking(FolderRemote(root=filled.root), step, after), back)
        except NotEvaluableError:
            whole = False
        if back.root.exists():
            assert {each.kind for each in verify_store(back.root)} <= HARMLESS
        if not whole:
            pull_all(FolderRemote(root=filled.root), back)
        assert tree(back.root) == tree(filled.root)
        shutil.rmtree(back.root)
        return whole

    assert every_step(attempt, stride) > 15


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: what is visible is tested here, not the disk."""
    memory = Path("/dev/shm") / f"harness-{os.getpid()}"
    folder = memory if memory.parent.is_dir() else tmp_path / "fast"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


KILLED = """
import os, signal, sys, threading
from pathlib import Path
from harness import canonical
from harness.evidence.remote import address, folder, pull, push
from harness.evidence.store import Store

left, lock = int(sys.argv[4]), threading.Lock()

def counted(real):
    def call(*arguments, **options):
        global left
        with lock:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    return call

for name in ("link", "unlink", "fsync", "replace", "write", "mkdir"):
    setattr(os, name, counted(getattr(os, name)))
act = push.push_all if sys.argv[1] == "push" else lambda store, remote: pull.pull_all(remote, store)
act(Store(Path(sys.argv[2])), address.open_remote(sys.argv[3]))
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("way", ["push", "pull"])
def test_a_process_that_is_killed_at_a_step_of_the_disk(
    way: str, filled: Store, fast: Path, tree: Tree, repo_root: Path
) -> None:
    """Every eleventh step: no period of the steps, so that all kinds of them are met."""
    whole = False
    for step in range(0, 400, 11):
        target = fast / f"{step}"
        store, remote = (filled.root, target) if way == "push" else (target, filled.root)
        command = [sys.executable, "-c", KILLED, way, str(store), str(remote), str(step)]
        environment = {**os.environ, "PYTHONPATH": str(repo_root)}
        code = subprocess.run(command, env=environment, check=False, timeout=60).returncode
        assert code in (0, -signal.SIGKILL)
        if target.exists():
            assert {each.kind for each in verify_store(target)} <= HARMLESS
        if way == "push":
            push_all(filled, FolderRemote(root=target))
        else:
            pull_all(FolderRemote(root=filled.root), Store(target))
        assert {each.kind for each in verify_store(target)} <= {"leftover", "unlogged"}
        kept = {name: data for name, data in tree(target).items() if not name.endswith(".tmp")}
        assert kept == tree(filled.root)
        whole = code == 0
        if whole:
            break
    assert whole


def _push_at_once(address: str, root: Path, repo_root: Path) -> None:
    command = [sys.executable, "-m", "harness", "evidence", "push", "--all", address]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(repo_root), *sys.path])}
    running = [
        subprocess.Popen([*command, "--store", str(root)], env=environment) for _ in range(2)
    ]
    assert [process.wait(timeout=60) for process in running] == [0, 0]


@pytest.mark.slow
def test_two_that_push_at_once(filled: Store, bucket: str, tmp_path: Path, repo_root: Path) -> None:
    for address in (str(tmp_path / "there"), bucket):
        _push_at_once(address, filled.root, repo_root)
        remote = open_remote(address)
        assert check_remote(remote).problems == ()
        assert len(remote.names("records")) == 2
