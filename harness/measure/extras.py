"""The optional packages of this project: what each extra is for, and whether it is here.

Imports none of them. Knows the project's metadata, nothing of what the packages do.
"""

import importlib.metadata
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.measure.distributions import installed_version

PURPOSES: Mapping[str, str] = {
    "triton": "the kernels of set triton/1 (on a GPU, or interpreted in tests)",
    "cuda": "finding NVIDIA GPUs, and running on them",
    "signatures": "signing records, and checking signatures",
    "digests": "fast digests of boundaries in the laboratory",
    "remote": "evidence stores in S3 (folders need nothing more)",
    "joblib": "sweeps of several jobs at once on this machine",
    "submitit": "sweeps on a Slurm cluster",
    "ray": "sweeps on a Ray cluster",
}
"""Extras that a person installs to do more; what is for development is not among them."""
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


@dataclass(frozen=True, kw_only=True)
class Extra:
    """One extra as it is here."""

    name: str
    purpose: str
    installed: tuple[str, ...]
    """Its packages that are here, with their versions."""
    missing: tuple[str, ...]


def find_extras(distribution: str, source_root: Path) -> list[Extra]:
    """Every extra with a purpose, in the order of :data:`PURPOSES`.

    Args:
        distribution: The project's name, looked for among what is installed.
        source_root: Folder of its ``pyproject.toml``, where it is not installed.
    """
    wanted = _requirements(distribution, source_root)
    found = []
    for name, purpose in PURPOSES.items():
        versions = {package: installed_version(package) for package in wanted.get(name, [])}
        found.append(
            Extra(
                name=name,
                purpose=purpose,
                installed=tuple(f"{p} {v}" for p, v in versions.items() if v is not None),
                missing=tuple(package for package, v in versions.items() if v is None),
            )
        )
    return found


def _requirements(distribution: str, source_root: Path) -> dict[str, list[str]]:
    """Names of packages by extra; empty where the project's metadata cannot be read."""
    found: dict[str, list[str]] = {}
    try:
        with (source_root / "pyproject.toml").open("rb") as file:
            listed = tomllib.load(file)["project"]["optional-dependencies"]
        pairs = [(extra, text) for extra, texts in listed.items() for text in texts]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        try:
            texts = importlib.metadata.requires(distribution) or []
        except importlib.metadata.PackageNotFoundError:
            texts = []
        pairs = [(match.group(1), text) for text in texts if (match := _EXTRA.search(text))]
    for extra, text in pairs:
        named = _NAME.match(text)
        if named is not None:
            found.setdefault(extra, []).append(named.group(1))
    return found
