"""Progress of long work: a live display on a terminal, plain lines elsewhere, on standard error.

Standard output stays free for results. Knows text and fractions only.
"""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress


class Progress:
    """Shows one current stage; use as a context manager."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._live: RichProgress | None = None
        self._task: TaskID | None = None
        self._last = ""
        if console.is_terminal:
            self._live = RichProgress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._task = self._live.add_task("", total=None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, text: str, fraction: float | None = None) -> None:
        """Show what is being done now, and how far it is (0 to 1) where that is known."""
        if self._live is not None and self._task is not None:
            self._live.update(
                self._task,
                description=escape(text),
                completed=fraction or 0.0,
                total=None if fraction is None else 1.0,
            )
        elif text != self._last:
            print(text, file=sys.stderr, flush=True)
        self._last = text
