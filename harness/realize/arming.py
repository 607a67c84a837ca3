"""Which boundaries of which steps a producer digests after its run, and how often.

Data, and questions about names of phases and boundaries; imports no torch, so that a supervisor
can hand it to a child.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from harness.errors import InvalidInputError

PHASES = ("prefill", "decode")
DIGEST_KINDS = ("sha256", "xxh3-128")
MAX_REPETITIONS = 1000
MAX_KEPT_BYTES = 1 << 30
_LAYER = re.compile(r"\Alayers\.(\d+)\.")


@dataclass(frozen=True, kw_only=True)
class Arming:
    """What is observed; a filter that is ``None`` lets everything pass."""

    repetitions: int = 1
    """How often the steps are run from the frozen state, in one process."""
    replay_phase: str = "prefill"
    """Phase of the step before which the state is frozen."""
    replay_step: int = 0
    """That step: a chunk of the prompt, or a decode step."""
    phases: tuple[str, ...] | None = None
    steps: tuple[int, ...] | None = None
    layers: tuple[int, ...] | None = None
    """Global numbers; boundaries outside of layers do not pass."""
    num_rows: tuple[int, ...] | None = None
    """Shapes: the numbers of rows of a step that pass."""
    digest_kind: str = "sha256"
    keep: tuple[str, ...] = ()
    """Patterns of names whose tensors are kept, such as ``logits`` or ``layers.*.q``."""
    keep_max_bytes: int = 64 << 20
    """Most bytes that one process keeps; what comes later is digested only."""

    def __post_init__(self) -> None:
        faults = list(_faults(self))
        if faults:
            raise InvalidInputError("arming is not valid", got="; ".join(faults), where="arming")

    def passes_step(self, phase: str, step: int, num_rows: int) -> bool:
        """Whether a step's boundaries are digested."""
        return (
            (self.phases is None or phase in self.phases)
            and (self.steps is None or step in self.steps)
            and (self.num_rows is None or num_rows in self.num_rows)
        )

    def passes_boundary(self, name: str) -> bool:
        """Whether a boundary is digested in the steps that pass."""
        if self.layers is None:
            return True
        found = _LAYER.match(name)
        return found is not None and int(found[1]) in self.layers

    def keeps(self, name: str) -> bool:
        """Whether a boundary's tensor is to be kept."""
        return any(fnmatchcase(name, pattern) for pattern in self.keep)

    def document(self) -> dict[str, Any]:
        """The arming as JSON values."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }


def parse_arming(document: Mapping[str, Any]) -> Arming:
    """Read an arming's JSON values.

    Raises:
        InvalidInputError: When a field is unknown or has no valid value.
    """
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
    }
    try:
        return Arming(**values)
    except TypeError as error:
        raise InvalidInputError("arming is not valid", got=str(error), where="arming") from error


def _faults(arming: Arming) -> list[str]:
    faults = []
    for name, least, most in (
        ("repetitions", 1, MAX_REPETITIONS),
        ("replay_step", 0, 1 << 31),
        ("keep_max_bytes", 0, MAX_KEPT_BYTES),
    ):
        value = getattr(arming, name)
        if type(value) is not int or not least <= value <= most:
            faults.append(f"{name}: {value!r} is no number in [{least}, {most}]")
    if arming.replay_phase not in PHASES:
        faults.append(f"replay_phase: {arming.replay_phase!r} is not one of {', '.join(PHASES)}")
    if arming.digest_kind not in DIGEST_KINDS:
        faults.append(f"digest_kind: {arming.digest_kind!r} is not {' or '.join(DIGEST_KINDS)}")
    for name, kind in (("phases", str), ("steps", int), ("layers", int), ("num_rows", int)):
        value = getattr(arming, name)
        is_listed = isinstance(value, tuple) and value and all(type(v) is kind for v in value)
        if value is not None and not is_listed:
            faults.append(f"{name}: {value!r} is no list of {kind.__name__}")
        elif name == "phases" and value is not None and not set(value) <= set(PHASES):
            faults.append(f"phases: not all of {', '.join(value)} are known")
    if not isinstance(arming.keep, tuple) or any(type(each) is not str for each in arming.keep):
        faults.append("keep: not a list of patterns")
    return faults
