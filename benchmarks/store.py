"""A store of many records: how fast it is hashed, verified, listed and queried, and in what memory.

    python -m benchmarks.store --folder /var/tmp/scale [--records 100000] [--bytes 10000000000]

Makes the store once (from one committed record, with tables of its own for each copy), then
measures each pass in a process of its own, reading from the page cache:

* the aggregate SHA-256 rate of this machine, in turn with the hash pass, which is compared to it;
* the hash pass: every file is found, opened and hashed;
* the schema pass: integrity as a whole, statements and references too;
* the audit pass, on a sample, since it audits every record again;
* the index, made anew and as kept, and one query by each field.
"""

import argparse
import hashlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from harness.adapters.families import layout_for
from harness.canonical import bare_hex
from harness.evidence.find import find_records, parse_condition
from harness.evidence.index import open_index
from harness.evidence.listing import list_records
from harness.evidence.record import LoadedRecord, load_record, verdicts_of
from harness.evidence.scan import hash_all, scan
from harness.evidence.store import SUFFIXES, Store
from harness.evidence.tables import encode
from harness.evidence.verify import verify_store
from harness.plan.load import parse_plan
from harness.reconcile.judge import judge

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENT = "tiny_llama"
MARK = 0x5A5A5A5A5A5A
"""A duration that no clock measures: its eight bytes are replaced to make another table."""
NUM_AUDITED = 20
QUERIES = (
    "experiment={}-7*",
    "plan={}",
    "model=*tiny*",
    "verdict=passed",
    "date=2026-11",
    "commit=*",
)


def make(root: Path, num_records: int, num_bytes: int) -> None:
    """Write copies of one record, each with a table of its own, and with its verdict."""
    source, store = Store(ROOT / "evidence"), Store(root)
    row = next(row for row in list_records(source) if row.experiment == EXPERIMENT)
    record = load_record(row.digest, source)
    verdict = verdicts_of(source, record.digest)[-1]
    store.put_plan(record.plan_bytes())
    store.put_manifest(record.manifest_bytes() or b"")
    shared = [*record.predicate.tables, verdict.predicate.differences.table()]
    for name in {
        each.digest for each in shared if (each.name, each.realization) != ("step_times", 0)
    }:
        store.put_table(source.read("tables", name))
    for folder in ("records", "verdicts"):
        (root / folder).mkdir()
    said = source.read("verdicts", verdict.digest)
    statement = source.read("records", record.digest)
    room = num_bytes // num_records - len(statement) - len(said)
    for times, changed in _copies(record, statement, room, num_records):
        name = hashlib.sha256(changed).hexdigest()
        about = said.replace(bare_hex(record.digest).encode(), name.encode())
        _write(root, "tables", times)
        _write(root, "records", changed)
        _write(root, "verdicts", about)


