import json
import os
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.evidence.predicates import SourceIdentity
from harness.evidence.record import LoadedRecord, load_record
from harness.evidence.statement import record_predicate, record_statement
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate, StudyTable, study_statement
from harness.evidence.tables import encode
from harness.reading.page import gather, page
from harness.realize.arming import Arming

HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>&\x1b[31m'
VOID = {"meta"}


class Outline(HTMLParser):
    """Checks that elements nest, and keeps their names, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= set(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= set(attrs)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def outline(*records: LoadedRecord) -> Outline:
    return Outline(page([gather(record) for record in records]))


def put_localization(record: LoadedRecord, **changes: Any) -> str:
    """A localization of the record in which one boundary of two processes differs."""
    tables = []

    def put(name: str, rows: list[dict[str, Any]], number: int) -> None:
        data, num_rows = encode(name, rows)
        place = {"case": 0, "name": name, "realization": number}
        digest = record.store.put_table(data)
        tables.append(StudyTable(**place, digest=digest, num_rows=num_rows, size_bytes=len(data)))

    for number in (0, 1):
        rows = [
            {
                "repetition": 0,
                "phase": "prefill",
                "step": 0,
                "boundary": index,
                "name": name,
                "dtype": "float32",
                "shape": [1],
                "bytes": 4,
                "digest": f"sha256:{index + 1 + number * index:064x}",
                "is_kept": False,
            }
            for index, name in enumerate(("embedding", HOSTILE))
        ]
        put("boundaries", rows, number)
        put("armed_steps", [], number)
        put("replay_states", [], number)
    plan = record.predicate.plan.digest
    case = {"point": {"chunk_rows": 7}, "plan_digest": plan, "record": 0, "audit": "passed"}
    case["num_realizations"] = 2
    study = StudyPredicate(
        kind="localization",
        experiment="tiny_llama",
        parameters={"arming": Arming(repetitions=1).document(), "cases": [case]},
        records=(record.digest,),
        tables=tuple(tables),
        tensors=(),
        findings={"status": "varying", "cases": []},
        source=SourceIdentity(),
        command=(),
        started_at="2026-01-01T00:00:00Z",
        ended_at="2026-01-01T00:00:00Z",
    )
    return record.store.put_study(study_statement(replace(study, **changes)))


def test_a_page_shows_what_the_record_holds(evidence: Store, digests: list[str]) -> None:
    record = load_record(digests[0], evidence)
    found = outline(record)
    text = "\n".join(found.words)
    assert digests[0] in text
    for memory, count in record.predicate.totals["planned_bytes"].items():
        assert memory in text
        assert f"{count:,} B" in text
    for row in record.rows("ledger", 1):
        assert row["point"] in text
        assert f"{row['allocated_bytes']:,} B" in text
    peak = max(row["duration_ns"] for row in record.rows("step_times", 0)) / 1e6
    assert f"{peak:.3f}" in text
    assert "correctness.exact" in text
    assert "no localization in this store is about this record" in text


def test_a_page_shows_the_steps_digests_and_the_verdicts_of_its_experiment(
    evidence: Store, digests: list[str], tmp_path: Path
) -> None:
    record = load_record(digests[0], evidence)
    out = tmp_path / "page.html"
    arguments = ["evidence", "report", digests[0], "--store", str(evidence.root)]
    assert main([*arguments, "--out", str(out), "--cache", str(tmp_path / "cache")]) == 0
    text = "\n".join(Outline(out.read_text()).words)
    assert "passed: 1" in text
    assert record.digest[7:23] in text
    assert "prefill 0: plane to" in text
    assert ": 1 distinct" in text
    assert "not looked for" in "\n".join(outline(record).words)


def test_a_page_needs_no_script_and_no_network(evidence: Store, digests: list[str]) -> None:
    found = outline(*(load_record(digest, evidence) for digest in digests[:2]))
    assert not found.names & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    names = {name for name, _ in found.attributes}
    assert not names & {"src", "href", "style", "srcset", "action", "background"}
    assert not any(name.startswith("on") for name in names)
    (policy,) = [value for name, value in found.attributes if value and "default-src" in value]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_everything_that_came_from_a_file_is_escaped(evidence: Store, digests: list[str]) -> None:
    statement = evidence.read_record(digests[0])
    original = record_predicate(statement)
    model = replace(original.plan.model, repository=HOSTILE)
    hostile = replace(
        original,
        experiment=HOSTILE,
        plan=replace(original.plan, model=model),
        totals={"planned_bytes": {HOSTILE: 1}, "observed_bytes": {HOSTILE: 2}, "num_steps": 1},
        claims=(replace(original.claims[0], detail=HOSTILE),),
    )
    record = load_record(evidence.put_record(record_statement(hostile)), evidence)
    put_localization(record)
    made = page([gather(record)])
    assert not {"script", "img"} & Outline(made).names
    assert "\x1b" not in made
    assert made.count("&lt;script&gt;") >= 6


def test_verdicts_that_contradict_each_other_are_named(evidence: Store, digests: list[str]) -> None:
    record = load_record(digests[0], evidence)
    (verdict,) = gather(record).verdicts
    failed = replace(verdict.predicate, status="failed")
    shown = replace(gather(record), verdicts=[verdict, replace(verdict, predicate=failed)])
    assert "disputed" in Outline(page([shown])).words
    assert "not audited" in Outline(page([replace(shown, verdicts=[])])).words


def test_two_records_stand_side_by_side_on_one_scale(evidence: Store, digests: list[str]) -> None:
    one, other = (load_record(digest, evidence) for digest in digests[:2])
    text = "\n".join(outline(one, other).words)
    assert one.digest in text
    assert other.digest in text
    assert "digests of numbers were not compared" in text
    assert "results agree" in "\n".join(outline(one, one).words)


def test_a_digest_matrix_is_shown_where_a_study_of_the_record_has_one(
    evidence: Store, digests: list[str]
) -> None:
    record, other = (load_record(digest, evidence) for digest in digests[:2])
    put_localization(record)
    text = "\n".join(outline(record).words)
    assert "chunk_rows=7" in text
    assert "prefill 0: embedding to prefill 0: embedding: 1 distinct" in text
    assert ": 2 distinct" in text
    assert "chunk_rows=7" not in "\n".join(outline(other).words)
    # A study of both, whose one case is about the first.
    put_localization(record, records=(record.digest, other.digest))
    assert "chunk_rows=7" not in "\n".join(outline(other).words)


@pytest.mark.parametrize(
    "parameters", [{}, {"cases": 7}, {"cases": [7]}, {"cases": [{"record": 5}]}]
)
def test_a_study_that_does_not_hold_together_is_named(
    evidence: Store, digests: list[str], parameters: dict[str, Any]
) -> None:
    record = load_record(digests[0], evidence)
    put_localization(record, parameters=parameters)
    assert "its parameters cannot be read" in "\n".join(outline(record).words)


def test_a_damaged_study_is_named(evidence: Store, digests: list[str]) -> None:
    record = load_record(digests[0], evidence)
    evidence.path("studies", put_localization(record)).write_bytes(b"{}")
    assert "file was changed" in "\n".join(outline(record).words)


def test_the_command_writes_a_page_and_says_where(
    evidence: Store, digests: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pages" / "report.html"
    arguments = ["evidence", "report", digests[0], digests[1], "--store", str(evidence.root)]
    arguments += ["--out", str(out)]
    assert main([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"path": str(out), "records": digests[:2], "size_bytes": out.stat().st_size}
    assert main(arguments) == 0
    out.write_text("something else")
    assert main(arguments) == 2
    assert "error:" in capsys.readouterr().err
    assert out.read_text() == "something else"
    out.unlink()
    os.mkfifo(out)
    assert main(arguments) == 2


def test_the_command_lists_what_is_found(
    evidence: Store, digests: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evidence", "list", "--store", str(evidence.root), "--cache", str(tmp_path / "c")]
    where = ["--where", "experiment=tiny_*", "--where", "verdict=passed"]
    assert main([*arguments, *where, "--json", "--limit", "2"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["records"]) == 2
    assert said["num_matching"] == 4
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{len(digests)} of {len(digests)} records, newest first"
    assert main([*arguments, "--where", "weather=fine"]) == 2
    assert main([*arguments, "--limit", "0"]) == 2
