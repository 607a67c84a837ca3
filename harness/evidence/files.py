"""Opening evidence files safely: no link is followed, nothing that could block is read.

Also what a failed write is called. Knows regular files and bounds, nothing of statements or tables.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from harness.errors import EvidenceError, NotEvaluableError

OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Follow no link, and block on nothing."""


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading.

    Raises:
        EvidenceError: When it is missing, a link, a folder, a pipe, a device, or unreadable.
    """
    try:
        descriptor = os.open(path, OPEN_FLAGS)
    except FileNotFoundError as error:
        raise EvidenceError(
            "evidence file is missing", where=str(path), hint="restore it, or check the reference"
        ) from error
    except OSError as error:
        reason = "a symbolic link" if error.errno == errno.ELOOP else str(error.strerror)
        raise EvidenceError(
            "cannot open evidence file", expected="a regular file", got=reason, where=str(path)
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise EvidenceError("not a regular file", expected="a regular file", where=str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, *, max_bytes: int) -> bytes:
    """Read a regular file of at most ``max_bytes`` bytes (see :func:`open_regular`)."""
    with open_regular(path) as file:
        try:
            # Its size can be asked before it is read, and can grow after it was asked.
            long = os.fstat(file.fileno()).st_size > max_bytes
            data = b"" if long else file.read(max_bytes + 1)
        except OSError as error:
            raise EvidenceError(
                "cannot read evidence file", got=str(error), where=str(path)
            ) from error
    if long or len(data) > max_bytes:
        raise EvidenceError(
            "evidence file is too long",
            expected=f"at most {max_bytes} bytes",
            got=f"{path.lstat().st_size} bytes",
            where=str(path),
        )
    return data


def refuse_linked_folder(folder: Path) -> None:
    """Raise when ``folder`` exists, or is below what exists, and is anything but a real folder."""
    try:
        mode = folder.lstat().st_mode
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise EvidenceError(
            "not a folder of a store",
            expected="a folder",
            got="a file where one of the folders above it should be",
            where=str(folder),
        ) from error
    if not stat.S_ISDIR(mode):
        got = "a symbolic link" if stat.S_ISLNK(mode) else "something else"
        raise EvidenceError(
            "not a folder of a store", expected="a folder", got=got, where=str(folder)
        )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name what went wrong while ``path`` was written.

    Raises:
        EvidenceError: When it holds something else.
        NotEvaluableError: When the file system refuses.
    """
    try:
        yield
    except FileExistsError as error:
        raise occupied(path) from error
    except OSError as error:
        raise NotEvaluableError(
            "cannot write evidence",
            got=str(error),
            where=str(path),
            hint="check free space and permissions",
        ) from error


def occupied(path: Path) -> EvidenceError:
    """The error for a name under which other bytes are kept."""
    return EvidenceError(
        "store holds something else under this name",
        expected="the same bytes, or nothing",
        where=str(path),
        hint="run `harness evidence verify` on this store",
    )
