"""Sweeps: every plan is frozen and checked first, then each job runs as a fresh process.

A job that fails, exits or is killed ends nothing else; all of them are reported at the end. Hydra
expands the sweep and runs none of it: inside its own launcher a second exception would be lost and
an exit would end the sweep. The engine that places the jobs is chosen by the group ``launcher``.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.canonical import bare_hex
from harness.checkpoint.cache import default_cache
from harness.cli.derive import freeze_plan
from harness.cli.output import print_json, print_lines
from harness.cli.project import run_request
from harness.errors import ExitCode, HarnessError, InvalidInputError, NotEvaluableError
from harness.evidence.store import Store
from harness.experiment import ExperimentConfig, compose_experiment, expand_sweep
from harness.run import supervisor
from harness.sweep.job import Job, JobResult, without_output
from harness.sweep.launch import launch, require_engine
from harness.sweep.resume import passed_before
from harness.sweep.settings import LauncherSettings, parse_settings


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One job that can be run: its plan is frozen, and passed the static check."""

    overrides: tuple[str, ...]
    plan: str | None
    """The plan's digest."""
    store: Path
    cache: Path
    settings: LauncherSettings
    is_faulty: bool
    """Whether a fault is planted: then no earlier record is of the same case."""


def worst(codes: Sequence[int]) -> int:
    """The exit code of a sweep: any failure is 1, else any invalid input 2, else 3, else 0."""
    known = {int(code) for code in ExitCode}
    if any(code == ExitCode.FAILED or code not in known for code in codes):
        return int(ExitCode.FAILED)
    for code in (ExitCode.INVALID_INPUT, ExitCode.NOT_EVALUABLE):
        if code in codes:
            return int(code)
    return int(ExitCode.PASSED)


def multirun(options: Namespace, folder: Path) -> int:
    """Run every job of a sweep; returns the worst exit code.

    Raises:
        InvalidInputError: When any job cannot be composed or its plan breaks a rule; nothing has
            been started then.
    """
    cases = _check_all(expand_sweep(options.overrides, config_dir=folder), options, folder)
    settings = _common(cases)
    require_engine(settings)
    results = _skipped(cases) if options.resume else {}
    waiting = [index for index in range(len(cases)) if index not in results]
    titles = [f"job {number}/{len(waiting)}" for number in range(1, len(waiting) + 1)]
    jobs = [
        _job(cases[index], options, folder, title if settings.kind == "basic" else None)
        for index, title in zip(waiting, titles, strict=True)
    ]
    for done, result in launch(jobs, settings):
        results[waiting[done]] = result
        if jobs[done].title is None:
            _say_ended(titles[done], result)
    listed = [results[index] for index in range(len(cases))]
    if options.json:
        print_json({"jobs": [asdict(without_output(result)) for result in listed]})
    else:
        print_lines(_report(listed))
    return worst([result.exit_code for result in listed])


def _check_all(
    expanded: Sequence[tuple[str, ...]], options: Namespace, folder: Path
) -> list[_Case]:
    problems: list[str] = []
    kinds: list[int] = []
    cases: list[_Case] = []
    seen: dict[tuple[Path, str | None], str | None] = {}
    for overrides in expanded:
        try:
            cases.append(_case(overrides, options, folder, seen))
        except HarnessError as error:
            indented = str(error).replace("\n", "\n    ")
            problems.append(f"{' '.join(overrides)}: {indented}")
            kinds.append(int(error.exit_code))
    if problems:
        kind = NotEvaluableError if worst(kinds) == ExitCode.NOT_EVALUABLE else InvalidInputError
        raise kind(
            f"{len(problems)} of {len(expanded)} jobs cannot be run, so none was started:\n  - "
            + "\n  - ".join(problems)
        )
    return cases


def _case(
    overrides: tuple[str, ...],
    options: Namespace,
    folder: Path,
    seen: dict[tuple[Path, str | None], str | None],
) -> _Case:
    """Compose a job, freeze its plan where that was asked for, and check the plan."""
    config = compose_experiment(overrides, config_dir=folder, needs_plan=not options.freeze)
    if options.freeze and _needs_plan(config):
        path = freeze_plan(config)
        overrides = (*overrides, f"plan={path}")
        config = compose_experiment(overrides, config_dir=folder)
    config.require_frozen()
    request = run_request(config, options)
    key = (request.plan_path, request.plan_digest)
    if key not in seen:
        seen[key] = supervisor.check(request).plan.digest
    return _Case(
        overrides=overrides,
        plan=seen[key],
        store=request.store.absolute(),
        cache=request.cache,
        settings=parse_settings(config.launcher, config.root),
        is_faulty=config.fault is not None,
    )


def _needs_plan(config: ExperimentConfig) -> bool:
    is_named = any(text.startswith("plan=") for text in config.overrides)
    return not is_named and (config.plan_digest is None or bool(config.governed_changes))


def _common(cases: Sequence[_Case]) -> LauncherSettings:
    """The launcher of all jobs, which also share one store."""
    stores = sorted({str(case.store) for case in cases})
    if len(stores) > 1:
        raise InvalidInputError(
            "all records of a sweep go into one store", expected="one store", got=", ".join(stores)
        )
    settings = [case.settings for case in cases]
    if any(each != settings[0] for each in settings):
        kinds = ", ".join(sorted({each.kind for each in settings}))
        raise InvalidInputError(
            "all jobs of a sweep run on one launcher", expected="one launcher", got=kinds
        )
    return settings[0]


def _skipped(cases: Sequence[_Case]) -> dict[int, JobResult]:
    """Results of the cases that passed before, by the place of the case."""
    plans = {case.plan for case in cases if case.plan is not None and not case.is_faulty}
    found = passed_before(Store(cases[0].store), cases[0].cache or default_cache(), plans)
    return {
        index: JobResult(overrides=case.overrides, exit_code=0, skipped=found[case.plan])
        for index, case in enumerate(cases)
        if case.plan in found and not case.is_faulty
    }


def _job(case: _Case, options: Namespace, folder: Path, title: str | None) -> Job:
    command = [sys.executable, "-m", "harness", "run", *case.overrides]
    command += ["--config-dir", str(folder.absolute())]
    if options.json:
        command.append("--json")
    return Job(
        overrides=case.overrides,
        command=tuple(command),
        folder=Path.cwd(),
        as_json=options.json,
        title=None if title is None else f"{title}: {' '.join(case.overrides)}",
    )


def _say_ended(title: str, result: JobResult) -> None:
    print(f"{title} ended, {_state(result)}: {' '.join(result.overrides)}", file=sys.stderr)
    if result.output:
        print_lines([result.output.rstrip("\n")])
    sys.stdout.flush()


def _state(result: JobResult) -> str:
    if result.skipped is not None:
        return f"passed before, record {bare_hex(result.skipped)[:16]}"
    passed = result.exit_code == ExitCode.PASSED
    return result.signal or ("passed" if passed else f"exit code {result.exit_code}")


def _report(results: Sequence[JobResult]) -> list[str]:
    num_passed = sum(result.exit_code == ExitCode.PASSED for result in results)
    num_skipped = sum(result.skipped is not None for result in results)
    before = f", {num_skipped} of them before" if num_skipped else ""
    lines = [
        f"sweep: {len(results)} jobs, {num_passed} passed{before}, {len(results) - num_passed} not"
    ]
    for result in results:
        lines.append(f"  {_state(result):<12} {' '.join(result.overrides)}")
        if result.message is not None:
            lines += [f"      {line}" for line in result.message.splitlines()]
    return lines
