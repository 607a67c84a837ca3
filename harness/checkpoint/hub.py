"""Files of one pinned commit of a Hugging Face repository, into a plain folder.

A plan narrows the weights to the files that it pins. Knows nothing of what the files hold.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from harness.checkpoint.cache import Progress
from harness.checkpoint.files import problems_error, shown
from harness.checkpoint.hub_http import Commit
from harness.checkpoint.hub_listing import WEIGHTS_SUFFIX
from harness.checkpoint.hub_transfer import PART_SUFFIX, RemoteFile, kept_bytes, transfer
from harness.errors import NotEvaluableError
from harness.plan.records import CheckpointFile

_STEP_BYTES = 16 << 20
"""Between two words about progress."""


def selected(
    listed: Mapping[str, RemoteFile],
    commit: Commit,
    *,
    allow: Sequence[str],
    pinned: Sequence[CheckpointFile] | None = None,
) -> list[RemoteFile]:
    """The files to fetch: all that are allowed or, with a plan's pins, no weights but the pinned.

    Raises:
        CheckpointError: When the hub declares other files than those that are pinned.
    """
    pins = {file.name: file for file in pinned or ()}
    chosen = {
        name: file
        for name, file in listed.items()
        if any(fnmatchcase(name, pattern) for pattern in allow)
        and (pinned is None or not name.endswith(WEIGHTS_SUFFIX))
    }
    problems = []
    for name, pin in pins.items():
        file = listed.get(name)
        if file is None:
            problems.append(f"{shown(name)}: not there")
            continue
        if file.size_bytes != pin.size_bytes:
            problems.append(
                f"{name}: expected {pin.size_bytes} bytes, the hub declares {file.size_bytes}"
            )
        if file.sha256 not in (None, pin.sha256):
            problems.append(f"{name}: expected {pin.sha256}, the hub declares {file.sha256}")
        chosen[name] = RemoteFile(
            name=name, size_bytes=file.size_bytes, sha256=pin.sha256, git_sha1=file.git_sha1
        )
    if problems:
        raise problems_error(
            "the hub declares other files than those that are pinned",
            problems,
            where=str(commit),
            hint="restore the plan that belongs to this revision, or derive it again",
        )
    # Small files first: what is wrong with them is known before the weights are fetched.
    return sorted(chosen.values(), key=lambda file: (file.name.endswith(WEIGHTS_SUFFIX), file.name))


def download(folder: Path, commit: Commit, files: Sequence[RemoteFile], *, tell: Progress) -> None:
    """Bring a folder to hold exactly these files, going on with what an earlier try left in it.

    Raises:
        CheckpointError: When a file is not what it must be.
        NotEvaluableError: When the hub does not give one whole, or there is no space for all.
    """
    names = {file.name for file in files}
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.is_symlink() or path.name.removesuffix(PART_SUFFIX) not in names:
            path.unlink()
    _check_space(folder, files)
    total = sum(file.size_bytes for file in files)
    done = 0
    for file in files:
        telling = _in_steps(f"downloading {file.name}", done, total, tell)
        transfer(commit, file, folder, tell=telling)
        done += file.size_bytes


def _in_steps(text: str, before: int, total: int, tell: Progress) -> Callable[[int], None]:
    told = -_STEP_BYTES

    def tell_bytes(num_bytes: int) -> None:
        nonlocal told
        if abs(num_bytes - told) >= _STEP_BYTES:
            told = num_bytes
            tell(text, (before + num_bytes) / max(total, 1))

    return tell_bytes


def _check_space(folder: Path, files: Iterable[RemoteFile]) -> None:
    missing = sum(file.size_bytes - kept_bytes(folder, file) for file in files)
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise NotEvaluableError(
            "there is no disk space for the checkpoint",
            expected=f"{missing} bytes free for what is not there yet",
            got=f"{free} bytes free",
            where=str(folder),
            hint="free space, or set HARNESS_CACHE to another disk",
        )
