"""What one process of a chain is told: its place in it, and the paths it reads and writes.

One small file for each stage, so that stages on several machines can be started by hand. Imports
no torch.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.canonical import canonical_bytes, read_json, write_durable
from harness.errors import InvalidInputError
from harness.plan.records import ModelRange
from harness.plan.rules.stages import MAX_WAIT_S

MAX_JOB_BYTES = 1 << 16
REPORT_FILE = "stage.json"
"""What a stage writes in its folder at its end."""
_NUMBER = re.compile(r"\A[0-9]{1,4}\Z")
_NONCE = re.compile(r"\A[0-9a-f]{32}\Z")


@dataclass(frozen=True, kw_only=True)
class StageJob:
    """One stage's job."""

    plan: str
    checkpoint: str
    """Folder of the pinned checkpoint files."""
    out: str
    stage: int
    cuts: tuple[int, ...]
    """First layer of every stage but the first: stage i has layers [cuts[i - 1], cuts[i])."""
    nonce: str
    """32 hex digits, made for this run."""
    port: int
    lead_host: str
    own_host: str
    timeout_s: float
    """Bound on each wait for another stage."""
    start_timeout_s: float
    """The same while stages start: on the meeting, and on the wait for another's load."""
    is_armed: bool = False
    """Whether every plane that crosses is digested on both sides."""

    @property
    def num_stages(self) -> int:
        """In the whole chain."""
        return len(self.cuts) + 1


def write_stage_job(path: Path, job: StageJob) -> None:
    """Write a job file durably."""
    write_durable(path, canonical_bytes({**asdict(job), "cuts": list(job.cuts)}))


def read_stage_job(path: Path) -> StageJob:
    """Read a job file.

    Raises:
        InvalidInputError: When it cannot be read, or is no job.
    """
    document: Any = read_json(path, max_bytes=MAX_JOB_BYTES)
    problems = _problems(document)
    if problems:
        raise InvalidInputError(
            "not a stage's job", got="; ".join(sorted(problems)), where=str(path)
        )
    return StageJob(**{**document, "cuts": tuple(document["cuts"])})


def placed(
    job: StageJob, stage_from: str | None, own_host: str | None, environment: Mapping[str, str]
) -> StageJob:
    """A job file of all stages, as one of them that a launcher has numbered takes it.

    Args:
        job: As it was read.
        stage_from: Name of the variable that holds the stage's number, if a launcher sets one.
        own_host: This machine's address, if it is not the job's.
        environment: Variables of this process.

    Raises:
        InvalidInputError: When the variable holds no number of a stage.
    """
    if own_host is not None:
        job = replace(job, own_host=own_host)
    if stage_from is None:
        return job
    text = environment.get(stage_from, "")
    if not _NUMBER.match(text) or int(text) >= job.num_stages:
        raise InvalidInputError(
            "the launcher gives no number of a stage",
            expected=f"0 to {job.num_stages - 1}",
            got=repr(text[:80]),
            where=stage_from,
            hint=f"start {job.num_stages} processes, one for each stage",
        )
    return replace(job, stage=int(text), out=str(Path(job.out) / f"stage-{int(text)}"))


def _problems(document: Any) -> list[str]:
    if not isinstance(document, Mapping):
        return ["no object"]
    # A whole number of seconds has no point in canonical JSON.
    special: Mapping[Any, tuple[type, ...]] = {float: (int, float), tuple[int, ...]: (list,)}
    kinds = {each.name: special.get(each.type, (each.type,)) for each in fields(StageJob)}
    problems = [f"{name}: absent or unknown" for name in document.keys() ^ kinds.keys()]
    problems += [
        f"{name}: of another type"
        for name, kind in kinds.items()
        if name in document and type(document[name]) not in kind
    ]
    if problems:
        return problems
    if any(type(cut) is not int for cut in document["cuts"]):
        problems.append("cuts: no integers")
    elif not 0 <= document["stage"] <= len(document["cuts"]):
        problems.append("stage: not one of the chain's")
    if not _NONCE.match(document["nonce"]):
        problems.append("nonce: not 32 hex digits")
    if not 0 < document["timeout_s"] <= document["start_timeout_s"]:
        problems.append("timeout_s: expected more than 0, and at most start_timeout_s")
    if document["start_timeout_s"] > MAX_WAIT_S:
        problems.append(f"start_timeout_s: expected at most {MAX_WAIT_S}, a week")
    if not 0 <= document["port"] < 1 << 16:
        problems.append("port: none")
    return problems


def stage_ranges(whole: ModelRange, cuts: Sequence[int]) -> tuple[ModelRange, ...]:
    """Cut a whole model's range into those of a chain's stages.

    Raises:
        InvalidInputError: When a stage would have no layers, or the range is not whole.
    """
    edges = [whole.start_layer, *cuts, whole.end_layer]
    rising = all(one < other for one, other in pairwise(edges))
    if not rising or not whole.owns_embeddings or not whole.owns_final_norm_head:
        raise InvalidInputError(
            "the plan's range cannot be cut into these stages",
            expected="rising cuts inside a range that owns its embeddings and its head",
            got=f"layers [{edges[0]}, {edges[-1]}) cut at {list(cuts)}",
            hint="give every stage at least one layer",
        )
    return tuple(
        replace(
            whole,
            start_layer=start,
            end_layer=end,
            owns_embeddings=index == 0,
            owns_final_norm_head=index == len(cuts),
        )
        for index, (start, end) in enumerate(pairwise(edges))
    )
