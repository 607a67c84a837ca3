"""What the supervisor hands to a child: paths and the binding, as one small file.

A producer takes nothing but a frozen plan, a binding, where to read and write, and which
boundaries to observe once the plan was run.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.canonical import canonical_bytes, read_json, write_durable
from harness.plan.binding import Binding
from harness.plan.environment import Environment, environment_document, parse_environment
from harness.realize.arming import Arming, parse_arming

MAX_JOB_BYTES = 1 << 20
ARMED_FOLDER = "armed"
"""Where a producer writes what it observed at boundaries, beside its tables."""
KEPT_FILE = "kept.safetensors"
"""File of kept tensors in that folder; absent when none was kept."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """One process's place in a chain of stages."""

    number: int
    """Of the plan's stages, from 0."""
    nonce: str
    """32 hex digits, made for one realization."""
    port: int
    """At which the first stage listens."""
    lead_host: str
    own_host: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """One child's job."""

    plan: Path
    checkpoint: Path
    """Folder of the pinned checkpoint files."""
    cache: Path
    fixture: Path
    """Folder in which the fixture's file lies, or is to be placed."""
    binding: Binding
    environment: Environment
    arming: Arming | None = None
    place: Place | None = None
    """Of a producer that realizes one stage of the plan; ``None`` for one that realizes it all."""


def write_job(path: Path, job: Job) -> None:
    """Write a job file durably."""
    write_durable(
        path,
        canonical_bytes(
            {
                "plan": str(job.plan),
                "checkpoint": str(job.checkpoint),
                "cache": str(job.cache),
                "fixture": str(job.fixture),
                "binding": {key: dict(value) for key, value in asdict(job.binding).items()},
                "environment": environment_document(job.environment),
                "arming": None if job.arming is None else job.arming.document(),
                "place": None if job.place is None else asdict(job.place),
            }
        ),
    )


def read_job(path: Path) -> Job:
    """Read a job file."""
    document: dict[str, Any] = read_json(path, max_bytes=MAX_JOB_BYTES)
    return Job(
        plan=Path(document["plan"]),
        checkpoint=Path(document["checkpoint"]),
        cache=Path(document["cache"]),
        fixture=Path(document["fixture"]),
        binding=Binding(**document["binding"]),
        environment=parse_environment(document["environment"], where=str(path)),
        arming=None if document["arming"] is None else parse_arming(document["arming"]),
        place=None if document["place"] is None else Place(**document["place"]),
    )
