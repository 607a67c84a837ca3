"""The fixture maker: places a plan's reference fixture, from the cache or newly made.

Cached by recipe, forms, machine and source; a cached folder that is not byte for byte what was
written is made again. What a fixture holds is :mod:`harness.run.reference`'s to make: torch is
imported only when one has to be made. Run by the supervisor as a process of its own.
"""

import argparse
import importlib
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.canonical import (
    canonical_bytes,
    file_digest,
    read_json,
    sha256_digest,
    write_durable,
)
from harness.errors import InvalidInputError
from harness.evidence.source import package_digest
from harness.measure.cpu import cpu_model, instruction_set, read_cpuinfo
from harness.measure.distributions import installed_version
from harness.measure.words import GPU_FACTS
from harness.plan.environment import Fact
from harness.plan.load import LoadedPlan, load_plan
from harness.plan.recipe import FIXTURE_FILE, recipe_digest
from harness.plan.records import Plan
from harness.plan.request import layout_request
from harness.run.child import run_child, say
from harness.run.job import Job, read_job
from harness.run.kernel_library import library_facts

SEAL_FILE = "files.json"
FILES = (
    FIXTURE_FILE,
    "expected_tensors.parquet",
    "fixture_outputs.parquet",
    "fixture_states.parquet",
)


def files_of(plan: Plan) -> tuple[str, ...]:
    """Files of a plan's fixture; each stage has its own, in a folder of its name."""
    if plan.stages is None:
        return FILES
    return tuple(f"{stage.id}/{file}" for stage in plan.stages for file in FILES)


def make(job: Job) -> None:
    """Place the fixture of a job's plan in ``job.fixture``, from the cache or newly made."""
    loaded = load_plan(job.plan)
    cached = job.cache / "fixtures" / cache_name(loaded, job.environment.facts)
    files = files_of(loaded.plan)
    if is_intact(cached, files):
        say("cached")
    else:
        publish(loaded, job, cached)
    for file in files:
        (job.fixture / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(cached / file, job.fixture / file)


def cache_name(loaded: LoadedPlan, facts: Mapping[str, Fact]) -> str:
    """Name of a fixture's cache entry: its recipe, and all that can change its bits here.

    Args:
        loaded: The plan.
        facts: Of the environment that it is bound to.
    """
    cpu, determinism = read_cpuinfo(), loaded.plan.determinism
    made = {
        # Of the chosen forms; no recipe names them, and older plans' recipes cannot change.
        "forms": dict(layout_request(loaded.plan).representations),
        "cpu": [cpu_model(cpu), instruction_set(cpu)],
        "cpu_capability": os.environ.get("ATEN_CPU_CAPABILITY"),
        "torch": installed_version("torch"),
        "package": package_digest(),
        "triton": installed_version("triton"),
        "gpus": {name: fact for name, fact in facts.items() if name.startswith(GPU_FACTS)},
        **library_facts(None if determinism is None else determinism.kernel_set),
    }
    recipe = recipe_digest(loaded.document)
    return f"{recipe[7:23]}-{sha256_digest(canonical_bytes(made))[7:23]}"


def publish(loaded: LoadedPlan, job: Job, cached: Path) -> None:
    """Make a fixture's folder and give it its final name in one step."""
    building = cached.parent / f".{cached.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    building.mkdir(parents=True)
    files = files_of(loaded.plan)
    try:
        reference = importlib.import_module("harness.run.reference")
        reference.make_reference(loaded.plan, job, building)
        seal = {file: file_digest(building / file) for file in files}
        write_durable(building / SEAL_FILE, canonical_bytes(seal))
        # Another maker's finished folder is as good, and somebody may be copying it.
        if is_intact(cached, files):
            return
        if cached.is_dir() and not cached.is_symlink():
            shutil.rmtree(cached, ignore_errors=True)
        else:
            cached.unlink(missing_ok=True)
        try:
            building.rename(cached)
        except OSError:
            if not is_intact(cached, files):
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def is_intact(cached: Path, files: Sequence[str] = FILES) -> bool:
    """Whether a cached folder holds exactly the bytes that were sealed."""
    try:
        seal: dict[str, Any] = read_json(cached / SEAL_FILE, max_bytes=1 << 16)
        return sorted(seal) == sorted(files) and all(
            file_digest(cached / file) == seal[file] for file in files
        )
    except (InvalidInputError, OSError, TypeError):
        return False


def main() -> int:
    """Entry of the child process."""
    parser = argparse.ArgumentParser(description="make the reference fixture of a plan")
    parser.add_argument("--job", type=Path, required=True)
    make(read_job(parser.parse_args().job))
    return 0


if __name__ == "__main__":
    run_child(main)
