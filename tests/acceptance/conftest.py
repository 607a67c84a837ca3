"""The command line from outside: a runner, and makers of damaged plans, results and records."""

import copy
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rfc8785

Rows = list[dict[str, Any]]


class Outcome:
    """What one command left: exit code and both streams."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        words = [str(part) for part in done.args]
        self.command = "harness " + " ".join(words[words.index("harness") + 1 :])
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    @property
    def text(self) -> str:
        return self.out + self.err

    @property
    def json(self) -> Any:
        def refuse(constant: str) -> None:
            raise ValueError(f"{constant} is not JSON")

        return json.loads(self.out, parse_constant=refuse)

    def __repr__(self) -> str:
        return f"`{self.command}` -> {self.code}\n{self.out[:3000]}\n{self.err[:2000]}"


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def environment(cache_folder: Path) -> dict[str, str]:
    return {**os.environ, "HARNESS_CACHE": str(cache_folder), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="session")
def command(repo_root: Path, environment: dict[str, str]) -> Callable[..., Outcome]:
    """Run ``harness ARGUMENTS`` from the project's root; no command may show a traceback."""

    def run(*arguments: object, timeout: float = 300, options: tuple[str, ...] = ()) -> Outcome:
        words = [sys.executable, *options, "-m", "harness", *(str(word) for word in arguments)]
        done = subprocess.run(
            words,
            cwd=repo_root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        outcome = Outcome(done)
        assert "Traceback" not in outcome.text, outcome
        assert outcome.code in (0, 1, 2, 3), outcome
        return outcome

    return run


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sign(document: dict[str, Any]) -> dict[str, Any]:
    """Give a plan the digest of its schema's rule."""
    bare = {key: value for key, value in document.items() if key != "digest"}
    if str(bare.get("schema", "")).startswith("inferswarm"):
        text = json.dumps(bare, sort_keys=True, separators=(",", ":")) + "\n"
        data = text.encode("ascii")
    else:
        data = rfc8785.dumps(bare)
    return {**bare, "digest": "sha256:" + _sha256(data)}


def _plan_bytes(document: dict[str, Any]) -> bytes:
    native = not str(document.get("schema", "")).startswith("inferswarm")
    text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=not native)
    return (text + "\n").encode()


def _leaves(value: Any, path: str = "$") -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """Every leaf of a document: its JSON path, its keys, its value."""

    def walk(inner: Any, keys: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
        if isinstance(inner, dict):
            for key, item in inner.items():
                yield from walk(item, (*keys, key))
        elif isinstance(inner, list):
            for index, item in enumerate(inner):
                yield from walk(item, (*keys, index))
        else:
            yield keys, inner

    for keys, leaf in walk(value, ()):
        named = path
        for key in keys:
            if isinstance(key, int):
                named += f"[{key}]"
            elif re.fullmatch(r"\w+", key):
                named += f".{key}"
            else:
                named += f'["{key}"]'
        yield named, keys, leaf


def _put(document: Any, keys: tuple[Any, ...], value: Any) -> None:
    for key in keys[:-1]:
        document = document[key]
    document[keys[-1]] = value


def _other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str) and re.fullmatch(r"(sha256:)?[0-9a-f]{64}", value):
        return value[:-1] + ("1" if value[-1] == "0" else "0")
    if isinstance(value, str):
        return value + "x"
    return "x"


@pytest.fixture(scope="session")
def tools() -> SimpleNamespace:
    return SimpleNamespace(
        sha256=_sha256,
        sign=_sign,
        plan_bytes=_plan_bytes,
        leaves=_leaves,
        put=_put,
        other=_other,
    )


@pytest.fixture(scope="session")
def tiny_document(repo_root: Path) -> dict[str, Any]:
    """The frozen plan of the smallest experiment; do not change it, copy it."""
    document: dict[str, Any] = json.loads((repo_root / "plans" / "tiny_llama.json").read_bytes())
    return document


