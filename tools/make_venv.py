"""Make or bring up to date the virtual environment that the Makefile's targets run in.

Standard library only: it runs on whatever Python started it, before anything is installed. The
environment is exactly what a lock pins. Stamps inside it, written last, say from which lock,
Python and folder it was made; an environment without the right stamp is made anew, so one that
was interrupted half-way is never used.
"""

import argparse
import fcntl
import hashlib
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
NATIVE = ROOT / "kernels" / "native"
LOCKS = {"runtime": "requirements/runtime.lock", "dev": "requirements/dev.lock"}
OLDEST, BEYOND = (3, 11), (3, 14)
USED = {
    "runtime": "torch, pandas, pyarrow.parquet, jsonschema, hydra, tokenizers, gguf, rich.progress",
    "dev": "transformers.models.llama.modeling_llama, hypothesis, pytest, nbclient, matplotlib",
}
"""What is compiled to bytecode at once. Compiling all that is installed takes longer than this."""


def stamp(kind: str) -> str:
    """Everything that decides whether an environment can be used as it is."""
    parts = [sys.version, sysconfig.get_platform(), str(ROOT)]
    for name in ("runtime", "dev")[: 1 + (kind == "dev")]:
        parts.append(hashlib.sha256((ROOT / LOCKS[name]).read_bytes()).hexdigest())
    return "\n".join(parts) + "\n"


def is_fresh(kind: str) -> bool:
    """Whether the environment was finished from today's locks, Python and folder."""
    try:
        return (VENV / f".stamp-{kind}").read_text() == stamp(kind)
    except OSError:
        return False


def pip(*arguments: str) -> None:
    """Run the environment's pip: quiet, never asking, errors shown."""
    command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "-qq"]
    command += ["--progress-bar", "off", "--no-input", "--disable-pip-version-check"]
    subprocess.run([*command, "--no-compile", *arguments], check=True, cwd=ROOT)


def make(kind: str) -> None:
    """Bring ``.venv`` to the state of one lock."""
    dev_stamp = VENV / ".stamp-dev"
    if dev_stamp.exists() or not is_fresh("runtime"):
        # What an older lock installed beyond today's would stay behind: start over.
        for old in VENV.glob(".stamp-*"):
            # First, so that a half-removed environment is not taken for a finished one.
            old.unlink()
        if VENV.exists():
            shutil.rmtree(VENV)
        say(f"making .venv with Python {sys.version.split()[0]}")
        venv.create(VENV, with_pip=True, symlinks=True)
    wanted = ["runtime"] if kind == "runtime" else ["runtime", "dev"]
    for name in wanted:
        if is_fresh(name):
            continue
        num_pins = sum("==" in line for line in (ROOT / LOCKS[name]).read_text().splitlines())
        say(f"installing {num_pins} pinned packages of {LOCKS[name]} (about a minute)")
        started = time.monotonic()
        (VENV / f".stamp-{name}").write_text("begun\n")
        pip("-r", LOCKS[name])
        if name == "runtime":
            pip("--no-deps", "--no-build-isolation", "-e", ".")
        warm(name)
        (VENV / f".stamp-{name}").write_text(stamp(name))
        say(f"{LOCKS[name]} installed in {time.monotonic() - started:.0f} s")


def build_native() -> None:
    """Build the C++ kernels when they are missing or of other sources, where a compiler is."""
    sources = runpy.run_path(str(NATIVE / "sources.py"))
    if sources["built_digest"]() == sources["sources_digest"]() or shutil.which("c++") is None:
        return
    say("building the native kernels (about 10 s)")
    command = [str(VENV / "bin" / "python"), "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, check=True, cwd=ROOT)


def warm(name: str) -> None:
    """Write the bytecode of what every process imports, also where that is switched off."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [str(VENV / "bin" / "python"), "-W", "ignore", "-c", f"import {USED[name]}"]
    subprocess.run(command, check=True, cwd=ROOT, env=environment)


def say(text: str) -> None:
    """One plain progress line."""
    print(f"environment: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Entry point; returns 2 when this Python cannot run the project or pip failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=sorted(LOCKS))
    kind = parser.parse_args().kind
    if not OLDEST <= sys.version_info[:2] < BEYOND:
        say(
            f"Python {sys.version.split()[0]} at {sys.executable} cannot be used\n"
            "  expected: Python 3.11, 3.12 or 3.13\n"
            "  what to do: name one, such as `make test PYTHON=python3.12`"
        )
        return 2
    (ROOT / ".make").mkdir(exist_ok=True)
    with (ROOT / ".make" / "venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if not (is_fresh("dev") or is_fresh(kind)):
                make(kind)
            build_native()
        except (subprocess.CalledProcessError, OSError) as error:
            say(f"failed: {error}\n  what to do: see the lines above; the next try starts over")
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
