"""The checkpoint is read again while the plan is sealed, past the reader, and closed at once."""

from pathlib import Path
from typing import Any

from harness.checkpoint.reader import BoundedReader
from harness.laboratory.faults.wrapping import after, before
from harness.realize.decode import ExecutionLoop


def plant() -> None:
    """Wrap reader and loop in this process."""
    files: list[Path] = []

    def remember(_: None, self: BoundedReader) -> None:
        files.extend(sorted(self._root.glob("*.safetensors"))[:1])

    def read(*_: Any) -> None:
        for path in files:
            with path.open("rb") as file:
                file.read(64)

    after(BoundedReader, "seal", remember)
    before(ExecutionLoop, "decode", read)
