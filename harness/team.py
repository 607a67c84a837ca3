"""A fixed number of threads that are there from the start, and ordered answers from them.

Threads that begin later would be pages that appear beside planned state. What they run lets go of
the interpreter's lock (hashing, reading, taking pages), or nothing is gained. Knows nothing of what
is asked of it.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Barrier
from types import TracebackType
from typing import Self, TypeVar

_WARM_BYTES = 1 << 16
"""Hashed by each thread once: what hashing allocates for a thread is then there too."""
_AHEAD = 4
"""Items of a sequence begun for each thread, beyond the one that is waited for."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Team:
    """Threads that work beside the one that asks; without any, that one does all itself."""

    def __init__(self, num_threads: int = 0) -> None:
        """Start the threads; returns when all are there.

        Raises:
            RuntimeError: When one cannot be started. None is left then.
        """
        self.num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None
        if num_threads:
            self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="team")
            barrier = Barrier(num_threads)
            try:
                # Each waits for all, so that none takes the turn of one that is not there yet.
                for each in [self._pool.submit(_warm, barrier) for _ in range(num_threads)]:
                    each.result()
            except BaseException:
                barrier.abort()
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def begin(self, work: Callable[[Item], Answer], item: Item) -> "Future[Answer]":
        """Have a thread do this; its answer or error is the future's."""
        if self._pool is not None:
            return self._pool.submit(work, item)
        done: Future[Answer] = Future()
        try:
            done.set_result(work(item))
        except Exception as error:
            done.set_exception(error)
        return done

    def each(self, work: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """Answers in the order of ``items``, of which only a few are begun ahead.

        The first error ends it, once no thread works on an item any more.
        """
        begun: deque[Future[Answer]] = deque()
        try:
            for item in items:
                begun.append(self.begin(work, item))
                if len(begun) > _AHEAD * self.num_threads:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            wait(begun)

    def close(self) -> None:
        """End the threads, when they have done what was begun."""
        if self._pool is not None:
            self._pool.shutdown()


def _warm(barrier: Barrier) -> None:
    try:
        hashlib.sha256(bytes(_WARM_BYTES))
    except BaseException:
        barrier.abort()
        raise
    barrier.wait()
