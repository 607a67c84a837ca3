"""What a store elsewhere can be asked for, and how an answer is bounded.

A remote holds named bytes in the layout of a store and knows nothing of what they mean. Whatever
it says of a name, a size or a content is checked by who asked.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from harness.errors import EvidenceError, HarnessError, NotEvaluableError

PIECE_BYTES = 8 << 20
"""Most bytes that are asked for at once."""
MAX_NAMES = 2_000_000
"""Most names of one folder."""
NO_FILE = -1
"""Size of a name at which no regular file is, but a link, a pipe or a folder."""
_MAX_REASON_CHARS = 300


class Remote(Protocol):
    """Named bytes elsewhere. Every method may raise ``NotEvaluableError``: not reached."""

    @property
    def url(self) -> str:
        """Where it is, without secrets."""

    def names(self, folder: str) -> dict[str, int]:
        """Sizes in bytes by the names inside one folder; empty when there is no such folder.

        What is no regular file is listed, too, with the size ``NO_FILE``: it is for the reader to
        refuse, not to be passed over.
        """

    def size(self, name: str) -> int | None:
        """Size in bytes of ``folder/name``, or ``None`` when there is nothing."""

    def pieces(self, name: str, size_bytes: int) -> Iterator[bytes]:
        """The first ``size_bytes`` bytes of ``folder/name``, in bounded pieces."""

    def put(self, name: str, data: bytes, *, replace: bool = False) -> None:
        """Write ``folder/name`` so that it is never seen in part."""


def where(remote: Remote, name: str) -> str:
    """A file of a remote, for a message."""
    return f"{remote.url}/{name}"


def stream(remote: Remote, name: str, *, max_bytes: int) -> Iterator[bytes]:
    """The bytes of a file, in bounded pieces.

    Raises:
        EvidenceError: When it is missing, or longer than ``max_bytes``; nothing was read then.
    """
    size = remote.size(name)
    if size is None:
        raise EvidenceError("remote file is missing", where=where(remote, name))
    if size > max_bytes:
        raise EvidenceError(
            "remote file is too long",
            expected=f"at most {max_bytes} bytes",
            got=f"{size} bytes",
            where=where(remote, name),
        )
    return remote.pieces(name, size)


def read(remote: Remote, name: str, *, max_bytes: int) -> bytes:
    """All bytes of a file (see :func:`stream`)."""
    return b"".join(stream(remote, name, max_bytes=max_bytes))


def too_many(url: str, folder: str) -> EvidenceError:
    """The error for a folder of more names than are looked at."""
    return EvidenceError(
        "remote folder has too many files",
        expected=f"at most {MAX_NAMES}",
        where=f"{url}/{folder}",
    )


def nothing_there(remote: Remote) -> EvidenceError:
    """The error for an address at which there is no store."""
    return EvidenceError(
        "no evidence store there", where=remote.url, hint="check the address and your rights"
    )


@contextmanager
def reaching(place: str) -> Iterator[None]:
    """Say what went wrong while a service was asked.

    Raises:
        EvidenceError: When what was named is not there, such as a bucket.
        NotEvaluableError: For everything else: no network, no right, no such service.
    """
    try:
        yield
    except HarnessError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise EvidenceError(
            "nothing is there",
            got=_reason(error),
            where=place,
            hint="check the address; a bucket or dataset must exist before it is written to",
        ) from error
    # Each service raises the errors of its own client library, which share no base class.
    except Exception as error:
        raise NotEvaluableError(
            "the remote store cannot be used",
            got=_reason(error),
            where=place,
            hint="check address, network and credentials; the same command goes on where it "
            "stopped",
        ) from error


def _reason(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text[:_MAX_REASON_CHARS]
