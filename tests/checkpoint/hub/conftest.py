"""A hub on this machine: the Hub's addresses, headers and redirects, over one tiny repository."""

import hashlib
import json
import mmap
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from harness.checkpoint import hub_http

REVISION = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "owner/model"
TOKEN = "hf_" + "NotToBeSeen" * 3
SIGNATURE = "X-Signature=alsoNotToBeSeen"
LARGE_BYTES = 1000
"""From here on a file is in large file storage, as every file of weights is."""


@dataclass(frozen=True)
class Request:
    """One request as a server saw it."""

    is_home: bool
    path: str
    range: str | None
    authorization: str | None

    @property
    def name(self) -> str:
        return self.path.split("?")[0].rsplit("/", 1)[-1]


def shard(sizes: dict[str, int], salt: str = "") -> bytes:
    """A safetensors file of U8 tensors."""
    header, data = {}, b""
    for key, size in sizes.items():
        piece = hashlib.shake_128(f"{salt}{key}".encode()).digest(size)
        header[key] = {
            "dtype": "U8",
            "shape": [size],
            "data_offsets": [len(data), len(data) + size],
        }
        data += piece
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def repository() -> dict[str, bytes]:
    """Two shards and what lies beside them, wanted and unwanted."""
    tensors = [{"a.one": 3000, "a.two": 500}, {"b.one": 4000}]
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    weight_map = {key: name for name, keys in zip(names, tensors, strict=True) for key in keys}
    return {
        names[0]: shard(tensors[0]),
        names[1]: shard(tensors[1]),
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
        "config.json": b"{}",
        "tokenizer.json": json.dumps({"filler": "x" * LARGE_BYTES}).encode(),
        "README.md": b"# not asked for",
        "pytorch_model.bin": b"\x80\x02",
        "modeling.py": b"raise SystemExit",
        "onnx/model.safetensors": b"a copy in a subfolder",
    }


Fault = Callable[["Handler", bytes, int], bool]
"""Called with the whole content and the first byte asked for; whether it answered."""


@dataclass
class Hub:
    """What the servers give and what they were asked."""

    repository_id: str = REPOSITORY
    revision: str = REVISION
    files: dict[str, bytes | mmap.mmap] = field(default_factory=repository)
    declared: dict[str, str] = field(default_factory=dict)
    """Digests, bare hex, that are declared and not those of the content."""
    served: dict[str, bytes] = field(default_factory=dict)
    """Content that differs from what is declared."""
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    """By file name (or ``listing``): used one after another, the last one for ever."""
    change_listing: Callable[[dict[str, Any]], Any] = lambda listing: listing
    home_headers: dict[str, str] = field(default_factory=dict)
    redirect: str | None = None
    requests: list[Request] = field(default_factory=list)
    home: str = ""
    store: str = ""
    is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def asked(self) -> list[str]:
        """Names of the files whose bytes were asked for, in order."""
        return [each.name for each in self.contents]

    @property
    def contents(self) -> list[Request]:
        """Requests that were for bytes of a file, not for an address."""
        return [
            each
            for each in self.requests
            if not each.is_home or ("/resolve/" in each.path and not self.is_large(each.name))
        ]

    def is_large(self, name: str) -> bool:
        return name in self.files and len(self.files[name]) >= LARGE_BYTES

    def fault(self, name: str) -> Fault | None:
        left = self.faults.get(name, [])
        return left.pop(0) if len(left) > 1 else left[0] if left else None

    def listing(self) -> Any:
        siblings = []
        for name, content in self.files.items():
            row: dict[str, Any] = {"rfilename": name, "size": len(content)}
            blob: bytes | mmap.mmap = content
            if self.is_large(name):
                sha256 = self.declared.get(name) or hashlib.sha256(content).hexdigest()
                blob = f"oid sha256:{sha256}".encode()
                row["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": len(blob)}
            row["blobId"] = hashlib.sha1(b"blob %d\0" % len(blob) + blob).hexdigest()
            siblings.append(row)
        found = {"id": self.repository_id, "sha": self.revision, "siblings": siblings}
        return self.change_listing(found)


