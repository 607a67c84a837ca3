"""Running the jobs of a sweep on an engine, so that one that is lost or killed stops no other.

Engines only place the jobs: each job is a process that :func:`harness.sweep.job.run_job` waits
for, and what an engine raises about one job becomes that job's result. What travels to an engine's
worker is pickled by the engine, in transit only. Knows engines, nothing of experiments.
"""

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from harness.errors import NotEvaluableError
from harness.sweep.job import Job, JobResult, lost, run_job
from harness.sweep.settings import LauncherSettings

Finished = Iterator[tuple[int, JobResult]]
_POLL_S = 0.2


def require_engine(settings: LauncherSettings) -> None:
    """Refuse a launcher whose package is not here, before anything starts.

    Raises:
        NotEvaluableError: Naming what installs it.
    """
    if settings.kind != "basic":
        _load(settings.kind)


def launch(jobs: Sequence[Job], settings: LauncherSettings) -> Finished:
    """Run every job; yields the place of each and how it ended, as they end.

    Raises:
        NotEvaluableError: When the engine's package is missing, or the engine cannot be reached.
    """
    engines = {"basic": _basic, "joblib": _joblib, "submitit": _submitit, "ray": _ray}
    return engines[settings.kind](jobs, settings)


def _load(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise NotEvaluableError(
            f"launcher {package} needs a package that is not here",
            expected=package,
            got=str(error)[:200],
            hint=f"install the extra `{package}`: pip install 'inference-harness[{package}]'",
        ) from error


def _basic(jobs: Sequence[Job], settings: LauncherSettings) -> Finished:
    for index, job in enumerate(jobs):
        yield index, run_job(job)


def _joblib(jobs: Sequence[Job], settings: LauncherSettings) -> Finished:
    joblib = _load("joblib")
    # Each job is a process already: a thread that waits for it cannot be killed apart from us,
    # while a lost process of joblib's own pool would take every other job with it.
    parallel = joblib.Parallel(
        n_jobs=settings.num_jobs, backend="threading", return_as="generator_unordered"
    )
    yield from parallel(joblib.delayed(_numbered)(index, job) for index, job in enumerate(jobs))


def _numbered(index: int, job: Job) -> tuple[int, JobResult]:
    try:
        return index, run_job(job)
    except OSError as error:
        return index, lost(job, error)


def _submitit(jobs: Sequence[Job], settings: LauncherSettings) -> Finished:
    submitit = _load("submitit")
    try:
        executor = submitit.AutoExecutor(folder=str(settings.folder), cluster=settings.executor)
        executor.update_parameters(
            timeout_min=settings.timeout_min, name="harness", **dict(settings.parameters)
        )
    except (RuntimeError, ValueError, TypeError, NameError, OSError) as error:
        raise NotEvaluableError("submitit cannot be used as asked", got=str(error)[:500]) from error

    def finished(handles: Sequence[Any]) -> Any:
        while not (done := [handle for handle in handles if handle.done()]):
            time.sleep(_POLL_S)
        return done[0]

    yield from _windowed(
        jobs, settings.num_jobs, lambda job: executor.submit(run_job, job), finished, _answer
    )


def _ray(jobs: Sequence[Job], settings: LauncherSettings) -> Finished:
    ray = _load("ray")
    try:
        ray.init(
            address=settings.address,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise NotEvaluableError("Ray cannot be started or reached", got=str(error)[:500]) from error
    # A job that was killed is a failed trial: it is reported, and never run again by itself.
    remote = ray.remote(run_job).options(num_cpus=settings.num_cpus, max_retries=0)
    try:
        yield from _windowed(
            jobs,
            settings.num_jobs,
            remote.remote,
            lambda handles: ray.wait(list(handles), num_returns=1)[0][0],
            ray.get,
        )
    finally:
        ray.shutdown()


def _answer(handle: Any) -> JobResult:
    result: JobResult = handle.result()
    return result


def _windowed(
    jobs: Sequence[Job],
    limit: int,
    start: Callable[[Job], Any],
    finished: Callable[[Sequence[Any]], Any],
    answer: Callable[[Any], JobResult],
) -> Finished:
    """Keep up to ``limit`` jobs running; whatever an engine raises about one is its result."""
    waiting = list(enumerate(jobs))
    running: dict[Any, tuple[int, Job]] = {}
    while waiting or running:
        while waiting and len(running) < limit:
            index, job = waiting.pop(0)
            try:
                running[start(job)] = (index, job)
            except Exception as error:
                yield index, lost(job, error)
        if not running:
            continue
        handle = finished(list(running))
        index, job = running.pop(handle)
        try:
            yield index, answer(handle)
        # Engines share no base class of errors.
        except Exception as error:
            yield index, lost(job, error)
