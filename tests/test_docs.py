import json
import re
from pathlib import Path

import pytest
import yaml

from harness.canonical import canonical_bytes, sha256_digest
from harness.cli.parser import parse_arguments
from harness.evidence.declared import TABLES
from harness.evidence.statement import check_statement
from harness.plan.check import check_plan
from harness.plan.checks import (
    ACCEPTANCE,
    DEVICE_CHECKS,
    NODE_CHECKS,
    STAGE_CHECKS,
    STATE_CHECKS,
    TELEMETRY,
)
from harness.plan.load import parse_plan
from harness.plan.partition import partition_faults
from harness.plan.records import Workload
from harness.reconcile.unbound import unbound_paths


def examples(path: Path) -> list[str]:
    return re.findall(r"^```json\n(.*?)\n```$", path.read_text(), re.MULTILINE | re.DOTALL)


def test_the_plan_in_the_plan_format_is_valid(repo_root: Path) -> None:
    row, text = examples(repo_root / "docs" / "plan_format.md")
    assert canonical_bytes(json.loads(row)).decode() == row
    plan = parse_plan(f"{text}\n".encode(), where="docs/plan_format.md")
    assert check_plan(plan, environment=None, support=None, manifest=None) == []


def test_every_field_of_a_plan_is_explained(repo_root: Path) -> None:
    text = (repo_root / "docs" / "plan_format.md").read_text()
    schema = json.loads((repo_root / "harness/plan/schemas/plan-1.schema.json").read_text())
    fields = [*schema["properties"], *schema["properties"]["workload"]["properties"]]
    assert [name for name in fields if f"`{name}`" not in text] == []


def test_every_check_that_a_family_may_ask_for_is_explained(repo_root: Path) -> None:
    for name in ("plan_format.md", "evidence_format.md"):
        text = (repo_root / "docs" / name).read_text()
        assert [
            check for check in (*STATE_CHECKS, *DEVICE_CHECKS) if f"`{check}`" not in text
        ] == []


def test_the_partition_in_the_plan_format_is_one(repo_root: Path) -> None:
    text = (repo_root / "docs" / "plan_format.md").read_text()
    pattern = r'"chunk_rows": (\d+), "prefill_partition": (\[.*\]) +(\d+) prompt tokens'
    ((rows, partition, prompt),) = re.findall(pattern, text)
    workload = Workload(
        prompt_token_ids=tuple(range(int(prompt))),
        chunk_rows=int(rows),
        decode_steps=1,
        repetitions=1,
        fresh_realizations=1,
        sampling="greedy",
        max_positions=int(prompt) + 1,
        prefill_partition=json.loads(partition),
    )
    assert list(partition_faults(workload)) == []


def test_the_statements_in_the_evidence_format_are_whole_and_belong_together(
    repo_root: Path,
) -> None:
    record, verdict = map(json.loads, examples(repo_root / "docs" / "evidence_format.md"))
    for statement in (record, verdict):
        check_statement(statement, where="docs/evidence_format.md")
    told, found = record["predicate"], verdict["predicate"]
    assert found["record_digest"] == sha256_digest(canonical_bytes(record))
    assert found["plan_digest"] == told["plan"]["digest"]
    assert found["result_digest"] == told["result_digest"]


def test_the_statements_in_the_evidence_format_are_of_the_present_version(repo_root: Path) -> None:
    record, verdict = map(json.loads, examples(repo_root / "docs" / "evidence_format.md"))
    told, found = record["predicate"], verdict["predicate"]
    # The example's state lies in no pool, and in no memory of a GPU; its plan has no stages.
    elsewhere = {**STATE_CHECKS, **DEVICE_CHECKS, **STAGE_CHECKS, **NODE_CHECKS}
    written = {
        name
        for name, table in TABLES.items()
        if table.writer != "auditor" and table.check not in elsewhere
    }
    assert {table["name"] for table in told["tables"]} == written
    assert set(told["totals"]) == {
        "planned_bytes",
        "observed_bytes",
        "num_steps",
        "smallest_visible_mirror_bytes",
    }
    assert found["unbound"] == list(unbound_paths())
    assert [check["id"] for check in found["checks"]] == [*ACCEPTANCE, *TELEMETRY]


def test_every_table_and_column_is_explained(repo_root: Path) -> None:
    text = (repo_root / "docs" / "evidence_format.md").read_text().partition("## Tables")[2]
    for table in TABLES.values():
        (line,) = [each for each in text.splitlines() if each.startswith(f"| `{table.name}` |")]
        named = re.findall(r"`(\w+)`", line)
        assert set(named) == {table.name, *table.columns}, table.name


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/experiments.md",
        "docs/plan_format.md",
        "docs/evidence_format.md",
        "docs/remotes.md",
    ],
)
def test_commands_in_the_documents_parse(repo_root: Path, name: str) -> None:
    text = (repo_root / name).read_text()
    commands = re.findall(r"^    (harness [^\n]*)$", text, re.MULTILINE)
    assert commands
    for line in commands:
        for command in re.split(r";\s*", re.split(r"\s{2,}", line)[0]):
            words = [re.sub(r"[\[\]]", "", word) for word in command.split() if word != "..."]
            words = [word for word in words if word != "..."]
            parse_arguments(words[1:])


def test_the_workflow_runs_targets_that_there_are(repo_root: Path) -> None:
    workflow = yaml.safe_load((repo_root / ".github" / "workflows" / "checks.yml").read_text())
    commands = [
        step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ]
    targets = re.findall(r"^([a-z-]+):", (repo_root / "Makefile").read_text(), re.MULTILINE)
    assert {*commands} == {"make lint", "make test", "make test-slow", "make verify"}
    assert {command.split()[1] for command in commands} <= {*targets}
    assert workflow["permissions"] == {"contents": "read"}


def test_every_launcher_and_its_extra_are_explained(repo_root: Path) -> None:
    text = (repo_root / "docs" / "experiments.md").read_text()
    for path in sorted((repo_root / "experiments" / "launcher").glob("*.yaml")):
        assert f"| `{path.stem}` |" in text


def test_every_document_is_named_in_the_readme(repo_root: Path) -> None:
    readme = (repo_root / "README.md").read_text()
    documents = sorted(path.name for path in (repo_root / "docs").glob("*.md"))
    assert [name for name in documents if f"(docs/{name})" not in readme] == []