class Handler(BaseHTTPRequestHandler):
    """Answers for the hub itself, or for the store that it redirects to."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: Hub
    is_home: bool

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        asked = self.headers.get("range")
        self.hub.requests.append(
            Request(self.is_home, self.path, asked, self.headers.get("authorization"))
        )
        if not self.is_home:
            self.content(self.path.split("?")[0].rsplit("/", 1)[-1])
            return
        if match := re.fullmatch(r"/api/models/(.+)/revision/(.+)\?blobs=true", self.path):
            if self.missing(match[1], match[2]):
                return
            fault = self.hub.fault("listing")
            body = json.dumps(self.hub.listing()).encode()
            if fault is None or not fault(self, body, 0):
                self.answer(200, body)
        elif match := re.fullmatch(r"/(.+)/resolve/(.+?)/(.+)", self.path):
            if self.missing(match[1], match[2]):
                return
            if match[3] not in self.hub.files:
                self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            elif self.hub.is_large(match[3]) or self.hub.redirect is not None:
                target = self.hub.redirect
                if target is None:
                    target = f"{self.hub.store}/{match[3]}?{SIGNATURE}"
                headers = {"Location": target, "X-Repo-Commit": self.hub.revision}
                self.answer(302, b"", headers | self.hub.home_headers)
            else:
                self.content(match[3])
        else:
            self.answer(400, b"")

    def missing(self, repository: str, revision: str) -> bool:
        if repository != self.hub.repository_id:
            self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif revision != self.hub.revision:
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            return False
        return True

    def content(self, name: str) -> None:
        whole = self.hub.served.get(name, self.hub.files.get(name, b""))
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        first = int(match[1]) if match else 0
        fault = self.hub.fault(name)
        if fault is not None and fault(self, whole, first):
            return
        if match is None:
            self.answer(200, whole, self.hub.home_headers)
        elif first >= len(whole):
            self.answer(416, b"", {"Content-Range": f"bytes */{len(whole)}"})
        else:
            last = min(int(match[2] or len(whole)), len(whole) - 1)
            span = f"bytes {first}-{last}/{len(whole)}"
            self.answer(206, whole[first : last + 1], {"Content-Range": span})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.begin(status, {"Content-Length": str(len(body)), **(headers or {})})
        self.wfile.write(body)

    def begin(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that closes early is nothing to print


@pytest.fixture(scope="session")
def client() -> Iterator[None]:
    """One client for all tests, since a new one reads all certificates; no proxy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "*")
        huggingface_hub.close_session()
        huggingface_hub.get_session()
    yield
    huggingface_hub.close_session()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, client: None) -> Iterator[Hub]:
    """A hub that this process's client takes for the Hub, with a token at hand."""
    made = Hub()
    servers = []
    for is_home in (True, False):
        handler = type("BoundHandler", (Handler,), {"hub": made, "is_home": is_home})
        server = Server(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
    made.home, made.store = (f"http://127.0.0.1:{each.server_port}" for each in servers)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", made.home)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setattr(hub_http, "PAUSE_S", 0.001)
    yield made
    made.is_over.set()
    for server in servers:
        server.shutdown()
        server.server_close()


class Faults:
    """Ways in which a content does not arrive."""

    @staticmethod
    def well(handler: Handler, content: bytes, first: int) -> bool:
        return False

    @staticmethod
    def cut(num_bytes: int) -> Fault:
        """Promise the rest of the content, send some bytes of it and close."""

        def fault(handler: Handler, content: bytes, first: int) -> bool:
            rest = content[first:]
            headers = {"Content-Length": str(len(rest))}
            if first:
                span = f"bytes {first}-{len(content) - 1}/{len(content)}"
                headers["Content-Range"] = span
            handler.begin(206 if first else 200, headers)
            handler.wfile.write(rest[:num_bytes])
            handler.close_connection = True
            return True

        return fault

    @staticmethod
    def status(number: int, **headers: str) -> Fault:
        def fault(handler: Handler, content: bytes, first: int) -> bool:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            handler.answer(number, b"", named)
            return True

        return fault

    @staticmethod
    def whole(handler: Handler, content: bytes, first: int) -> bool:
        """Give everything, whatever was asked for."""
        handler.answer(200, content)
        return True

    @staticmethod
    def body(status: int, body: bytes, **headers: str) -> Fault:
        def fault(handler: Handler, content: bytes, first: int) -> bool:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            handler.answer(status, body, named)
            return True

        return fault

    @staticmethod
    def stall(handler: Handler, content: bytes, first: int) -> bool:
        """Send one byte and then nothing, until the test is over."""
        handler.begin(200, {"Content-Length": str(len(content))})
        handler.wfile.write(content[:1])
        handler.hub.is_over.wait(30)
        handler.close_connection = True
        return True

    @staticmethod
    def trickle(handler: Handler, content: bytes, first: int) -> bool:
        """Send byte after byte, each long before a read would time out."""
        handler.begin(200, {"Content-Length": str(len(content))})
        for byte in content:
            handler.wfile.write(bytes([byte]))
            if handler.hub.is_over.wait(0.02):
                break
        return True


@pytest.fixture
def faults() -> type[Faults]:
    return Faults


@pytest.fixture
def source() -> dict[str, Any]:
    """The source of the tiny repository."""
    return {"kind": "hub", "repository": REPOSITORY, "revision": REVISION}


@pytest.fixture
def weights(hub: Hub) -> list[str]:
    """Names of the two shards."""
    return sorted(name for name in hub.files if name.startswith("model-"))


@pytest.fixture
def pins(hub: Hub, weights: list[str]) -> list[Any]:
    """What a plan would pin that needs the second shard only."""
    from harness.plan.records import CheckpointFile

    return [
        CheckpointFile(
            name=name,
            size_bytes=len(hub.files[name]),
            sha256="sha256:" + hashlib.sha256(hub.files[name]).hexdigest(),
        )
        for name in ("config.json", weights[1])
    ]


@pytest.fixture
def elapsed() -> Callable[[], float]:
    begun = time.monotonic()
    return lambda: time.monotonic() - begun


@pytest.fixture
def everything() -> Callable[[Path], str]:
    """All names and bytes under a folder, as text to search in."""

    def read(folder: Path) -> str:
        return "\n".join(
            f"{path}\n{path.read_bytes().decode('latin-1')}"
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        )

    return read