@pytest.fixture(scope="session")
def plan_folder(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tensor manifests, for plans that tests write."""
    folder = tmp_path_factory.mktemp("plans")
    shutil.copytree(repo_root / "plans" / "manifests", folder / "manifests")
    return folder


@pytest.fixture
def damaged_plan(
    tiny_document: dict[str, Any], plan_folder: Path, request: pytest.FixtureRequest
) -> Callable[..., Path]:
    """Write a changed and freshly signed copy of the smallest plan."""

    def write(change: Callable[[dict[str, Any]], object], sign: bool = True) -> Path:
        document = copy.deepcopy(tiny_document)
        change(document)
        if sign:
            document = _sign(document)
        data = _plan_bytes(document)
        path = plan_folder / f"{_sha256((request.node.name + data.decode()).encode())[:16]}.json"
        path.write_bytes(data)
        return path

    return write


@pytest.fixture(scope="session")
def r1_plan(shared_r1: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published plan, unpacked."""
    data = gzip.decompress((shared_r1 / "frozen-plan.json.gz").read_bytes())
    assert _sha256(data).startswith("11bebfc8")
    path = tmp_path_factory.mktemp("r1") / "frozen-plan.json"
    path.write_bytes(data)
    return path


@pytest.fixture(scope="session")
def r1_result(shared_r1: Path) -> Path:
    return shared_r1 / "result.json"


@pytest.fixture(scope="session")
def committed(repo_root: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Committed records by experiment."""
    records: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path in sorted((repo_root / "evidence" / "records").iterdir()):
        statement = json.loads(path.read_bytes())
        records[statement["predicate"]["experiment"]] = (path, statement)
    return records


class Liar:
    """Changes a copy of one committed record, and signs everything again."""

    def __init__(self, folder: Path, evidence: Path, statement: dict[str, Any]) -> None:
        self.store = folder / "store"
        self.statement = copy.deepcopy(statement)
        for name in ("plans", "manifests", "tables"):
            shutil.copytree(evidence / name, self.store / name)
        (self.store / "records").mkdir()
        (self.store / "verdicts").mkdir()

    @property
    def predicate(self) -> dict[str, Any]:
        predicate: dict[str, Any] = self.statement["predicate"]
        return predicate

    def names(self) -> list[str]:
        return sorted({table["name"] for table in self.predicate["tables"]})

    def table(self, name: str) -> pa.Table:
        entry = next(entry for entry in self.predicate["tables"] if entry["name"] == name)
        return pq.read_table(self.store / "tables" / f"{entry['digest'][7:]}.parquet")

    def rewrite(
        self, name: str, change: Callable[[Rows], Rows | None], only: int | None = None
    ) -> None:
        """Change a table's rows, in every realization unless ``only`` names one."""
        for entry in self.predicate["tables"]:
            if entry["name"] != name or (only is not None and entry["realization"] != only):
                continue
            old = entry["digest"]
            table = pq.read_table(self.store / "tables" / f"{old[7:]}.parquet")
            rows = table.to_pylist()
            changed = change(rows)
            rows = rows if changed is None else changed
            sink = pa.BufferOutputStream()
            pq.write_table(
                pa.Table.from_pylist(rows, schema=table.schema),
                sink,
                use_dictionary=False,
                compression="zstd",
            )
            data = sink.getvalue().to_pybytes()
            digest = _sha256(data)
            (self.store / "tables" / f"{digest}.parquet").write_bytes(data)
            subject = f"tables/{name}"
            if entry["realization"] is not None:
                subject += f"/r{entry['realization']}"
            for item in self.statement["subject"]:
                if item["name"] == subject:
                    item["digest"]["sha256"] = digest
            if self.predicate["fixture"]["digest"] == old:
                self.predicate["fixture"]["digest"] = f"sha256:{digest}"
            entry.update(digest=f"sha256:{digest}", num_rows=len(rows), size_bytes=len(data))

    def write(self) -> Path:
        data = rfc8785.dumps(self.statement)
        path = self.store / "records" / f"{_sha256(data)}.json"
        path.write_bytes(data)
        return path


@pytest.fixture
def liar(
    tmp_path: Path, repo_root: Path, committed: dict[str, tuple[Path, dict[str, Any]]]
) -> Callable[[], Liar]:
    counter = iter(range(10_000))

    def make() -> Liar:
        folder = tmp_path / f"lie-{next(counter)}"
        return Liar(folder, repo_root / "evidence", committed["tiny_llama"][1])

    return make


@pytest.fixture
def audit(command: Callable[..., Outcome], repo_root: Path) -> Callable[[Liar], Outcome]:
    def run(lie: Liar) -> Outcome:
        record = lie.write()
        plan = repo_root / "plans" / "tiny_llama.json"
        return command("reconcile", "--json", "--store", lie.store, plan, record)

    return run
