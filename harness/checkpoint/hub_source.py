"""A checkpoint out of one commit of a Hugging Face repository: whole, or the weights of a plan.

With ``digest_source: declared`` a plan is derived from what the hub declares and from the headers,
and only a run fetches weights; without it everything is fetched, and digests are measured.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.checkpoint.cache import Progress, folder_name, obtain
from harness.checkpoint.census import census
from harness.checkpoint.header import read_header
from harness.checkpoint.hub import download, selected
from harness.checkpoint.hub_http import Commit
from harness.checkpoint.hub_listing import PERMITTED, WEIGHTS_SUFFIX, list_files
from harness.errors import CheckpointError
from harness.plan.records import CheckpointFile

DEFAULT_ALLOW = (
    "*.safetensors",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
DECLARED = "declared"
_REVISION = re.compile(r"[0-9a-f]{40}")
_REPOSITORY = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)?", re.ASCII)


def problems(source: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with a hub source whose fields are of the right kinds."""
    repository, revision = source["repository"], source["revision"]
    digest_source = source.get("digest_source", DECLARED)
    found = []
    if not _REPOSITORY.fullmatch(repository) or ".." in repository:
        found.append(f"repository {repository!r} is not owner/name")
    if not _REVISION.fullmatch(revision):
        found.append(f"revision {revision!r} is not a full commit hash of 40 hex digits")
    if digest_source != DECLARED:
        found.append(f"digest_source {digest_source!r} is not {DECLARED}, nor left out")
    allow = allowed(source)
    if not all(isinstance(pattern, str) for pattern in allow):
        return [*found, "allow is not a list of strings"]
    found.extend(
        f"allow pattern {pattern!r} is not for a safetensors, JSON or chat template file"
        for pattern in allow
        if not PERMITTED.fullmatch(pattern)
    )
    return found


def allowed(source: Mapping[str, Any]) -> Sequence[str]:
    """Patterns of the names of files that belong to a source."""
    patterns: Sequence[str] = source.get("allow", list(DEFAULT_ALLOW))
    return patterns


def commit_of(source: Mapping[str, Any]) -> Commit:
    """The commit that a source without problems pins."""
    return Commit(repository=source["repository"], revision=source["revision"])


def fetch(
    source: Mapping[str, Any],
    cache: Path,
    tell: Progress,
    *,
    pinned: Sequence[CheckpointFile] | None,
) -> Path:
    """Return a folder with a source's files, fetching what is not there.

    Args:
        source: A source without problems.
        cache: Root of the cache.
        tell: Told what is being done and the fraction done, where known.
        pinned: Files that a plan pins: no other weights are fetched. ``None`` for all of them.

    Raises:
        CheckpointError: When the commit, or a file of it, is not what it must be.
        NotEvaluableError: When the hub cannot be reached, or there is no space.
    """
    commit, allow = commit_of(source), allowed(source)
    identity = {"repository": commit.repository, "revision": commit.revision, "allow": allow}
    name = folder_name("hub", identity)
    # A whole folder serves every plan.
    is_whole = pinned is None or (cache / name).is_dir()
    if pinned is not None and not is_whole:
        weights = sorted({file.name for file in pinned if file.name.endswith(WEIGHTS_SUFFIX)})
        name = folder_name("hub", {**identity, "weights": weights})

    def make(folder: Path) -> None:
        tell(f"listing {commit.repository}", None)
        files = selected(list_files(commit), commit, allow=allow, pinned=pinned)
        if not any(file.name == "config.json" for file in files):
            raise CheckpointError(
                "not a checkpoint", expected="config.json", got="no such file", where=str(commit)
            )
        download(folder, commit, files, tell=tell)
        if is_whole:
            census(folder)
            return
        for file in files:
            if file.name.endswith(WEIGHTS_SUFFIX):
                read_header(folder / file.name)

    return obtain(cache, name, source, make, progress=tell, resumable=True)
