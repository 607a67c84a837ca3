"""Whether the processes that met are the stages of one chain, asked before anything is loaded.

Each stage tells every other what it is; all see the same greetings, so all come to the same
answer. Layers are numbers here, and versions are texts: nothing knows a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from harness.canonical import is_digest
from harness.errors import InvalidInputError
from harness.stages.errors import HandshakeError
from harness.stages.messages import decode, encode
from harness.stages.transport import Transport

PROTOCOL = "harness.stages/1"


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """What one stage is."""

    stage: int
    num_stages: int
    nonce: str
    """Made for one run of one chain; a stage of another run has another."""
    plan_digest: str
    versions: Mapping[str, str]
    """What the bits depend on, by name."""
    dtype: str
    """Of the planes between stages."""
    width: int
    """Elements of one row of a plane."""
    start_layer: int
    end_layer: int
    protocol: str = PROTOCOL


_SHARED = ("protocol", "num_stages", "nonce", "plan_digest", "dtype", "width")
"""Fields in which all stages of a chain are alike, besides the versions."""


def shake_hands(transport: Transport, own: Greeting, num_layers: int) -> tuple[Greeting, ...]:
    """Exchange greetings with every stage; returns them in the chain's order.

    Raises:
        HandshakeError: Listing everything in which the stages disagree, sorted.
        PeerError: When a stage is gone or silent.
    """
    messages = transport.gather(encode(asdict(own)), "its greeting")
    problems: list[str] = []
    greetings: list[Greeting] = []
    for stage, message in enumerate(messages):
        try:
            greetings.append(parse_greeting(decode(message, where=f"greeting of stage {stage}")))
        except InvalidInputError as error:
            problems.append(f"stage {stage}: {error.problem}: {error.got}")
    problems += disagreements(greetings, num_layers) if not problems else []
    if problems:
        raise HandshakeError(
            "the stages are not of one chain",
            expected="one plan, one nonce, equal versions, and layers that follow each other",
            got="; ".join(sorted(problems)),
            where=f"stage {own.stage}",
            hint="start every stage from the same plan file and the same installation",
        )
    return tuple(greetings)


def parse_greeting(document: Mapping[str, Any]) -> Greeting:
    """Read a greeting.

    Raises:
        InvalidInputError: When a field is absent, unknown, or of another type.
    """
    kinds: dict[str, type] = {
        each.name: int if each.type is int else str for each in fields(Greeting)
    } | {"versions": dict}
    wrong = sorted(document.keys() ^ kinds.keys()) + sorted(
        name
        for name, kind in kinds.items()
        if name in document and type(document[name]) is not kind
    )
    versions = document.get("versions")
    if not wrong and not all(isinstance(value, str) for value in dict(versions or {}).values()):
        wrong = ["versions"]
    if not wrong and not is_digest(document["plan_digest"]):
        wrong = ["plan_digest"]
    if wrong:
        raise InvalidInputError("a greeting is malformed", got=", ".join(wrong))
    return Greeting(**document)


def disagreements(greetings: Sequence[Greeting], num_layers: int) -> list[str]:
    """Every way in which greetings, in order, are not those of one chain; the lead's counts."""
    lead = greetings[0]
    found = []
    next_layer = 0
    for number, greeting in enumerate(greetings):
        pairs = [(name, getattr(lead, name), getattr(greeting, name)) for name in _SHARED]
        pairs += [
            (f"version of {name}", lead.versions.get(name), greeting.versions.get(name))
            for name in sorted({*lead.versions, *greeting.versions})
        ]
        pairs += [
            ("stage", number, greeting.stage),
            ("start_layer", next_layer, greeting.start_layer),
        ]
        if number == len(greetings) - 1:
            pairs.append(("end_layer", num_layers, greeting.end_layer))
        found += [
            f"stage {number}: {name}: expected {wanted}, got {got}"
            for name, wanted, got in pairs
            if wanted != got
        ]
        if greeting.end_layer <= greeting.start_layer:
            found.append(f"stage {number}: has no layers")
        next_layer = greeting.end_layer
    return found
