import base64
import hashlib
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.errors import InvalidInputError, NotEvaluableError
from harness.evidence.signing import keys
from harness.evidence.signing.keys import allowed_keys, generate, sign

# RFC 8032, 7.1: the first two tests.
SEED_1 = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
SIGNATURE_1 = (
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bac"
    "c61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
)
SEED_2 = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
SIGNATURE_2 = (
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e"
    "458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)
PRIVATE_DER = bytes.fromhex("302e020100300506032b657004220420")
"""What stands before the seed in the DER form of a private key (RFC 8410)."""


OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")


def pem(kind: str, der: bytes) -> bytes:
    return (
        f"-----BEGIN {kind}-----\n{base64.b64encode(der).decode()}\n-----END {kind}-----\n".encode()
    )


@pytest.mark.parametrize(
    ("seed", "message", "signature"), [(SEED_1, b"", SIGNATURE_1), (SEED_2, b"\x72", SIGNATURE_2)]
)
def test_published_signatures(
    key: Any, tmp_path: Path, seed: bytes, message: bytes, signature: str
) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(pem("PRIVATE KEY", PRIVATE_DER + seed))
    assert sign(message, path).value.hex() == signature


def test_a_pair_signs_and_verifies(key: Any, stranger: Any) -> None:
    signature = sign(b"data", key.private)
    assert signature.keyid == key.id
    allowed = key.allowed()
    assert list(allowed.keys) == [key.id]
    assert allowed.verify(key.id, signature.value, b"data")
    assert not allowed.verify(key.id, signature.value, b"Data")
    assert not allowed.verify(key.id, signature.value[:-1], b"data")
    assert not allowed.verify(key.id, bytes(64), b"data")
    # Another's signature, under its own id and under ours.
    other = sign(b"data", stranger.private)
    assert not allowed.verify(other.keyid, other.value, b"data")
    assert not allowed.verify(key.id, other.value, b"data")


@OPENSSL
def test_a_key_id_is_the_hash_of_the_public_half(key: Any) -> None:
    der = subprocess.run(
        ["openssl", "pkey", "-pubin", "-in", str(key.public), "-outform", "DER"],
        capture_output=True,
        check=True,
    )
    assert hashlib.sha256(der.stdout).hexdigest() == key.id


@OPENSSL
def test_openssl_accepts_what_was_signed(key: Any, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"data")
    (tmp_path / "sig").write_bytes(sign(b"data", key.private).value)
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-rawin"]
    command += ["-inkey", str(key.public), "-in", str(tmp_path / "data")]
    done = subprocess.run(
        [*command, "-sigfile", str(tmp_path / "sig")], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_private_key_is_its_owners_and_no_key_is_overwritten(key: Any, tmp_path: Path) -> None:
    assert stat.S_IMODE(key.private.stat().st_mode) == 0o600
    assert b"PRIVATE" not in key.public.read_bytes()
    before = key.private.read_bytes()
    for paths in ((key.private, tmp_path / "new"), (tmp_path / "new", key.private)):
        with pytest.raises(InvalidInputError, match="never overwritten"):
            generate(*paths)
    assert key.private.read_bytes() == before
    assert not (tmp_path / "new").exists()


def test_an_allow_list_is_a_file_or_a_folder(key: Any, stranger: Any, tmp_path: Path) -> None:
    both = b"# ours and theirs\n" + key.public.read_bytes() + stranger.public.read_bytes()
    (tmp_path / "both.pem").write_bytes(both)
    assert allowed_keys(tmp_path / "both.pem").keys.keys() == {key.id, stranger.id}
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "README").write_text("nothing")
    for each in (key, stranger):
        (folder / each.public.name).write_bytes(each.public.read_bytes())
    assert allowed_keys(folder).keys.keys() == {key.id, stranger.id}


def rsa_key() -> bytes:
    made = subprocess.run(
        ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
        capture_output=True,
        check=True,
    )
    return made.stdout


def test_an_allow_list_without_a_key_is_refused(key: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "none.pem").write_bytes(b"nothing\n")
    for path in (tmp_path / "empty", tmp_path / "none.pem"):
        with pytest.raises(InvalidInputError, match="no key is allowed"):
            allowed_keys(path)
    with pytest.raises(InvalidInputError, match="not a file"):
        allowed_keys(tmp_path / "missing.pem")


def test_what_is_no_public_key_is_refused(key: Any, tmp_path: Path) -> None:
    path = tmp_path / "keys.pem"
    good = key.public.read_bytes()
    cut = good.replace(b"-----END", b"-----FIN")
    for data, message in (
        (good + key.private.read_bytes(), "public keys only"),
        (good + pem("PUBLIC KEY", b"\x30\x00"), "not a public key"),
        (good + cut, "damaged"),
        (good + b"-----BEGIN PUBLIC KEY-----\n", "damaged"),
        (b"x" * 100_000, "too long"),
    ):
        path.write_bytes(data)
        with pytest.raises(InvalidInputError, match=message):
            allowed_keys(path)


@OPENSSL
def test_what_is_no_ed25519_private_key_is_refused(key: Any, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    encrypted = subprocess.run(
        [*("openssl", "pkey", "-in", str(key.private), "-aes256"), "-passout", "pass:secret"],
        capture_output=True,
        check=True,
    ).stdout
    for data, message in (
        (key.public.read_bytes(), "not a private key"),
        (key.private.read_bytes() * 2, "not a private key"),
        (encrypted, "not a private key"),
        (pem("PRIVATE KEY", b"\x30\x00"), "not a private key"),
        (rsa_key(), "not an Ed25519 key"),
        (b"", "not a private key"),
    ):
        path.write_bytes(data)
        with pytest.raises(InvalidInputError, match=message) as caught:
            sign(b"data", path)
        assert "secret" not in str(caught.value)


def test_without_cryptography_nothing_can_be_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    path = tmp_path / "key.pem"
    path.write_bytes(pem("PUBLIC KEY", bytes(44)))
    for action in (
        lambda: keys.allowed_keys(path),
        lambda: keys.sign(b"", path),
        lambda: keys.generate(tmp_path / "a", tmp_path / "b"),
    ):
        with pytest.raises(NotEvaluableError, match="not installed") as caught:
            action()
        assert caught.value.hint is not None
        assert "signatures" in caught.value.hint
    assert sorted(each.name for each in tmp_path.iterdir()) == ["key.pem"]
