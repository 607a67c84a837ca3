"""The faults there are, by name. Imports none of them, and no torch."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import InvalidInputError

CHILDREN: Mapping[str, str] = {
    "producer": "harness.run.producer",
    "fixture": "harness.run.fixture",
}
"""Module of each child that a fault can be around."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: what it does, and where it shows."""

    text: str
    """What it does, in one line."""
    check: str
    """The check that it must fail; it may fail others as well."""
    family: str | None = None
    """The family whose code it is around; ``None`` where it is around what all share."""
    child: str = "producer"
    varies: bool = False
    """Whether trials differ from each other; others differ from a run without it."""
    boundary: str | None = None
    """The first boundary at which it shows; ``None`` where no computed number changes."""


FAULTS: Mapping[str, Fault] = {
    "swa_unallocated": Fault(
        text="no slot of the window's pool is ever allocated: all positions share slot 0",
        check="state.ownership",
        family="gemma",
        boundary="prefill 0: layers.0.slots",
    ),
    "swa_raced": Fault(
        text="as swa_unallocated, and the rows of one write land in an order of their own",
        check="state.ownership",
        family="gemma",
        varies=True,
        boundary="prefill 0: layers.0.kv_written",
    ),
    "stale_slot": Fault(
        text="the newest position is translated to the slot of the one before it",
        check="correctness.exact",
        family="gemma",
        boundary="prefill 0: layers.0.slots",
    ),
    "uninitialized_buffer": Fault(
        text="one element of a buffer is used before it was written",
        check="correctness.exact",
        family="llama",
        varies=True,
        boundary="prefill 0: layers.0.mlp_out",
    ),
    "racing_thread": Fault(
        text="a thread writes a cached value of layer 1 before or after attention reads it",
        check="correctness.exact",
        family="llama",
        varies=True,
        boundary="prefill 0: layers.1.attention_out",
    ),
    "reduction_order": Fault(
        text="the last layer's down projection is summed in an order drawn each time",
        check="correctness.exact",
        family="llama",
        varies=True,
        boundary="prefill 0: layers.3.mlp_out",
    ),
    "nan_expert": Fault(
        text="one expert of layer 1 gives NaN",
        check="numbers.finite",
        family="qwen3_5_moe",
        boundary="prefill 0: layers.1.routed_out",
    ),
    "flipped_bit": Fault(
        text="one bit of a resident weight of layer 1 flips after the weights were hashed",
        check="tensors.unchanged",
        family="llama",
        boundary="prefill 0: layers.1.mlp_out",
    ),
    "leaked_mirror": Fault(
        text="a copy of the resident weights stays in the host's memory", check="memory.unplanned"
    ),
    "late_read": Fault(
        text="the checkpoint is opened again while the plan is sealed", check="sentinels.zero"
    ),
    "swapped_scale": Fault(
        text="two scales of a quantized bank of layer 0 change places",
        check="tensors.expected",
        family="qwen3_5_moe",
        boundary="prefill 0: layers.0.routed_out",
    ),
    "wrong_token": Fault(
        text="one token of the reference fixture is wrong", check="steps.complete", child="fixture"
    ),
}
"""By name, which is that of its module here."""


def planted(fault: str | None, family: str | None) -> dict[str, Any]:
    """What a run's request says of a planted fault: its name, and the command of the child.

    Args:
        fault: Its name; ``None`` for a run without one, of which nothing is said.
        family: Of the plan that is run.

    Raises:
        InvalidInputError: For an unknown fault, listing the known ones, or one that is around the
            code of another family and would never act.
    """
    if fault is None:
        return {}
    require_fault(fault)
    around, child = FAULTS[fault].family, FAULTS[fault].child
    if around not in (None, family):
        raise InvalidInputError(
            f"{fault} is around the code of another family",
            expected=f"a plan of family {around}",
            got=str(family),
            where="fault",
            hint=f"the experiment {fault} plants it where it acts",
        )
    argv = (sys.executable, "-m", "harness.laboratory.faults", fault, child)
    return {"planted_fault": fault, f"{child}_argv": argv}


def require_fault(fault: str) -> None:
    """Refuse a name that is not in the catalogue.

    Raises:
        InvalidInputError: Listing the faults there are.
    """
    if fault not in FAULTS:
        raise InvalidInputError(
            "unknown fault", expected=", ".join(sorted(FAULTS)), got=repr(fault), where="fault"
        )
