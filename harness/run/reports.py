"""What a machine reports of one realization of its stage: how two processes ended, and tables.

Written where they ran, read by the first machine, which believes no name and no type of it. Knows
nothing of how it travels, nor of what the tables say.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.canonical import canonical_bytes, read_json, write_durable
from harness.errors import EvidenceError, InvalidInputError
from harness.evidence import tables
from harness.evidence.declared import TABLES
from harness.run.processes import MAX_MESSAGE_BYTES, Outcome

REPORT_FILE = "report.json"
CHILDREN = ("producer", "witness")
MAX_REPORT_BYTES = 1 << 17
_ENDS = frozenset({"completed", "failed", "killed", "timed_out", "not_started"})
_SIGNAL_LENGTH = 32
_KINDS: Mapping[str, tuple[type, ...]] = {
    "outcome": (str,),
    "exit_code": (int, type(None)),
    "signal": (str, type(None)),
    "duration_ns": (int,),
    "message": (str, type(None)),
    "process_id": (int, type(None)),
    "start_ticks": (int, type(None)),
}
_COUNTS = ("duration_ns", "process_id", "start_ticks")


def write_report(folder: Path, outcomes: tuple[Outcome, Outcome]) -> list[Path]:
    """Write how producer and witness ended beside their tables; returns every file to send."""
    document = {
        child: {name: getattr(outcome, name) for name in _KINDS}
        for child, outcome in zip(CHILDREN, outcomes, strict=True)
    }
    write_durable(folder / REPORT_FILE, canonical_bytes(document))
    return [folder / REPORT_FILE, *sorted(folder.glob("*.parquet"))]


def take_report(
    sent: Path, into: Path, stage_id: str, realization: int
) -> tuple[tuple[Outcome, Outcome], list[str]]:
    """Take over the outcomes, and the tables that can be read, into a folder of this machine.

    Args:
        sent: Folder of what came.
        into: Folder for the tables.
        stage_id: The stage of that machine.
        realization: The one that is reported.

    Returns:
        How producer and witness ended there, and every file that is no table of theirs.

    Raises:
        InvalidInputError: When the outcomes are none.
    """
    document = read_json(sent / REPORT_FILE, max_bytes=MAX_REPORT_BYTES)
    (sent / REPORT_FILE).unlink()
    if not isinstance(document, Mapping) or document.keys() != set(CHILDREN):
        raise InvalidInputError("not a report", got="no outcomes of a producer and a witness")
    producer, witness = (
        _outcome(document[child], f"{child} {stage_id}", realization) for child in CHILDREN
    )
    refused = []
    for path in sorted(sent.iterdir()):
        try:
            _require_table(path)
        except EvidenceError as error:
            refused.append(f"{path.name}: {error.problem}: {error.got}")
            continue
        path.rename(into / path.name)
    return (producer, witness), refused


def _require_table(path: Path) -> None:
    """Refuse what could not be taken into a record."""
    declared = TABLES.get(path.stem)
    if path.suffix != ".parquet" or declared is None or declared.writer not in CHILDREN:
        raise EvidenceError("no table of a producer or a witness", got=path.name)
    tables.decode(path.stem, path.read_bytes(), where=path.name)


def _outcome(document: Any, child: str, realization: int) -> Outcome:
    if not isinstance(document, Mapping) or document.keys() != _KINDS.keys():
        raise InvalidInputError("not a report", got=f"no outcome of {child}")
    wrong = [name for name, kinds in _KINDS.items() if type(document[name]) not in kinds]
    if not wrong:
        bounds = dict.fromkeys(_COUNTS, 1 << 62) | {"exit_code": 256}
        wrong = [name for name, end in bounds.items() if not 0 <= (document[name] or 0) < end]
        wrong += ["outcome"] if document["outcome"] not in _ENDS else []
        wrong += ["signal"] if len(document["signal"] or "") > _SIGNAL_LENGTH else []
    if wrong:
        raise InvalidInputError("not a report", got=f"{child}: {', '.join(wrong)}")
    message = document["message"]
    told = {**document, "message": None if message is None else message[-MAX_MESSAGE_BYTES:]}
    return Outcome(child=child, realization=realization, **told)
