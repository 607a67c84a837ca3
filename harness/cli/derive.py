"""``harness plan derive``: from an experiment's settings to a frozen plan."""

from argparse import Namespace
from pathlib import Path

from harness.canonical import bare_hex
from harness.checkpoint.cache import default_cache
from harness.cli.plans import print_frozen
from harness.cli.project import config_dir, device_request
from harness.errors import ExitCode
from harness.experiment import ExperimentConfig, compose_experiment
from harness.plan.freeze import freeze
from harness.plan.load import LoadedPlan
from harness.run.derivation import Settings, derive_settings
from harness.run.progress import Progress

PLAN_FOLDER = Path("runs") / "plans"


def derive(options: Namespace) -> int:
    """Compute an experiment's plan with exact bytes, and freeze it under a new name."""
    config = compose_experiment(
        options.overrides, config_dir=config_dir(options.config_dir), needs_plan=False
    )
    print_frozen(_freeze(config, options.out), options)
    return int(ExitCode.PASSED)


def freeze_plan(config: ExperimentConfig) -> Path:
    """Derive and freeze the plan of a composed experiment among the ignored ones; its file."""
    path = _freeze(config, None).path
    assert path is not None
    return path


def _freeze(config: ExperimentConfig, out: Path | None) -> LoadedPlan:
    device_request(config)
    with Progress() as progress:
        document, manifest = derive_settings(
            settings_of(config),
            cache=config.cache or default_cache(),
            progress=progress.update,
            accept_terms=config.accept_terms,
            allow_large=config.allow_large,
        )
    name = f"{config.name}-{bare_hex(document['digest'])[:12]}.json"
    return freeze(document, out or config.root / PLAN_FOLDER / name, manifest=manifest)


def settings_of(config: ExperimentConfig) -> Settings:
    """The governed sections of a composed experiment, as derivation takes them."""
    return Settings(
        name=config.name,
        model=config.model,
        device=config.device,
        workload=config.workload,
        realization=config.realization,
        determinism=config.determinism,
        timeouts=config.timeouts,
        checks=config.checks,
    )
