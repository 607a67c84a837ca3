"""What a person reads after a run: prompt, text, verdict, bytes, times, and where the record is.

Figures come from the record's rows; the verdict is the auditor's word. Everything that came from a
model or a file is escaped before it is printed.
"""

import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.canonical import read_json
from harness.checkpoint.tokenizer import decode_tokens
from harness.errors import HarnessError
from harness.evidence.redact import escape_terminal
from harness.plan.load import LoadedPlan
from harness.plan.records import RECORDED
from harness.run.processes import Outcome

MAX_CONFIG_BYTES = 4 << 20
MAX_SHOWN_CHARS = 400
Rows = Mapping[str, Mapping[int | None, Sequence[Mapping[str, Any]]]]


@dataclass(frozen=True, kw_only=True)
class MemoryLine:
    """Planned and observed bytes of one memory: persistent copies, and the peak with staging."""

    memory: str
    planned_bytes: int
    observed_bytes: int | None
    peak_allocated_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One run in a few lines."""

    experiment: str
    status: str
    exit_code: int
    prompt: str | None
    text: str | None
    tokens: tuple[int, ...]
    memories: tuple[MemoryLine, ...]
    ttft_ns: int | None
    """Median over realizations of the summed prefill steps."""
    tpot_ns: int | None
    """Median decode step."""
    num_differences: int
    failed_checks: tuple[str, ...]
    problems: tuple[str, ...]
    record: str
    verdict_digest: str | None


def summarize(
    *,
    experiment: str,
    loaded: LoadedPlan,
    checkpoint: Path,
    processes: Sequence[Rows],
    totals: Mapping[str, Any],
    outcomes: Sequence[Outcome],
    verdict: Mapping[str, Any],
    record: Path,
    exit_code: int,
) -> Summary:
    """Condense one run's rows and its verdict.

    Args:
        experiment: Its name.
        loaded: The plan.
        checkpoint: Folder with the tokenizer.
        processes: Rows of each stage, or of the one process; the last chooses the tokens.
        totals: The statement's sums.
        outcomes: How each child ended.
        verdict: The auditor's answer.
        record: Where it lies.
        exit_code: Of the whole run.
    """
    rows: Rows = processes[-1] if processes else {}
    tokens = _tokens(rows)
    workload = loaded.plan.workload
    checks = verdict.get("checks", [])
    problems = [
        f"{outcome.child} {outcome.realization}: {outcome.outcome}"
        + (f" ({outcome.signal})" if outcome.signal else "")
        + (f": {outcome.message}" if outcome.message else "")
        for outcome in outcomes
        if outcome.outcome not in ("completed", "not_started")
    ]
    if "message" in verdict:
        problems.append(str(verdict["message"]))
    return Summary(
        experiment=experiment,
        status=str(verdict.get("status", "not_evaluated")),
        exit_code=exit_code,
        prompt=None if workload is None else workload.prompt_text,
        text=_text(checkpoint, tokens),
        tokens=tokens,
        memories=_memories(totals, processes),
        ttft_ns=_ttft(rows),
        tpot_ns=time_per_token_ns(
            rows, is_recorded=workload is not None and workload.decode_mode == RECORDED
        ),
        num_differences=int(verdict.get("num_differences", 0)),
        failed_checks=tuple(check["id"] for check in checks if check["status"] != "passed"),
        problems=tuple(problems),
        record=str(record),
        verdict_digest=verdict.get("verdict_digest"),
    )


def print_summary(summary: Summary, *, as_json: bool) -> None:
    """Print a summary to standard output, as one JSON object or for a person."""
    if as_json:
        print(json.dumps(asdict(summary), indent=2, sort_keys=True))
        return
    console = Console(highlight=False, soft_wrap=True)

    def line(label: str, text: str) -> None:
        console.print(f"[bold]{label:<11}[/bold]{escape(escape_terminal(text))}")

    line("experiment", summary.experiment)
    if summary.prompt is not None:
        line("prompt", shortened(summary.prompt))
    if summary.text is not None:
        line("generated", summary.text)
    elif summary.tokens:
        line("tokens", " ".join(map(str, summary.tokens)))
    color = {"passed": "green", "failed": "red"}.get(summary.status, "yellow")
    console.print(f"[bold]{'verdict':<11}[/bold][{color}]{escape(summary.status.upper())}[/]")
    if summary.failed_checks:
        line("", f"not passed: {', '.join(summary.failed_checks)}")
        line("", f"{summary.num_differences} differences: harness evidence show {summary.record}")
    for problem in summary.problems:
        line("problem", problem)
    table = Table("memory", "planned bytes", "observed bytes", "peak with staging")
    for column in table.columns[1:]:
        column.justify = "right"
    for memory in summary.memories:
        figures = (memory.planned_bytes, memory.observed_bytes, memory.peak_allocated_bytes)
        table.add_row(
            memory.memory, *("-" if figure is None else f"{figure:,}" for figure in figures)
        )
    console.print(table)
    if summary.ttft_ns is not None and summary.tpot_ns is not None:
        line("TTFT", f"{summary.ttft_ns / 1e6:.1f} ms")
        line("TPOT", f"{summary.tpot_ns / 1e6:.2f} ms ({1e9 / summary.tpot_ns:.1f} tok/s)")
    line("record", summary.record)


def shortened(text: str) -> str:
    """A long text's beginning and end, for one line of a terminal; JSON has the whole."""
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    half = MAX_SHOWN_CHARS // 2
    return f"{text[:half]} ... ({len(text):,} characters) ... {text[-half:]}"


