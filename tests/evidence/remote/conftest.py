import importlib
import importlib.util
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from harness.evidence.remote.address import open_remote
from harness.evidence.remote.folder import FolderRemote
from harness.evidence.remote.objects import ObjectRemote
from harness.evidence.remote.remote import Remote
from harness.evidence.store import Store


@pytest.fixture(scope="session")
def sample() -> ModuleType:
    """Builders of a small, complete record (see ``tests/evidence/sample.py``)."""
    path = Path(__file__).resolve().parents[1] / "sample.py"
    spec = importlib.util.spec_from_file_location("evidence_sample", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def filled(tmp_path: Path, sample: ModuleType) -> Store:
    """Two records with verdicts in a store that keeps a log; the first is signed."""
    from harness.evidence.signing.envelope import Envelope
    from harness.evidence.signing.records import put_signature

    store = Store(tmp_path / "here")
    store.start_log()
    for name in ("one", "two"):
        sample.put_verdict(store, sample.put_record(store, salt=name, experiment=name))
    record = store.digests("records")[0]
    payload = store.read("records", record)
    put_signature(store, record, Envelope(payload=payload, keyid="ab" * 32, signature=bytes(64)))
    return store


@pytest.fixture
def folder(tmp_path: Path) -> FolderRemote:
    return FolderRemote(root=tmp_path / "there")


@pytest.fixture
def objects() -> ObjectRemote:
    """Objects in memory, through the interface of every service."""
    memory = importlib.import_module("fsspec").filesystem("memory")
    prefix = f"/{secrets.token_hex(8)}"
    return ObjectRemote(url=f"memory://{prefix}", prefix=prefix, system=memory)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """An S3 service on the loopback interface, with one bucket."""
    pytest.importorskip("s3fs", reason="needs s3fs, of the extra `remote`")
    server_of = pytest.importorskip("moto.server", reason="needs moto, of the extra `dev`")
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        importlib.import_module("fsspec").filesystem("s3", skip_instance_cache=True).mkdir("bucket")
        yield "s3://bucket"
    server.stop()


@pytest.fixture
def bucket(s3_server: str) -> str:
    """The address of an empty remote store in S3."""
    return f"{s3_server}/{secrets.token_hex(8)}"


@pytest.fixture(params=["folder", "objects", pytest.param("s3", marks=pytest.mark.slow)])
def remote(request: pytest.FixtureRequest) -> Remote:
    if request.param == "s3":
        return open_remote(request.getfixturevalue("bucket"))
    found: Remote = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def tree() -> Callable[[Path], dict[str, bytes]]:
    """Every file of a store, by name."""

    def read(root: Path) -> dict[str, bytes]:
        files = (path for path in root.rglob("*") if path.is_file())
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}

    return read
