"""Addresses of remote stores: a folder, ``s3://bucket/path`` or ``hf://datasets/owner/name/path``.

Credentials and endpoints come from where the services' own tools look for them; an address that
carries a secret is refused, since addresses are printed. Loads a client library only to use it.
"""

import importlib
import re
from pathlib import Path

from harness.errors import InvalidInputError, NotEvaluableError
from harness.evidence.remote.folder import FolderRemote
from harness.evidence.remote.objects import ObjectRemote
from harness.evidence.remote.remote import Remote, reaching

_URL = re.compile(r"\A([a-z][a-z0-9+.\-]*)://(.*)\Z", re.DOTALL)
_ALMOST = re.compile(r"\A(?:s3|hf|file):", re.IGNORECASE)
_PATH = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._@\-]*(?:/[A-Za-z0-9_@=+\-][A-Za-z0-9._@=+\-]*)*\Z")
_PACKAGES = {"s3": ("fsspec", "s3fs"), "hf": ("fsspec", "huggingface_hub")}
_HUB_PATH = re.compile(r"\Adatasets/[^/]+/[^/]+")
_HINT = "a folder, s3://bucket/path, or hf://datasets/owner/name/path"


def open_remote(address: str) -> Remote:
    """The remote store at an address; nothing is asked of it yet.

    Raises:
        InvalidInputError: When it is no address of a remote store.
        NotEvaluableError: When the package that reaches it is missing.
    """
    parsed = _URL.match(address)
    if parsed is None:
        return FolderRemote(root=_folder(address))
    scheme, rest = parsed.group(1), parsed.group(2)
    if scheme == "file":
        return FolderRemote(root=_folder(rest))
    path = rest.rstrip("/")
    if scheme not in _PACKAGES or not _PATH.match(path) or "@" in path.split("/")[0]:
        raise InvalidInputError(
            "not the address of a remote store", expected=_HINT, got=_without_secret(address)
        )
    if scheme == "hf" and not _HUB_PATH.match(path):
        raise InvalidInputError(
            "not a dataset of the hub", expected="hf://datasets/owner/name/path", got=address
        )
    return _objects(scheme, path)


def is_address(text: str) -> bool:
    """Whether a text is an address with a scheme, not the path of a folder."""
    return _URL.match(text) is not None


def _folder(text: str) -> Path:
    # What was meant as an address is not the name of a folder to be made here.
    if not text or "\0" in text or "://" in text or _ALMOST.match(text):
        got = _without_secret(repr(text))
        raise InvalidInputError("not the address of a remote store", expected=_HINT, got=got)
    return Path(text)


def _objects(scheme: str, path: str) -> ObjectRemote:
    for package in _PACKAGES[scheme]:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise NotEvaluableError(
                f"{scheme}:// needs a package that is not here",
                expected=" and ".join(_PACKAGES[scheme]),
                got=str(error)[:200],
                hint="install the extra `remote`: pip install 'inference-harness[remote]'",
            ) from error
    fsspec = importlib.import_module("fsspec")
    with reaching(f"{scheme}://{path}"):
        system = fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True)
    return ObjectRemote(url=f"{scheme}://{path}", prefix=path, system=system)


def _without_secret(address: str) -> str:
    return re.sub(r"://[^/@]*@", "://...@", address)[:200]
