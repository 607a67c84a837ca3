"""Source identity: which code ran, as far as it can be told.

The package digest covers the files as they are; commit, tree and difference come from the git
command, each within a bounded time, and are ``None`` when there is no git or no repository that
tracks the folder. Knows nothing of what the code does.
"""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import harness
from harness.canonical import file_digest

PACKAGES = ("harness", "kernels")
_NOT_SOURCE = frozenset({".pyc", ".pyo", ".so", ".o", ".a"})
_GIT_TIMEOUT_S = 20
_MAX_OUTPUT_BYTES = 64 << 20
# A repository's own configuration must not run programs or change what a difference shows.
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=true")
_DIFF = (
    *("diff", "HEAD", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv"),
    *(
        "--no-renames",
        "--unified=3",
        "--diff-algorithm=myers",
        "--src-prefix=a/",
        "--dst-prefix=b/",
    ),
)
_GIT_REDIRECTIONS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EXTERNAL_DIFF")


def source_identity(root: Path | None = None) -> dict[str, str | bool | None]:
    """Identify the source under ``root`` (by default: the folder that holds this package).

    Returns:
        ``git_commit``, ``git_tree``, ``dirty``, ``diff_digest`` (of uncommitted changes and
        untracked files; ``None`` when clean) and ``package_digest``; unknown ones are ``None``.
    """
    root = installed_root() if root is None else root
    identity: dict[str, str | bool | None] = dict.fromkeys(
        ("git_commit", "git_tree", "dirty", "diff_digest")
    )
    identity["package_digest"] = package_digest(root)
    # An installation inside somebody's repository is not tracked by it.
    if _git(root, "ls-files", "--error-unmatch", "--", ".") is None:
        return identity
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    tree = _git(root, "rev-parse", "--verify", "HEAD^{tree}")
    status = _git(root, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--", ".")
    if commit is None or tree is None or status is None:
        return identity
    identity |= {
        "git_commit": commit.decode("ascii").strip(),
        "git_tree": tree.decode("ascii").strip(),
        "dirty": status != b"",
    }
    if status:
        identity["diff_digest"] = _difference_digest(root)
    return identity


def installed_root() -> Path:
    """The folder that holds the running ``harness`` package."""
    return Path(harness.__file__).resolve().parents[1]


def package_digest(root: Path | None = None) -> str | None:
    """Digest of every source file of the packages under ``root``; ``None`` when there is none.

    It is SHA-256 over one line ``<hex>  <relative name>`` per file, sorted by name: what
    ``sha256sum`` prints for them.
    """
    root = installed_root() if root is None else root
    lines = [
        f"{file_digest(path).removeprefix('sha256:')}  {path.relative_to(root).as_posix()}\n"
        for path in _source_files(root)
    ]
    if not lines:
        return None
    lines.sort(key=lambda line: line[66:].encode())
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


def _source_files(root: Path) -> Iterator[Path]:
    for package in PACKAGES:
        for folder, names, files in os.walk(root / package):
            names[:] = [n for n in names if n != "__pycache__" and not n.startswith(".")]
            for name in files:
                path = Path(folder, name)
                if path.suffix not in _NOT_SOURCE and path.is_file() and not path.is_symlink():
                    yield path


def _difference_digest(root: Path) -> str | None:
    """Digest of the difference to the commit, and of each untracked file's name and bytes."""
    difference = _git_digest(root, *_DIFF, "--", ".")
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", ".")
    if difference is None or untracked is None:
        return None
    lines = [f"{difference}\n".encode()]
    for name in sorted(untracked.split(b"\0")):
        path = root / os.fsdecode(name)
        if name and path.is_file() and not path.is_symlink():
            lines.append(file_digest(path).encode() + b"  " + name + b"\n")
    return "sha256:" + hashlib.sha256(b"".join(lines)).hexdigest()


def _git(root: Path, *arguments: str) -> bytes | None:
    """Output of one git command, or ``None`` when it fails or takes too long."""
    with tempfile.TemporaryFile() as output:
        if not _run_git(root, arguments, output.fileno()):
            return None
        output.seek(0)
        return output.read(_MAX_OUTPUT_BYTES)


def _git_digest(root: Path, *arguments: str) -> str | None:
    with tempfile.TemporaryFile() as output:
        if not _run_git(root, arguments, output.fileno()):
            return None
        output.seek(0)
        return "sha256:" + hashlib.file_digest(output, "sha256").hexdigest()


def _run_git(root: Path, arguments: tuple[str, ...], output: int) -> bool:
    environment = {k: v for k, v in os.environ.items() if k not in _GIT_REDIRECTIONS}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        completed = subprocess.run(
            (*_GIT, *arguments),
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return completed.returncode == 0
