"""A header before each tensor that crosses from one stage to another, checked on arrival.

The receiver knows from the workload what comes next, so a header is compared and never believed:

    [version, kind, nonce, session, sequence, start_position, rows, width, dtype]      int64

Knows planes as rows of numbers; no model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch

from harness.stages.errors import PeerError

_VERSION = 1
OPEN, PLANE, TOKEN, RESTORE = 1, 2, 3, 4
KINDS = {OPEN: "open", PLANE: "plane", TOKEN: "token", RESTORE: "restore"}
_DTYPES: Mapping[torch.dtype, int] = {
    torch.float32: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
    torch.int64: 4,
}


@dataclass(frozen=True, kw_only=True)
class Header:
    """What one tensor is, as integers."""

    kind: int
    nonce: int
    """Of the run (see :func:`nonce_number`)."""
    session: int
    """Counts the openings of a run, from 1."""
    sequence: int
    """Counts the frames from one stage to another, from 0."""
    start_position: int
    num_rows: int
    width: int
    dtype: int

    def pack(self) -> torch.Tensor:
        """The header as a tensor of a fixed size."""
        return torch.tensor([_VERSION, *vars(self).values()], dtype=torch.int64)


def empty_header() -> torch.Tensor:
    """A tensor to receive one header in."""
    return torch.zeros(1 + len(fields(Header)), dtype=torch.int64)


def nonce_number(nonce: str) -> int:
    """The first 60 bits of a nonce of hex digits."""
    return int(nonce[:15], 16)


def dtype_number(dtype: torch.dtype) -> int:
    """How a header states a dtype; 0 for one that never crosses."""
    return _DTYPES.get(dtype, 0)


def check_header(received: torch.Tensor, expected: Header, *, sender: int, stage: int) -> None:
    """Compare a received header with the one whose turn it is.

    Raises:
        PeerError: Listing every field that differs, sorted.
    """
    names = ("version", *(each.name for each in fields(Header)))
    wanted = expected.pack().tolist()
    differences = sorted(
        # A nonce tells runs apart, and is nobody else's business.
        "the nonce of another run"
        if name == "nonce"
        else f"{name} {_told(name, got)} instead of {_told(name, want)}"
        for name, want, got in zip(names, wanted, received.tolist(), strict=True)
        if want != got
    )
    if differences:
        raise PeerError(
            f"stage {sender} sent what is not expected of it",
            expected=f"a {_told('kind', expected.kind)} at position {expected.start_position}",
            got="; ".join(differences),
            where=f"stage {stage}",
        )


def _told(name: str, value: int) -> str:
    if name == "kind":
        return KINDS.get(value, str(value))
    if name == "dtype":
        names = {number: str(dtype).removeprefix("torch.") for dtype, number in _DTYPES.items()}
        return names.get(value, str(value))
    return str(value)
