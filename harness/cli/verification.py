"""``harness evidence verify``, from before anything heavy is loaded.

A second process that audits records loads what it needs while this one does the same.
"""

import os
from argparse import Namespace
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from harness.run.reaudits import Reauditor, is_worth_it
from harness.run.uncollected import load_uncollected


def verify(options: Namespace) -> int:
    """Check every file of a store, audit every record again, and analyse every study again."""
    # numpy would start a thread for products of matrices, which looks for work on the other core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    store = Path(options.store)
    with _second(store) as reauditor:
        code: int = load_uncollected("harness.cli.store_audit").verify(options, reauditor)
    return code


def _second(store: Path) -> AbstractContextManager[Reauditor | None]:
    """A second auditor, where it is worth a process and one can be started."""
    if is_worth_it(store):
        with suppress(OSError):
            return Reauditor(store)
    return nullcontext()
