"""Ed25519 keys in PEM files: making, signing with, and allowing them.

The only place that loads ``cryptography``, and only when a key is used. A key's id is the SHA-256
of its public half (DER, SubjectPublicKeyInfo). Knows keys and bytes, nothing of what is signed.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from harness.canonical import read_bounded, write_durable
from harness.errors import InvalidInputError, NotEvaluableError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

MAX_KEY_BYTES = 64 * 1024
MAX_KEYS = 10_000
_PEM_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----[^-]{0,65536}-----END \1-----")


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A signature, and the id of the key that made it."""

    keyid: str
    value: bytes


@dataclass(frozen=True, kw_only=True)
class AllowedKeys:
    """The public keys whose signatures count, by key id."""

    keys: Mapping[str, "Ed25519PublicKey"]

    def verify(self, keyid: str, signature: bytes, data: bytes) -> bool:
        """Whether an allowed key of that id made this signature of ``data``."""
        from cryptography.exceptions import InvalidSignature

        try:
            self.keys[keyid].verify(signature, data)
        except (KeyError, InvalidSignature):
            return False
        return True


def allowed_keys(path: Path) -> AllowedKeys:
    """Read an allow list: a PEM file of public keys, or a folder of such files named ``*.pem``.

    Raises:
        InvalidInputError: When it holds no key, a key that is not Ed25519, or a private one.
        NotEvaluableError: When ``cryptography`` is not installed.
    """
    files = sorted(path.glob("*.pem")) if path.is_dir() else [path]
    keys: dict[str, Ed25519PublicKey] = {}
    for file in files:
        for kind, block in _blocks(file):
            if kind != "PUBLIC KEY":
                raise InvalidInputError(
                    "an allow list holds public keys only",
                    expected="PUBLIC KEY",
                    got=kind,
                    where=str(file),
                )
            key = _load_public(block, file)
            keys[_keyid(key)] = key
        if len(keys) > MAX_KEYS:
            raise InvalidInputError(
                "too many keys", expected=f"at most {MAX_KEYS}", where=str(path)
            )
    if not keys:
        raise InvalidInputError(
            "no key is allowed", expected="a PEM file of public keys, or a folder", where=str(path)
        )
    return AllowedKeys(keys=keys)


def sign(data: bytes, key_file: Path) -> Signature:
    """Sign bytes with the private key of a PEM file.

    Raises:
        InvalidInputError: When the file does not hold one unencrypted Ed25519 private key.
        NotEvaluableError: When ``cryptography`` is not installed.
    """
    key = _load_private(key_file)
    return Signature(keyid=_keyid(key.public_key()), value=key.sign(data))


def generate(private_file: Path, public_file: Path) -> str:
    """Make a key pair; returns its key id. Only its owner can read the private file.

    Raises:
        InvalidInputError: When one of the files exists.
        NotEvaluableError: When ``cryptography`` is not installed, or nothing can be written there.
    """
    serialization = _serialization()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    for path in (private_file, public_file):
        if os.path.lexists(path):
            raise InvalidInputError("a key is never overwritten", got="a file", where=str(path))
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    try:
        private_file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(private_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
        write_durable(public_file, public)
    except OSError as error:
        raise NotEvaluableError("cannot write a key", got=str(error)) from error
    return _keyid(key.public_key())


def _serialization() -> ModuleType:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise NotEvaluableError(
            "signatures need a package that is not installed",
            expected="cryptography",
            got=str(error),
            hint="install the extra: pip install 'inference-harness[signatures]'",
        ) from error
    return serialization


def _blocks(path: Path) -> list[tuple[str, bytes]]:
    data = read_bounded(path, max_bytes=MAX_KEY_BYTES)
    found = [(match[1].decode(), match[0] + b"\n") for match in _PEM_BLOCK.finditer(data)]
    if len(found) != data.count(b"-----BEGIN"):
        raise InvalidInputError("a PEM block is damaged", where=str(path))
    return found


def _load_public(block: bytes, path: Path) -> "Ed25519PublicKey":
    serialization = _serialization()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = serialization.load_pem_public_key(block)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInputError(
            "not a public key", got=str(error)[:200], where=str(path)
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise _not_ed25519(key, path)
    return key


def _load_private(path: Path) -> "Ed25519PrivateKey":
    serialization = _serialization()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    blocks = _blocks(path)
    if len(blocks) != 1:
        raise InvalidInputError(
            "not a private key", expected="one PEM block", got=str(len(blocks)), where=str(path)
        )
    try:
        key = serialization.load_pem_private_key(blocks[0][1], password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInputError(
            "not a private key",
            expected="PEM, PKCS #8, not encrypted",
            got=str(error)[:200],
            where=str(path),
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _not_ed25519(key, path)
    return key


def _not_ed25519(key: object, path: Path) -> InvalidInputError:
    return InvalidInputError(
        "not an Ed25519 key", expected="Ed25519", got=type(key).__name__, where=str(path)
    )


def _keyid(key: "Ed25519PublicKey") -> str:
    serialization = _serialization()
    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()