def _copies(
    record: LoadedRecord, statement: bytes, room: int, count: int
) -> Iterator[tuple[bytes, bytes]]:
    """Tables, and the statement that names each; all else of the statement stays as it is."""
    old = record.table("step_times", 0)
    assert old is not None
    rows = [
        {"repetition": 0, "phase": "decode", "step": step, "duration_ns": ns, "sentinel_ns": 0}
        for step, ns in enumerate([MARK, *os.urandom(max(room // 35, 1))])
    ]
    buffer = io.BytesIO()
    plain = pq.read_table(io.BytesIO(encode("step_times", rows)[0]))
    # Not compressed, so that the mark can be found and replaced.
    pq.write_table(plain, buffer, compression="none", store_schema=False, use_dictionary=False)
    table = buffer.getvalue()
    place = table.index(MARK.to_bytes(8, "little"))
    entry = (
        '{{"digest":"sha256:{}","name":"step_times","num_rows":{},"realization":0,"size_bytes":{}}}'
    )
    said = entry.format(bare_hex(old.digest), old.num_rows, old.size_bytes).encode()
    assert said in statement
    for number in range(count):
        mine = table[:place] + number.to_bytes(8, "little") + table[place + 8 :]
        name = hashlib.sha256(mine).hexdigest()
        changed = statement.replace(said, entry.format(name, len(rows), len(mine)).encode())
        changed = changed.replace(bare_hex(old.digest).encode(), name.encode())
        mark = f'"experiment":"{EXPERIMENT}'
        yield mine, changed.replace(f'{mark}"'.encode(), f'{mark}-{number % 1000}"'.encode())


def _write(root: Path, kind: str, data: bytes) -> None:
    name = hashlib.sha256(data).hexdigest()
    suffix = {"tables": ".parquet"}.get(kind, ".json")
    (root / kind / f"{name}{suffix}").write_bytes(data)


def sha256_rates(seconds: float = 1.0) -> tuple[float, float]:
    """Bytes that all cores together hash, from memory that is in no cache: in a second of the
    clock, and in a second of one core's own time, which others on the machine do not change.
    """
    num_threads = len(os.sched_getaffinity(0))
    totals = [0] * num_threads
    until = time.perf_counter() + seconds

    def work(index: int) -> None:
        data = bytes(1 << 25)
        view = memoryview(data)
        while time.perf_counter() < until:
            for start in range(0, len(data), 1 << 20):
                hashlib.sha256(view[start : start + (1 << 20)]).digest()
                totals[index] += 1 << 20

    threads = [threading.Thread(target=work, args=(index,)) for index in range(num_threads)]
    started, own = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed, own = time.perf_counter() - started, time.process_time() - own
    return sum(totals) / elapsed, sum(totals) / own


def hash_pass(root: Path, num_rounds: int = 3) -> dict[str, Any]:
    """The hash pass and the rate of the machine in turn; the best of each counts."""
    _hashed(root)  # what was not in the page cache is then
    rates, passes, sizes = [], [], []
    for _ in range(num_rounds):
        rates.append(sha256_rates())
        started, own = time.perf_counter(), time.process_time()
        sizes = _hashed(root)
        passes.append((time.perf_counter() - started, time.process_time() - own))
    num_bytes = sum(sizes)
    seconds, own_seconds = (min(each) for each in zip(*passes, strict=True))
    rate, own_rate = (max(each) for each in zip(*rates, strict=True))
    return {
        "num_files": len(sizes),
        "num_bytes": num_bytes,
        "seconds": seconds,
        "hash_bytes_per_sec": num_bytes / seconds,
        "sha256_bytes_per_sec": rate,
        "share": num_bytes / seconds / rate,
        "share_of_core_time": num_bytes / own_seconds / own_rate,
    }


def _hashed(root: Path) -> list[int]:
    sizes = []
    for kind in SUFFIXES:
        if (root / kind).is_dir():
            found = hash_all(scan(root / kind, [], max_bytes=1 << 62), [])
            sizes += [file.size_bytes for file in found]
    return sizes


def schema_pass(root: Path) -> dict[str, Any]:
    """Integrity of the whole store."""
    started = time.perf_counter()
    problems = verify_store(root)
    return {"seconds": time.perf_counter() - started, "num_problems": len(problems)}


def audit_pass(root: Path) -> dict[str, Any]:
    """Audits of a sample."""
    store = Store(root)
    digests = store.digests("records")
    started = time.perf_counter()
    statuses = []
    for digest in digests[:NUM_AUDITED]:
        record = load_record(digest, store)
        plan = parse_plan(record.plan_bytes(), where=digest)
        statuses.append(judge(plan, record, layout_for=layout_for).status)
    each = (time.perf_counter() - started) / len(statuses)
    return {"num_audited": len(statuses), "seconds_each": each, "seconds_all": each * len(digests)}


def index_pass(root: Path) -> dict[str, Any]:
    """The index made anew, opened as it is kept, and the newest 50 records by each field."""
    store = Store(root)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        for name in ("made", "opened"):
            started = time.perf_counter()
            index = open_index(store, Path(cache))
            found[f"{name}_seconds"] = time.perf_counter() - started
        plan = load_record(store.digests("records")[0], store).predicate.plan.digest
        for query in (None, *QUERIES):
            text = None if query is None else query.format(plan if "plan" in query else EXPERIMENT)
            conditions = [] if text is None else [parse_condition(text)]
            started = time.perf_counter()
            index = open_index(store, Path(cache))
            result = find_records(store, index, conditions, limit=50)
            key = "all" if query is None else query.partition("=")[0]
            found[f"{key}_seconds"] = time.perf_counter() - started
            found[f"{key}_matching"] = result.num_matching
    return found


PASSES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "hash": hash_pass,
    "index": index_pass,
    "audit": audit_pass,
    "schema": schema_pass,
}


def main() -> int:
    """Make the store where it is not there, and run each pass in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="a new folder, or one made here")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=10_000_000_000)
    parser.add_argument("--passes", default=",".join(PASSES), help=f"of {', '.join(PASSES)}")
    parser.add_argument("--json", type=Path, default=Path("runs/benchmark-store.json"))
    parser.add_argument("--one", choices=sorted(PASSES), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        before = _peak_bytes()
        result = PASSES[args.one](args.folder)
        print(json.dumps({**result, "memory_growth_bytes": _peak_bytes() - before}))
        return 0
    if not args.folder.exists():
        started = time.perf_counter()
        make(args.folder, args.records, args.bytes)
        print(f"made in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    results = {}
    for name in args.passes.split(","):
        command = [sys.executable, "-m", "benchmarks.store", "--folder", str(args.folder)]
        done = subprocess.run(
            [*command, "--one", name], stdout=subprocess.PIPE, check=True, cwd=ROOT
        )
        results[name] = json.loads(done.stdout)
        print(f"{name:<7} {json.dumps(results[name])}", flush=True)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    return 0


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    raise SystemExit(main())
