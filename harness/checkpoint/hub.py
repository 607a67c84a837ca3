"""Downloads one pinned revision of a Hugging Face repository into a plain folder.

Only safetensors, configuration and tokenizer files are ever asked for or accepted.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from harness.errors import CheckpointError, NotEvaluableError

DEFAULT_ALLOW = (
    "*.safetensors",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
_PERMITTED = re.compile(r"[\w.*?\[\]-]*(?:\.safetensors|\.json|chat_template\.jinja)")
_REVISION = re.compile(r"[0-9a-f]{40}")
_REPOSITORY = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)?", re.ASCII)


def check_source(*, repository: str, revision: str, allow: Sequence[str]) -> list[str]:
    """Everything that is wrong with a hub source; empty when nothing is."""
    problems = []
    if not _REPOSITORY.fullmatch(repository) or ".." in repository:
        problems.append(f"repository {repository!r} is not owner/name")
    if not _REVISION.fullmatch(revision):
        problems.append(f"revision {revision!r} is not a full commit hash of 40 hex digits")
    problems.extend(
        f"allow pattern {pattern!r} is not for a safetensors, JSON or chat template file"
        for pattern in allow
        if not _PERMITTED.fullmatch(pattern)
    )
    return problems


def download(folder: Path, *, repository: str, revision: str, allow: Sequence[str]) -> None:
    """Download the allowed files of one commit into ``folder``.

    Raises:
        CheckpointError: When the repository or revision does not exist, or files are not wanted.
        NotEvaluableError: When the hub cannot be reached or does not give the files.
    """
    import huggingface_hub
    from huggingface_hub import errors

    try:
        huggingface_hub.snapshot_download(
            repo_id=repository,
            revision=revision,
            local_dir=folder,
            allow_patterns=list(allow),
            ignore_patterns=["*/*"],  # copies in other formats often lie in subfolders
        )
    except errors.GatedRepoError as error:
        raise NotEvaluableError(
            f"repository {repository} asks for its terms to be accepted",
            where=f"revision {revision}",
            hint="accept them on its page and log in, or use another source",
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise CheckpointError(
            f"repository {repository} does not have this revision, or is private",
            got=type(error).__name__,
            where=f"revision {revision}",
        ) from error
    except Exception as error:
        # The client's transport errors have no common base that is stable between versions.
        raise NotEvaluableError(
            f"repository {repository} cannot be downloaded",
            expected="a hub that can be reached",
            got=f"{type(error).__name__}: {str(error)[:200]}",
            where=f"revision {revision}",
            hint="check the network, or use a local folder as the source",
        ) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    _refuse_unwanted(folder, allow)


def _refuse_unwanted(folder: Path, allow: Sequence[str]) -> None:
    unwanted = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink()
        or path.is_dir()
        or not any(PurePosixPath(path.name).match(one) for one in allow)
    )
    if unwanted:
        raise CheckpointError(
            "the download holds files that were not asked for",
            expected=", ".join(allow),
            got=", ".join(unwanted[:20]),
        )
