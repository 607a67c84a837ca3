"""The temporary folder of one run, beside the store's own folders, and what killed runs left there.

Its name holds its writer's process id, so that a leftover is recognized and the next run clears it
away. Knows nothing of what lies inside.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import NotEvaluableError
from harness.evidence.scan import dead_leftovers


@contextmanager
def work_folder(store: Path) -> Iterator[Path]:
    """Make a folder that simultaneous runs cannot share; it is removed at the end.

    The children's tables live here until the store has them.

    Raises:
        NotEvaluableError: When the store's folder cannot be written to.
    """
    work = store / f".run.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        work.mkdir(parents=True)
        for left in dead_leftovers(store):
            shutil.rmtree(left, ignore_errors=True)
    except OSError as error:
        raise NotEvaluableError(
            "the store cannot be written to",
            expected="a folder with write permission and free space",
            got=str(error),
            where=str(store),
            hint="name another one with store=FOLDER",
        ) from error
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
