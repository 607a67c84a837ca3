"""Streaming through a window that is cut into buffers, which copies are still read from."""

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
    """Two buffers; whatever was sent from one stays in flight until that one is waited for."""

    num_buffers = 2

    def __init__(self) -> None:
        self.busy: set[int] = set()
        self.sent: list[int] = []

    def wait(self, buffer: int) -> None:
        self.busy.discard(buffer)

    @contextmanager
    def sending(self, buffer: int) -> Iterator[None]:
        yield
        self.busy.add(buffer)
        self.sent.append(buffer)

    def finish(self) -> None:
        self.busy.clear()


class Watching:
    """Asserts that nothing is read over bytes that are still in flight."""

    def __init__(self, inner: Any, transfer: InFlight, window: torch.Tensor) -> None:
        self._inner, self._transfer, self._window = inner, transfer, window

    def read_into(self, key: str, target: torch.Tensor) -> None:
        offset = target.data_ptr() - self._window.data_ptr()
        assert offset >= 0
        assert offset + target.nbytes <= self._window.nbytes
        if self._transfer.busy:
            half = self._window.nbytes // 2
            buffers = {offset // half, (offset + target.nbytes - 1) // half}
            assert not buffers & self._transfer.busy
        self._inner.read_into(key, target)


@pytest.mark.parametrize(
    ("window_bytes", "num_buffers"),
    [(2 * 5120, 2), (2 * LARGEST_BYTES - 64, 1), (LARGEST_BYTES, 1)],
)
def test_a_buffer_is_filled_again_once_it_has_arrived(
    make_bench: Callable[..., Any], file_source: Any, window_bytes: int, num_buffers: int
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
    assert set(transfer.sent) == set(range(num_buffers))
    (resident,) = (i for i in intents if adapter.layout.is_resident(i.representation))
    expected = load_ordinary(bench.root, request)
    tensors = realized[resident.id].arena.tensors
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
