"""A worker's side of the protocol: one JSON object a line, a request in, an answer out.

Standard library only: it runs in every peer's own environment. Knows no contender.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def serve(operations: Mapping[str, Callable[..., Any]]) -> None:
    """Answer each request ``{"do": NAME, ...}`` by ``{"answer": ...}`` or ``{"error": TEXT}``.

    Ends when the requests do. What libraries print goes to standard error: the answers have
    standard output for themselves.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": operations[request.pop("do")](**request)}
        except Exception as error:  # whatever keeps a contender from running is its reason
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class Stopwatch:
    """Splits one generation into the seconds of its prefill and of each decode step."""

    def __init__(self) -> None:
        self._marks = [time.perf_counter()]

    def mark(self) -> None:
        """A token is there."""
        self._marks.append(time.perf_counter())

    def answer(self, tokens: list[int]) -> dict[str, Any]:
        """What a worker answers to ``generate``."""
        seconds = list(self._spans())
        return {"prefill_s": seconds[0], "decode_s": seconds[1:], "tokens": tokens}

    def _spans(self) -> Iterator[float]:
        return (end - begin for begin, end in zip(self._marks[:-1], self._marks[1:], strict=True))
