"""The installed Python distributions, for the record. Imports none of them."""

import importlib.metadata
import re


def distribution_rows() -> list[dict[str, str]]:
    """Rows ``{name, version}`` of every installed distribution, sorted by normalized name.

    Of one that is installed twice the first on the path counts, as for an import. A folder without
    readable metadata is no distribution.
    """
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        metadata = distribution.metadata
        if "Name" in metadata and "Version" in metadata:
            versions.setdefault(normalized_name(metadata["Name"]), metadata["Version"])
    return [{"name": name, "version": versions[name]} for name in sorted(versions)]


def normalized_name(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_version(name: str) -> str | None:
    """Version of one distribution, or ``None`` when it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
