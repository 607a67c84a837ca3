"""Streaming round a window, which copies are still read from."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.adapters.llama.load import LlamaAdapter
from harness.adapters.llama.reference import load_ordinary

LARGEST_BYTES = 53 * 24 * 4


class InFlight:
    """Whatever was sent stays in flight until it is waited for."""

    def __init__(self) -> None:
        self.busy: set[str] = set()
        self.sent: list[str] = []
        self.waited: list[str] = []

    def wait(self, key: str) -> None:
        self.busy.discard(key)
        self.waited.append(key)

    @contextmanager
    def sending(self, key: str) -> Iterator[None]:
        yield
        self.busy.add(key)
        self.sent.append(key)

    def finish(self) -> None:
        self.busy.clear()


class Watching:
    """Asserts that nothing is read over bytes that are still in flight, or not handed out yet."""

    def __init__(self, inner: Any, transfer: InFlight, window: torch.Tensor) -> None:
        self._inner, self._transfer, self._window = inner, transfer, window
        self.places: dict[str, tuple[int, int]] = {}
        self.num_ahead = 0

    def begin(self, key: str, target: torch.Tensor) -> Callable[[], None]:
        begin = target.data_ptr() - self._window.data_ptr()
        end = begin + target.nbytes
        assert begin >= 0
        assert end <= self._window.nbytes
        unsent = self.places.keys() - set(self._transfer.sent)
        for other in unsent | self._transfer.busy:
            first, last = self.places[other]
            assert end <= first or last <= begin
        self.num_ahead = max(self.num_ahead, len(unsent))
        self.places[key] = begin, end
        return self._inner.begin(key, target)


@pytest.mark.parametrize("window_bytes", [LARGEST_BYTES, 2 * 5120, 1 << 20])
def test_bytes_are_read_over_once_they_have_arrived(
    make_bench: Callable[..., Any], file_source: Any, window_bytes: int
) -> None:
    bench = make_bench(torch.float32, tie_word_embeddings=False)
    request = bench.request(staging="streaming", window_bytes=window_bytes)
    transfer = InFlight()
    context = replace(bench.context(request), transfer=transfer)
    adapter = LlamaAdapter()
    adapter.begin(context)
    intents = bench.intents(context)
    realized = {intent.id: adapter.allocate(intent) for intent in intents}
    (window,) = [
        arena.arena.tensors["window"]
        for arena in realized.values()
        if "window" in arena.arena.tensors
    ]
    source = Watching(file_source(bench.root), transfer, window)
    for intent in intents:
        adapter.populate(intent, source)
    assert not transfer.busy
    assert transfer.sent == list(source.places)
    # A window that holds all of them is read over nowhere.
    assert bool(transfer.waited) == (window_bytes < 1 << 20)
    assert source.num_ahead > 0
    (resident,) = (i for i in intents if adapter.layout.is_resident(i.representation))
    expected = load_ordinary(bench.root, request)
    tensors = realized[resident.id].arena.tensors
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
