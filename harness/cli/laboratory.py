"""``harness localize`` and ``intervene``: where trials first differ, and what makes them."""

import signal
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.canonical import bare_hex, write_durable
from harness.checkpoint.cache import default_cache
from harness.cli.derive import PLAN_FOLDER, settings_of
from harness.cli.output import print_json, print_lines, safe
from harness.cli.project import config_dir, run_request
from harness.errors import ExitCode
from harness.evidence.record import load_record
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate
from harness.experiment import ExperimentConfig, compose_experiment
from harness.laboratory.cases import Axes, FrozenCase, along_axes, freeze_cases
from harness.laboratory.faults.catalogue import planted
from harness.laboratory.intervene import Factor
from harness.laboratory.intervene import intervene as run_intervention
from harness.laboratory.localization import FAILED, STABLE, VARYING, case_matrix
from harness.laboratory.localize import localize as run_localization
from harness.laboratory.overhead import digest_shares
from harness.laboratory.recheck import case_tables
from harness.laboratory.report import COLUMNS, case_lines, case_name, notes, page
from harness.realize.arming import Arming
from harness.run.derivation import Settings
from harness.run.progress import Progress

PAGE_FOLDER = Path("runs") / "pages"
CODES = {STABLE: ExitCode.PASSED, VARYING: ExitCode.FAILED, FAILED: ExitCode.FAILED}


def localize(options: Namespace) -> int:
    """Run an experiment's cases in fresh armed processes, and name the first varying boundary."""
    config = compose_experiment(options.overrides, config_dir=config_dir(options.config_dir))
    arming = _arming(options)
    axes = Axes(
        prompt_rows=options.prompt_rows,
        chunk_rows=options.chunk_rows,
        num_threads=options.num_threads,
    )
    end_like_an_interrupt()
    with Progress() as progress:
        listed = along_axes(settings_of(config), axes, options.processes)
        cases = frozen_cases(config, listed, progress)
        # The plans are the cases' own, whatever plan the experiment pins.
        base = replace(run_request(config, options), plan_digest=None)
        digest, study = run_localization(base, cases, arming, progress)
    path = options.page or config.root / PAGE_FOLDER / f"localization-{bare_hex(digest)[:16]}.html"
    write_page(path, Store(config.store), study, digest)
    if options.json:
        print_json({"study": digest, "page": str(path), "findings": dict(study.findings)})
    else:
        print_localization(study, digest, path)
        print_lines(_overhead_lines(Store(config.store), study))
    return int(CODES.get(study.findings["status"], ExitCode.NOT_EVALUABLE))


def intervene(options: Namespace) -> int:
    """Change one factor at a time, and name those that are shown to be the cause."""
    folder = config_dir(options.config_dir)
    config = compose_experiment(options.overrides, config_dir=folder)
    arming = _arming(options)
    end_like_an_interrupt()
    with Progress() as progress:
        control = _arm(config, options, progress)
        factors = []
        for name, override in options.factor:
            changed = compose_experiment([*options.overrides, override], config_dir=folder)
            treatment = _arm(changed, options, progress)
            factors.append(
                Factor(name=name, override=override, control=control, treatment=treatment)
            )
        base = replace(run_request(config, options), plan_digest=None)
        digest, study = run_intervention(
            base, factors, arming, progress, num_pairs=options.pairs, max_runs=options.max_runs
        )
    found = study.findings
    if options.json:
        print_json({"study": digest, "findings": dict(found)})
    else:
        for each in found["factors"]:
            print_lines([f"{each['state']:<13} {each['factor']}: {each['reason']}"])
            print_lines(_arm_line(name, each[name]) for name in ("control", "treatment"))
        print_lines([f"study         {digest}"])
    return int(ExitCode.PASSED if found["causes"] else ExitCode.NOT_EVALUABLE)


def _arm(config: ExperimentConfig, options: Namespace, progress: Progress) -> FrozenCase:
    listed = along_axes(settings_of(config), Axes(), options.processes)
    (case,) = frozen_cases(config, listed, progress)
    return replace(case, planted=planted(config.fault, config.model["family"]))


def _arm_line(name: str, arm: Mapping[str, Any]) -> str:
    first = "" if arm["first_varying"] is None else f", first {arm['first_varying']}"
    return (
        f"  {name:<10} {arm['num_varying']} boundaries vary over "
        f"{arm['num_completed']}/{arm['num_trials']} trials{first}"
    )


def end_like_an_interrupt() -> None:
    """Let a signal end the children, remove the temporary folder, and say one line."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def _arming(options: Namespace) -> Arming:
    phase, step = options.replay_from
    return Arming(
        repetitions=options.repetitions,
        replay_phase=phase,
        replay_step=step,
        phases=options.phases or None,
        steps=options.steps or None,
        layers=options.layers or None,
        num_rows=options.rows or None,
        digest_kind=options.digest,
        keep=tuple(options.keep),
        keep_max_bytes=options.keep_max_bytes,
    )


def frozen_cases(
    config: ExperimentConfig, listed: Sequence[tuple[dict[str, int], Settings]], progress: Progress
) -> tuple[FrozenCase, ...]:
    """Freeze the plans of cases where an experiment's plans are kept."""
    return freeze_cases(
        listed,
        folder=config.root / PLAN_FOLDER,
        cache=config.cache or default_cache(),
        progress=progress.update,
        accept_terms=config.accept_terms,
        allow_large=config.allow_large,
    )


def _overhead_lines(store: Store, study: StudyPredicate) -> list[str]:
    """What digests cost in the first process of each case that ran."""
    kind, lines = study.parameters["arming"]["digest_kind"], []
    for number, case in enumerate(study.parameters["cases"]):
        armed = [
            store.read_table_rows(table.written())
            for table in study.tables
            if (table.case, table.name, table.realization) == (number, "armed_times", 0)
        ]
        if case["record"] is not None and armed:
            record = load_record(study.records[case["record"]], store)
            shares = digest_shares(armed[0], record.rows("step_times", 0))
            told = ", ".join(f"{share:.1%} of {phase}" for phase, share in shares.items())
            lines.append(f"{case_name(case)}: {kind} digests took {told}")
    return lines


def write_page(path: Path, store: Store, study: StudyPredicate, digest: str) -> None:
    """Write a localization's page."""
    count = len(study.parameters["cases"])
    matrices = [case_matrix(case_tables(store, study, number)) for number in range(count)]
    write_durable(path, page(study, digest, matrices).encode())


def print_localization(study: StudyPredicate, digest: str, path: Path) -> None:
    """Print a localization for a person."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]{study.findings['status'].upper()}[/bold]")
    table = Table()
    for name in COLUMNS:
        table.add_column(name, overflow="fold")
    for line in case_lines(study):
        table.add_row(*(escape(safe(cell)) for cell in line))
    console.print(table)
    print_lines(notes(study))
    print_lines([f"study  {digest}", f"page   {path}"])
