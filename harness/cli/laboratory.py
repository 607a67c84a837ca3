"""``harness localize``: where trials of an experiment first differ."""

import signal
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.canonical import bare_hex, write_durable
from harness.checkpoint.cache import default_cache
from harness.cli.derive import PLAN_FOLDER, settings_of
from harness.cli.output import print_json, print_lines, safe
from harness.cli.project import config_dir, run_request
from harness.errors import ExitCode
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate
from harness.experiment import ExperimentConfig, compose_experiment
from harness.laboratory.cases import Axes, FrozenCase, freeze_cases
from harness.laboratory.localization import FAILED, STABLE, VARYING, case_matrix
from harness.laboratory.localize import localize as run_localization
from harness.laboratory.recheck import case_tables
from harness.laboratory.report import COLUMNS, case_lines, notes, page
from harness.realize.arming import Arming
from harness.run.progress import Progress

PAGE_FOLDER = Path("runs") / "pages"
_CODES = {STABLE: ExitCode.PASSED, VARYING: ExitCode.FAILED, FAILED: ExitCode.FAILED}


def localize(options: Namespace) -> int:
    """Run an experiment's cases in fresh armed processes, and name the first varying boundary."""
    config = compose_experiment(options.overrides, config_dir=config_dir(options.config_dir))
    arming = _arming(options)
    axes = Axes(
        prompt_rows=options.prompt_rows,
        chunk_rows=options.chunk_rows,
        num_threads=options.num_threads,
    )
    # Ends like an interrupt: children ended, the temporary folder removed, one line said.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with Progress() as progress:
        cases = _cases(config, axes, options, progress)
        # The plans are the cases' own, whatever plan the experiment pins.
        base = replace(run_request(config, options), plan_digest=None)
        digest, study = run_localization(base, cases, arming, progress)
    path = options.page or config.root / PAGE_FOLDER / f"localization-{bare_hex(digest)[:16]}.html"
    _write_page(path, Store(config.store), study, digest)
    if options.json:
        print_json({"study": digest, "page": str(path), "findings": dict(study.findings)})
    else:
        _print(study, digest, path)
    return int(_CODES.get(study.findings["status"], ExitCode.NOT_EVALUABLE))


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


def _cases(
    config: ExperimentConfig, axes: Axes, options: Namespace, progress: Progress
) -> tuple[FrozenCase, ...]:
    return freeze_cases(
        settings_of(config),
        axes,
        num_realizations=options.processes,
        folder=config.root / PLAN_FOLDER,
        cache=config.cache or default_cache(),
        progress=progress.update,
        accept_terms=config.accept_terms,
        allow_large=config.allow_large,
    )


def _write_page(path: Path, store: Store, study: StudyPredicate, digest: str) -> None:
    count = len(study.parameters["cases"])
    matrices = [case_matrix(case_tables(store, study, number)) for number in range(count)]
    write_durable(path, page(study, digest, matrices).encode())


def _print(study: StudyPredicate, digest: str, path: Path) -> None:
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