def _every(rows: Rows, name: str) -> list[Sequence[Mapping[str, Any]]]:
    return list(rows.get(name, {}).values())


def _tokens(rows: Rows) -> tuple[int, ...]:
    for listed in _every(rows, "steps"):
        first = [row for row in listed if row["repetition"] == 0 and row["token"] is not None]
        if first:
            return tuple(row["token"] for row in first)
    return ()


def _text(checkpoint: Path, tokens: tuple[int, ...]) -> str | None:
    if not tokens or not (checkpoint / "tokenizer.json").is_file():
        return None
    try:
        return decode_tokens(checkpoint, list(takewhile(_goes_on(checkpoint), tokens)))
    except HarnessError:
        return None


def _goes_on(checkpoint: Path) -> Callable[[int], bool]:
    """Whether a token is not the model's end of text; a workload decodes on, a person stops."""
    ends = read_json(checkpoint / "config.json", max_bytes=MAX_CONFIG_BYTES).get("eos_token_id")
    listed = ends if isinstance(ends, list) else [ends]
    return lambda token: token not in listed


def _ttft(rows: Rows) -> int | None:
    sums = [
        sum(row["duration_ns"] for row in listed if row["phase"] == "prefill")
        for listed in _every(rows, "step_times")
    ]
    return int(statistics.median(sums)) if sums else None


def time_per_token_ns(rows: Rows, *, is_recorded: bool) -> int | None:
    """The median decode step, of all realizations.

    Where steps are recorded, the first repetition makes the recordings and does not count.
    """
    times = [
        row["duration_ns"]
        for listed in _every(rows, "step_times")
        for row in listed
        if row["phase"] == "decode" and (row["repetition"] > 0 or not is_recorded)
    ]
    return int(statistics.median(times)) if times else None


def _memories(totals: Mapping[str, Any], processes: Sequence[Rows]) -> tuple[MemoryLine, ...]:
    planned, observed = totals["planned_bytes"], totals["observed_bytes"]
    peaks: Counter[str] = Counter()
    for rows in processes:
        own: dict[str, int] = {}
        for listed in _every(rows, "ledger"):
            for row in listed:
                memory = row["memory_resource_id"]
                own[memory] = max(own.get(memory, 0), row["peak_allocated_bytes"])
        # Stages hold their copies at the same time.
        peaks.update(own)
    return tuple(
        MemoryLine(
            memory=memory,
            planned_bytes=planned.get(memory, 0),
            observed_bytes=observed.get(memory),
            peak_allocated_bytes=peaks.get(memory),
        )
        for memory in dict.fromkeys([*planned, *observed])
    )
