"""Headers of a hub's safetensors files, by byte ranges: no weights are read.

Knows the header's place and bounds through :mod:`harness.checkpoint.header` only.
"""

from harness.checkpoint.header import Header, read_header_by
from harness.checkpoint.hub_http import Commit, InterruptedTransferError, get, persist
from harness.checkpoint.hub_transfer import RemoteFile, answer_begin

FIRST_BYTES = 64 << 10
"""Asked for at first; holds the whole header of a small file."""


def read_remote_header(commit: Commit, file: RemoteFile) -> Header:
    """Read and validate the header of one file of a commit.

    Raises:
        CheckpointError: When it is not valid, or the hub gives a file of another size.
        NotEvaluableError: When the hub does not give it.
    """
    known = bytearray()

    def read(offset: int, num_bytes: int) -> bytearray:
        end = offset + num_bytes
        if len(known) < end:
            known[:] = _first_bytes(commit, file, max(end, min(FIRST_BYTES, file.size_bytes)))
        return known[offset:end]

    return read_header_by(read, size_bytes=file.size_bytes, where=file.name)


def _first_bytes(commit: Commit, file: RemoteFile, num_bytes: int) -> bytearray:
    what = f"header of {file.name}"

    def attempt() -> bytearray:
        first = bytearray()
        asked = f"bytes=0-{num_bytes - 1}"
        with get(commit, commit.file_url(file.name), what=what, byte_range=asked) as answer:
            answer_begin(answer, file, 0, where=f"{what} of {commit}")
            for piece in answer.pieces:
                first += piece
                if len(first) >= num_bytes:
                    # Without ranges the rest of the file would follow.
                    return first
        raise InterruptedTransferError(f"{len(first)} of {num_bytes} bytes")

    return persist(
        attempt,
        problem="a header did not arrive whole from the hub",
        where=f"{what} of {commit}",
        hint="check the network and run again",
    )
