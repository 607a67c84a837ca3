"""A checkpoint as a plan is derived from it: its tensors, and what of it is pinned.

Most checkpoints are fetched whole and hashed. Of a hub's with ``digest_source: declared`` only the
configuration, the tokenizer, the index and the headers are read: its files' sizes and digests are
those that the hub declares, and its tensors have none.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from harness.checkpoint import hub_source
from harness.checkpoint.cache import Progress
from harness.checkpoint.census import census, census_by, pin_files
from harness.checkpoint.files import problems_error
from harness.checkpoint.header import Header
from harness.checkpoint.hub_headers import read_remote_header
from harness.checkpoint.hub_listing import WEIGHTS_SUFFIX, list_files
from harness.checkpoint.hub_transfer import RemoteFile
from harness.checkpoint.sources import Tensors, fetch
from harness.errors import CheckpointError
from harness.plan.layout import CensusEntry
from harness.plan.records import CheckpointFile


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What is known of a checkpoint when a plan is derived."""

    folder: Path
    """Holds ``config.json`` and, mostly, the tokenizer; the weights unless they are declared."""
    tensors: tuple[CensusEntry, ...]
    """Every tensor of the checkpoint, sorted by key, without digests."""
    declared: Mapping[str, RemoteFile] | None
    """Files of weights by name, where they were not fetched."""

    def pin_tensors(self, keys: Collection[str]) -> tuple[CensusEntry, ...]:
        """The tensors that a plan needs, with their digests where these can be measured.

        Raises:
            CheckpointError: Listing the keys that are not in the checkpoint.
        """
        if self.declared is None:
            return census(self.folder, measure_digests=True, keys=keys)
        found = {entry.key: entry for entry in self.tensors}
        missing = [f"{key!r}: not in the checkpoint" for key in keys if key not in found]
        if missing:
            raise problems_error(
                "not the tensors of one checkpoint", missing, where=str(self.folder)
            )
        return tuple(found[key] for key in sorted(set(keys)))

    def pin_files(self, tensors: Sequence[CensusEntry]) -> tuple[CheckpointFile, ...]:
        """The files that a plan pins, sorted by name; of declared weights those of its tensors.

        Raises:
            CheckpointError: Listing the files whose digest is not declared.
        """
        if self.declared is None:
            return pin_files(self.folder)
        pins = list(pin_files(self.folder, with_weights=False))
        unknown = []
        for name in sorted({entry.file for entry in tensors}):
            file = self.declared[name]
            if file.sha256 is None:
                unknown.append(f"{name}: no SHA-256 is declared")
                continue
            pins.append(CheckpointFile(name=name, size_bytes=file.size_bytes, sha256=file.sha256))
        if unknown:
            raise problems_error(
                "the hub does not declare what a plan must pin",
                unknown,
                where=str(self.folder),
                hint="leave digest_source out of the source, so that files are fetched and hashed",
            )
        return tuple(sorted(pins, key=lambda pin: pin.name))


def survey(
    source: Mapping[str, Any],
    cache: Path,
    *,
    progress: Progress,
    tensors: Tensors | None = None,
    accept_terms: bool = False,
    allow_large: bool = False,
) -> Survey:
    """Read of a checkpoint what a plan is derived from.

    The arguments are those of :func:`harness.checkpoint.sources.fetch`.

    Raises:
        InvalidInputError: When the source is not valid, with every problem.
        CheckpointError: When the checkpoint is not valid, or not what was pinned.
        NotEvaluableError: When the source cannot be reached from here.
    """
    is_declared = source.get("digest_source") == hub_source.DECLARED
    folder = fetch(
        source,
        cache,
        progress=progress,
        tensors=tensors,
        accept_terms=accept_terms,
        allow_large=allow_large,
        pinned=() if is_declared else None,
    )
    if not is_declared:
        return Survey(folder=folder, tensors=census(folder), declared=None)
    commit, allow = hub_source.commit_of(source), hub_source.allowed(source)
    weights = {
        name: file
        for name, file in sorted(list_files(commit).items())
        if name.endswith(WEIGHTS_SUFFIX) and any(fnmatchcase(name, each) for each in allow)
    }

    def read(name: str) -> Header:
        if name not in weights:
            raise CheckpointError("not in the repository, or not allowed")
        progress(f"header of {name}", None)
        return read_remote_header(commit, weights[name])

    found = census_by(folder, list(weights), read)
    return Survey(folder=folder, tensors=found, declared=weights)
