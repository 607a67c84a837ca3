"""Parcels between machines: what is sent arrives whole, and nothing else is taken."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.canonical import sha256_digest
from harness.stages import parcels
from harness.stages.errors import PeerError
from harness.stages.messages import encode
from harness.stages.parcels import receive_parcel, send_parcel
from harness.stages.transport import Transport

DIGEST = sha256_digest(b"")


def exchange(
    in_threads: Callable[..., list[Any]], into: Path, send: Callable[[Transport], None]
) -> Any:
    """What the second machine makes of what the first one sends."""

    def act(transport: Transport) -> Any:
        if transport.stage == 0:
            return send(transport)
        return receive_parcel(transport, 0, into, idle_s=5)

    return in_threads(2, act)[1]


def test_a_note_and_files_arrive(
    in_threads: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parcels, "PIECE_BYTES", 1000)
    sent = {"one.parquet": secrets.token_bytes(2500), "two.json": b"", "three.bin": b"x" * 1000}
    for name, data in sent.items():
        (tmp_path / name).write_bytes(data)
    files = [tmp_path / name for name in sent]
    note = {"kind": "report", "realization": 3}
    got = exchange(in_threads, tmp_path / "in", lambda t: send_parcel(t, 1, note, files))
    assert got == note
    assert {path.name: path.read_bytes() for path in (tmp_path / "in").iterdir()} == sent


def test_a_changed_bit_is_found(
    in_threads: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one.parquet"
    path.write_bytes(b"1234")
    original = Transport.send

    def bent(self: Transport, tensor: Any, to: int, what: str, **more: Any) -> None:
        if what == "one.parquet of a parcel":
            tensor[2] ^= 1
        original(self, tensor, to, what, **more)

    monkeypatch.setattr(Transport, "send", bent)
    got = exchange(in_threads, tmp_path / "in", lambda t: send_parcel(t, 1, {}, [path]))
    assert isinstance(got, PeerError)
    assert f"announced as {sha256_digest(b'1234')}" in str(got)


@pytest.mark.parametrize(
    "document",
    [
        {"note": {}},
        {"note": [], "files": []},
        {"note": {}, "files": {}},
        {"note": {}, "files": [], "more": 1},
        {"note": {}, "files": [["a.b", 0]]},
        {"note": {}, "files": [["a.b", "0", DIGEST]]},
        {"note": {}, "files": [["a.b", True, DIGEST]]},
        {"note": {}, "files": [["a.b", -1, DIGEST]]},
        {"note": {}, "files": [["a.b", parcels.MAX_FILE_BYTES + 1, DIGEST]]},
        {"note": {}, "files": [["a.b", 0, "0" * 64]]},
        {"note": {}, "files": [["a.b", 0, DIGEST], ["a.b", 0, DIGEST]]},
        {"note": {}, "files": [["../a.b", 0, DIGEST]]},
        {"note": {}, "files": [["/a.b", 0, DIGEST]]},
        {"note": {}, "files": [[".a", 0, DIGEST]]},
        {"note": {}, "files": [["a.b\n", 0, DIGEST]]},
        {"note": {}, "files": [[f"a{n}.b", 0, DIGEST] for n in range(parcels.MAX_FILES + 1)]},
        {
            "note": {},
            "files": [[f"a{n}.b", parcels.MAX_FILE_BYTES, DIGEST] for n in range(5)],
        },
    ],
)
def test_what_is_no_parcel_is_not_taken(
    in_threads: Callable[..., list[Any]], tmp_path: Path, document: dict[str, Any]
) -> None:
    into = tmp_path / "in"
    got = exchange(in_threads, into, lambda t: t.send(encode(document), 1, "a parcel"))
    assert isinstance(got, PeerError)
    assert "machine 0 sent what is not taken" in str(got)
    assert not into.exists()
