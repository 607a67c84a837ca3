"""A record that lies is found, however well it is signed.

Every lie is told in all realizations alike and signed again down to the file names, so that neither
a hash nor a comparison of realizations gives it away.
"""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

Rows = list[dict[str, Any]]

# Found through a difference of their own, not only because the result's digest no longer fits.
ENOUGH = {"result.digest"}


def changed(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return [*(value or []), "x" if pa.types.is_string(kind.value_type) else 1]
    if pa.types.is_string(kind):
        if value is None:
            return "x"
        if value.startswith("sha256:"):
            return value[:-1] + ("1" if value[-1] == "0" else "0")
        return value + "x"
    if pa.types.is_boolean(kind):
        return not value
    return (value or 0) + 1


def found(outcome: Any) -> list[dict[str, Any]]:
    return [entry for entry in outcome.json["differences"] if entry["check"] not in ENOUGH]


@pytest.mark.slow
def test_an_untouched_copy_passes(liar: Any, audit: Any) -> None:
    lie = liar()
    for name in lie.names():
        lie.rewrite(name, lambda rows: None)
    outcome = audit(lie)
    assert outcome.code == 0, outcome
    assert outcome.json["status"] == "passed"


@pytest.fixture(scope="module")
def unbound(command: Any, repo_root: Any, committed: Any) -> set[str]:
    """Places that the auditor itself says nothing binds."""
    record = committed["tiny_llama"][0]
    store, plan = repo_root / "evidence", repo_root / "plans" / "tiny_llama.json"
    return set(command("reconcile", "--json", "--store", store, plan, record).json["unbound"])


TABLES = [
    "arenas",
    "authorities",
    "checkpoints",
    "correctness",
    "distributions",
    "executions",
    "expected_tensors",
    "facts",
    "fetches",
    "fixture_outputs",
    "fixture_states",
    "ledger",
    "lifecycle",
    "materializations",
    "sentinels",
    "sources",
    "states",
    "step_times",
    "steps",
    "tensors",
    "trials",
]


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.long
def test_columns_are_bound_or_said_to_be_unbound(
    liar: Any, audit: Any, unbound: set[str], table: str
) -> None:
    lie = liar()
    assert table in lie.names()
    columns = [c for c in lie.table(table).schema if f"tables/{table}.{c.name}" not in unbound]
    missed = []
    for column in columns[:: max(1, len(columns) // 3)]:

        def tell(rows: Rows, column: Any = column) -> None:
            row = rows[len(rows) // 2]
            row[column.name] = changed(row[column.name], column.type)

        lie = liar()
        lie.rewrite(table, tell)
        outcome = audit(lie)
        telemetry = {c["id"] for c in outcome.json["checks"] if c["kind"] == "telemetry"}
        places = found(outcome)
        only_telemetry = all(place["check"] in telemetry for place in places)
        if not places or (outcome.code != 1 and not only_telemetry):
            missed.append((column.name, outcome.code, places[:2]))
    assert missed == []


ROWS = [name for name in TABLES if name not in ("distributions", "lifecycle")]


@pytest.mark.slow
@pytest.mark.parametrize("table", ROWS)
def test_a_dropped_row(liar: Any, audit: Any, table: str) -> None:
    lie = liar()
    lie.rewrite(table, lambda rows: rows[: len(rows) // 2] + rows[len(rows) // 2 + 1 :])
    assert found(audit(lie))


@pytest.mark.slow
def test_doubled_rows(liar: Any, audit: Any) -> None:
    lie = liar()
    for table in lie.names():
        lie.rewrite(table, lambda rows: [*rows, rows[0]])
    outcome = audit(lie)
    assert outcome.code == 1
    places = [place["path"] for place in found(outcome)]
    for table in lie.names():
        assert any(table in place for place in places), table


def at(rows: Rows, **wanted: Any) -> Rows:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def put(rows: Rows, where: dict[str, Any], **fields: Any) -> None:
    chosen = at(rows, **where)
    assert chosen, where
    for row in chosen:
        row.update(fields)


ZERO = "sha256:" + "0" * 64
MIB = 1024 * 1024


def grow(rows: Rows, point: str) -> None:
    """A mirror of one MiB, told consistently."""
    for row in at(rows, point=point):
        for name in ("private_anonymous_bytes", "unplanned_bytes", "vm_rss_bytes"):
            row[name] += MIB
        row["rss_anon_bytes"] += MIB
        row["uss_bytes"] += MIB
        row["vm_hwm_bytes"] += MIB


def still(rows: Rows) -> None:
    """A decode that changed no state."""
    first = {row["name"]: row["digest"] for row in rows if row["point"] == "before_prefill"}
    for row in rows:
        row["digest"] = first[row["name"]]


LIES: dict[str, tuple[str, Callable[[Rows], Rows | None]]] = {
    "a token, everywhere": ("steps", lambda r: put(r, {"phase": "decode", "step": 3}, token=1)),
    "a plane, everywhere": (
        "steps",
        lambda r: put(r, {"phase": "decode", "step": 3}, plane_digest=ZERO),
    ),
    "logits, everywhere": (
        "steps",
        lambda r: put(r, {"phase": "decode", "step": 3}, logits_digest=ZERO),
    ),
    "a NaN, everywhere": ("steps", lambda r: put(r, {"phase": "decode", "step": 3}, num_nan=1)),
    "an Inf, everywhere": ("steps", lambda r: put(r, {"phase": "decode", "step": 3}, num_inf=1)),
    "one repetition less": ("steps", lambda r: [row for row in r if row["repetition"] != 3]),
    "one different element": (
        "correctness",
        lambda r: put(r, {"phase": "decode", "step": 3}, num_different=1),
    ),
    "a tiny deviation": (
        "correctness",
        lambda r: put(r, {"phase": "decode", "step": 3}, max_abs=1e-30),
    ),
    "the fixture's output": ("fixture_outputs", lambda r: put(r, {"phase": "decode"}, digest=ZERO)),
    "the fixture's token": ("fixture_outputs", lambda r: put(r, {"phase": "decode"}, token=1)),
    "decode changed nothing": ("states", still),
    "one state after decode": (
        "states",
        lambda r: put(r, {"point": r[-1]["point"], "repetition": 2}, digest=ZERO),
    ),
    "a resident tensor at both points": (
        "tensors",
        lambda r: put(r, {"name": r[0]["name"]}, digest=ZERO),
    ),
    "a resident tensor after decode": (
        "tensors",
        lambda r: put(r, {"name": r[0]["name"], "point": "after_decode"}, digest=ZERO),
    ),
    "no tensors after decode": (
        "tensors",
        lambda r: [row for row in r if row["point"] != "after_decode"],
    ),
    "an expected tensor": ("expected_tensors", lambda r: r[0].update(digest=ZERO)),
    "a fetched tensor": ("fetches", lambda r: r[0].update(digest=ZERO)),
    "a tensor fetched twice": ("fetches", lambda r: r[0].update(num_fetches=2)),
    "a file not closed": ("sources", lambda r: r[0].update(num_closes=r[0]["num_closes"] - 1)),
    "a staging still live": (
        "materializations",
        lambda r: put(
            r,
            {"id": "mat.weights.stage"},
            status="TRANSIENT_RELEASE_NOT_AUTHORIZED",
            lifecycle="live",
        ),
    ),
    "bytes after release": (
        "materializations",
        lambda r: put(r, {"id": "mat.weights.stage"}, bytes_after_release=1),
    ),
    "nothing released": (
        "materializations",
        lambda r: put(r, {"id": "mat.weights.stage"}, released_bytes=0),
    ),
    "no qualifying copy": (
        "materializations",
        lambda r: put(r, {"id": "mat.weights.stage"}, qualifying_ids=[]),
    ),
    "the staging qualifies itself": (
        "materializations",
        lambda r: put(r, {"id": "mat.weights.stage"}, qualifying_ids=["mat.weights.stage"]),
    ),
    "a failed residency": (
        "materializations",
        lambda r: put(r, {"id": "mat.weights.resident"}, status="REALIZATION_FAILED"),
    ),
    "one byte less": (
        "materializations",
        lambda r: put(r, {"id": "mat.weights.resident"}, requested_bytes=7_084_799),
    ),
    "the wrong memory": (
        "materializations",
        lambda r: put(r, {"id": "mat.weights.resident"}, memory_resource_id="node0.ram"),
    ),
    "an unknown live copy": (
        "materializations",
        lambda r: [*r, {**at(r, id="mat.weights.resident")[0], "id": "mat.extra"}],
    ),
    "another lineage": ("authorities", lambda r: [row.update(lineage="x") for row in r] and None),
    "another owner": (
        "authorities",
        lambda r: [row.update(materialization_id="mat.replay.resident") for row in r] and None,
    ),
    "no authority after decode": (
        "authorities",
        lambda r: [row for row in r if row["point"] != "after_decode"],
    ),
    "nothing ran": ("executions", lambda r: []),
    "a sentinel fired": ("sentinels", lambda r: put(r, {"name": r[0]["name"]}, count=1)),
    "a canary that did not fire": (
        "sentinels",
        lambda r: put(r, {"name": r[0]["name"]}, canary_count=0),
    ),
    "a sentinel left out": (
        "sentinels",
        lambda r: [row for row in r if row["name"] != r[0]["name"]],
    ),
    "an open checkpoint after release": (
        "checkpoints",
        lambda r: put(r, {"point": "after_release"}, checkpoint_descriptors=["model.safetensors"]),
    ),
    "a mapped checkpoint after decode": (
        "checkpoints",
        lambda r: put(r, {"point": "after_decode"}, checkpoint_mappings=["model.safetensors"]),
    ),
    "a mirror after release": ("checkpoints", lambda r: grow(r, "after_release")),
    "a mirror after decode": ("checkpoints", lambda r: grow(r, "after_decode")),
    "resident memory below its peak": (
        "checkpoints",
        lambda r: put(r, {"point": "after_decode"}, vm_hwm_bytes=1),
    ),
    "no baseline": ("checkpoints", lambda r: [row for row in r if row["point"] != "baseline"]),
    "unplanned tensors after decode": (
        "ledger",
        lambda r: put(r, {"point": "after_decode"}, unplanned_tensor_bytes=MIB),
    ),
    "a mapping after release": (
        "arenas",
        lambda r: [
            *r,
            {**at(r, materialization_id="mat.weights.stage")[0], "point": "after_decode"},
        ],
    ),
    "another kernel set": ("facts", lambda r: put(r, {"name": "kernel_set"}, value="other/1")),
    "another dtype": ("facts", lambda r: put(r, {"name": "dtype"}, value="bfloat16")),
    "a killed producer": (
        "trials",
        lambda r: put(r, {"child": "producer"}, outcome="killed", exit_code=None, signal="SIGKILL"),
    ),
}
FAST = {"a token, everywhere"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in LIES]
)
def test_a_lie_is_found(liar: Any, audit: Any, name: str) -> None:
    table, tell = LIES[name]
    lie = liar()
    lie.rewrite(table, tell)
    outcome = audit(lie)
    assert outcome.code == 1, outcome
    assert outcome.json["status"] == "failed"
    assert found(outcome), outcome
    acceptance = {c["id"] for c in outcome.json["checks"] if c["kind"] == "acceptance"}
    assert {place["check"] for place in found(outcome)} & acceptance


@pytest.mark.slow
def test_differences_are_sorted(liar: Any, audit: Any) -> None:
    lie = liar()
    for name in ("a token, everywhere", "a fetched tensor", "another lineage"):
        lie.rewrite(*LIES[name])
    places = [(entry["check"], entry["path"]) for entry in audit(lie).json["differences"]]
    assert len(places) > 3
    assert places == sorted(places)


STATEMENT: dict[str, Callable[[dict[str, Any]], object]] = {
    "the result's digest": lambda p: p.update(result_digest=ZERO),
    "planned bytes": lambda p: p["totals"]["planned_bytes"].update({"node0.ram": 1}),
    "observed bytes": lambda p: p["totals"]["observed_bytes"].update({"node0.ram": 1}),
    "the number of steps": lambda p: p["totals"].update(num_steps=1),
    "the plan's digest": lambda p: p["plan"].update(digest=ZERO),
    "the plan's file": lambda p: p["plan"].update(file_digest=ZERO),
    "the model": lambda p: p["plan"]["model"].update(repository="x"),
    "the plan's version": lambda p: p["plan"].update(plan_version="x"),
    "the manifest": lambda p: p.update(manifest_digest=ZERO),
    "the binding": lambda p: p["binding"]["memories"].update({"accelerator0.vram": "node0.ram"}),
    "a capacity": lambda p: p["environment"]["resources"]["nodes"][0]["memory_resources"][1].update(
        capacity_bytes=1
    ),
    "a kind": lambda p: p["environment"]["resources"]["nodes"][0]["compute_units"][0].update(
        kind="cpu"
    ),
    "the applicability's dtype": lambda p: p["applicability_key"].update(dtype="bfloat16"),
    "the applicability's threads": lambda p: p["applicability_key"].update(num_threads=64),
    "the applicability's build": lambda p: p["applicability_key"].update(torch_build="x"),
    "the applicability's instructions": lambda p: p["applicability_key"].update(
        instruction_set="x"
    ),
    "the fixture's recipe": lambda p: p["fixture"].update(recipe_digest=ZERO),
    "the fixture's outputs": lambda p: p["fixture"].update(digest=ZERO),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STATEMENT)
def test_a_lying_statement_is_found(liar: Any, audit: Any, name: str) -> None:
    lie = liar()
    STATEMENT[name](lie.predicate)
    outcome = audit(lie)
    assert outcome.code in (1, 2), outcome
    if outcome.code == 1:
        assert outcome.json["differences"]


@pytest.mark.slow
def test_a_record_without_its_second_realization(liar: Any, audit: Any) -> None:
    lie = liar()
    lie.predicate["tables"] = [t for t in lie.predicate["tables"] if t["realization"] != 1]
    lie.statement["subject"] = [
        s for s in lie.statement["subject"] if not s["name"].endswith("/r1")
    ]
    assert audit(lie).code == 1


@pytest.mark.slow
def test_a_record_of_another_plan(liar: Any, command: Any, repo_root: Any) -> None:
    lie = liar()
    record = lie.write()
    plan = repo_root / "plans" / "quickstart.json"
    outcome = command("reconcile", "--json", "--store", lie.store, plan, record)
    assert outcome.code in (1, 2), outcome


@pytest.mark.slow
def test_tables_that_are_not_tables(liar: Any, command: Any, repo_root: Any, tools: Any) -> None:
    """Garbage, signed: a failed check that names the table, or a refusal; never a crash."""
    for data in (b"", b"garbage", b"PAR1" + bytes(64) + b"PAR1"):
        lie = liar()
        entry = next(t for t in lie.predicate["tables"] if t["name"] == "steps")
        text = json.dumps(lie.statement).replace(entry["digest"][7:], tools.sha256(data))
        lie.statement = json.loads(text)
        for table in lie.predicate["tables"]:
            if table["name"] == "steps":
                table["size_bytes"] = len(data)
        (lie.store / "tables" / f"{tools.sha256(data)}.parquet").write_bytes(data)
        plan = repo_root / "plans" / "tiny_llama.json"
        outcome = command("reconcile", "--json", "--store", lie.store, plan, lie.write())
        assert outcome.code in (1, 2), outcome
        assert "steps" in outcome.text
