import importlib
import sys
from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import InvalidInputError, NotEvaluableError
from harness.evidence.remote.address import open_remote
from harness.evidence.remote.folder import FolderRemote
from harness.evidence.remote.objects import ObjectRemote
from harness.evidence.store import Store


@pytest.mark.parametrize("address", ["some/folder", "file://some/folder"])
def test_a_folder(address: str) -> None:
    assert open_remote(address) == FolderRemote(root=Path("some/folder"))


@pytest.mark.parametrize(
    "address",
    [
        "",
        "http://example.org/x",
        "memory://x",
        "simplecache::s3://bucket/x",
        "s3://",
        "s3://bucket/../other",
        "s3://bucket//x",
        "s3://key:secret@bucket/x",
        "s3://bucket/x?y",
        "hf://owner/name",
        "hf://datasets/owner",
        "a\0b",
        "s3:/bucket/x",
        "HF:datasets/owner/name",
    ],
)
def test_what_is_no_address_is_refused_and_no_secret_is_repeated(address: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_remote(address)
    assert "secret" not in str(caught.value)


def test_a_dataset_of_the_hub_is_reached_through_its_own_file_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remote = open_remote("hf://datasets/owner/name/evidence")
    assert isinstance(remote, ObjectRemote)
    hub = importlib.import_module("huggingface_hub")
    assert isinstance(remote.system, hub.HfFileSystem)
    # Nothing answers there.
    monkeypatch.setattr(remote.system, "ls", _nobody)
    with pytest.raises(NotEvaluableError, match="cannot be used"):
        remote.names("records")


def _nobody(*_: object, **__: object) -> None:
    raise ConnectionError("nobody answers")


@pytest.mark.parametrize(("scheme", "package"), [("s3", "s3fs"), ("hf", "huggingface_hub")])
def test_a_missing_package_is_said_with_what_installs_it(
    scheme: str,
    package: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    address = f"{scheme}://datasets/owner/name"
    assert main(["evidence", "pull", "--all", address, "--store", str(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert package in said
    assert "inference-harness[remote]" in said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["push", "--all", "THERE"], 0),
        (["push", "RECORD", "THERE"], 0),
        (["push", "THERE"], 2),
        (["push", "RECORD", "--all", "THERE"], 2),
        (["push", "ffffffff", "THERE"], 2),
        (["pull", "--all", "THERE"], 2),
        (["pull", "--all", "HERE"], 0),
        (["pull", "RECORD", "HERE"], 0),
        (["verify", "file://HERE"], 0),
        (["verify", "file://THERE"], 2),
        (["verify", "file://HERE", "--plans", "x"], 2),
    ],
)
def test_commands(arguments: list[str], code: int, filled: Store, tmp_path: Path) -> None:
    words = {
        "HERE": str(filled.root),
        "THERE": str(tmp_path / "there"),
        "RECORD": filled.digests("records")[0],
    }
    told = [words.get(each, each.replace("HERE", words["HERE"])) for each in arguments]
    if arguments[-1] == "file://THERE":
        told[-1] = f"file://{words['THERE']}"
    if arguments[0] != "verify":
        source = filled.root if arguments[0] == "push" else tmp_path / "back"
        told += ["--store", str(source)]
    assert main(["evidence", *told]) == code


def test_a_damaged_remote_store_is_exit_code_1(
    filled: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    table = filled.path("tables", filled.digests("tables")[0])
    table.write_bytes(b"")
    assert main(["evidence", "verify", f"file://{filled.root}"]) == 1
    assert table.name in capsys.readouterr().out


@pytest.mark.slow
def test_a_bucket_that_is_not_there(
    s3_server: str, filled: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", str(filled.root)]
    assert main(["evidence", "push", "--all", "s3://no-such-bucket/x", *store]) == 2
    assert "bucket" in capsys.readouterr().err
    assert main(["evidence", "pull", "--all", "s3://no-such-bucket/x", *store]) == 2
    assert main(["evidence", "verify", f"{s3_server}/empty"]) == 2


def test_nobody_listens(
    filled: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("s3fs", reason="needs s3fs, of the extra `remote`")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "topsecret")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert main(["evidence", "push", "--all", "s3://bucket/x", "--store", str(filled.root)]) == 3
    said = capsys.readouterr().err
    assert "goes on where it stopped" in said
    assert "topsecret" not in said
