"""Large checkpoints are made only after somebody agreed, and only where they fit.

Consent belongs to one making: what is in the cache is used without asking again. Knows nothing of
what a checkpoint holds.
"""

import shutil
from pathlib import Path

from harness.errors import NotEvaluableError

MAX_UNASKED_BYTES = 1 << 30
_SPARE_BYTES = 64 << 20
"""What the companion files of a checkpoint, and a file system, take besides."""


class LargeCheckpointError(NotEvaluableError):
    """A checkpoint of more than :data:`MAX_UNASKED_BYTES` that nobody agreed to."""


def require_room(num_bytes: int, cache: Path, *, allow_large: bool) -> None:
    """Refuse to make a checkpoint that does not fit, or a large one without consent.

    Args:
        num_bytes: Size of its weights.
        cache: Folder that it is made in; need not exist yet.
        allow_large: The user's consent.

    Raises:
        NotEvaluableError: When the disk has too little space.
        LargeCheckpointError: Without consent to a large one.
    """
    free = shutil.disk_usage(next(p for p in (cache, *cache.absolute().parents) if p.is_dir())).free
    if free < num_bytes + _SPARE_BYTES:
        raise NotEvaluableError(
            "no space for the checkpoint",
            expected=f"{num_bytes + _SPARE_BYTES:,} bytes free",
            got=f"{free:,} bytes free; nothing was written",
            where=str(cache),
            hint="free space, or choose another folder: cache=FOLDER, or HARNESS_CACHE",
        )
    if num_bytes > MAX_UNASKED_BYTES and not allow_large:
        raise LargeCheckpointError(
            f"this checkpoint is made here, of random numbers, and takes {num_bytes:,} bytes of "
            f"the disk, of which {free:,} are free",
            expected="allow_large=true, from you, on the command line",
            got="no consent; nothing was written",
            where=str(cache),
            hint="if it may be made there, run again with allow_large=true "
            "(with make: ARGS=allow_large=true); cache=FOLDER chooses another folder",
        )
