"""The faults there are, by name. Imports none of them, and no torch."""

import sys
from collections.abc import Mapping

from harness.errors import InvalidInputError

FAULTS: Mapping[str, str] = {
    "swa_unallocated": "no slot of the window's pool is ever allocated: all positions share slot 0",
    "swa_raced": "as swa_unallocated, and the rows of one write land in an order of their own",
}
"""Name of each fault (and of its module here), and what it does in one line."""


def faulty_producer_argv(fault: str) -> tuple[str, ...]:
    """The command that runs the producer with one fault planted around it.

    Raises:
        InvalidInputError: For an unknown fault, listing the known ones.
    """
    require_fault(fault)
    return (sys.executable, "-m", "harness.laboratory.faults", fault)


def require_fault(fault: str) -> None:
    """Refuse a name that is not in the catalogue.

    Raises:
        InvalidInputError: Listing the faults there are.
    """
    if fault not in FAULTS:
        raise InvalidInputError(
            "unknown fault", expected=", ".join(sorted(FAULTS)), got=repr(fault), where="fault"
        )
