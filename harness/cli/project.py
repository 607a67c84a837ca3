"""Where things lie when the command line does not say: configuration, cache, device."""

from argparse import Namespace
from pathlib import Path

import harness
from harness.checkpoint.cache import default_cache
from harness.cli.device import device_of
from harness.errors import InvalidInputError
from harness.experiment import ExperimentConfig
from harness.laboratory.faults.catalogue import planted
from harness.measure.environment import CAPS, DeviceRequest
from harness.plan.load import load_plan
from harness.run.request import RunRequest

CONFIG_FOLDER = "experiments"


def config_dir(chosen: Path | None) -> Path:
    """The configuration folder: the chosen one, or that of the project around the working folder.

    Raises:
        InvalidInputError: When there is none.
    """
    if chosen is not None:
        return chosen
    here = Path.cwd()
    roots = [here, *here.parents, Path(harness.__file__).resolve().parents[1]]
    for root in roots:
        if (root / CONFIG_FOLDER / "config.yaml").is_file():
            return root / CONFIG_FOLDER
    raise InvalidInputError(
        "no experiment configuration found",
        expected=f"{CONFIG_FOLDER}/config.yaml in the working folder or above it",
        where=str(here),
        hint="change into the project's folder, or name one with --config-dir",
    )


def device_request(config: ExperimentConfig) -> DeviceRequest:
    """The device section as the probe takes it.

    Raises:
        InvalidInputError: When a cap is no whole number of bytes.
    """
    for name in CAPS:
        value = config.device.get(name)
        if value is not None and type(value) is not int:
            raise InvalidInputError(
                f"device.{name} is not a number of bytes", expected="an integer", got=repr(value)
            )
    return DeviceRequest(**config.device)


def run_request(config: ExperimentConfig, options: Namespace) -> RunRequest:
    """What the supervisor is asked to do for one composed experiment."""
    device, family = device_request(config), config.model["family"]
    if config.plan_digest is None:
        # A plan named by its path brings its own family and kind of device.
        plan = load_plan(config.plan_path).plan
        device, family = device_of(plan, device), plan.adapter_data.family
    return RunRequest(
        experiment=config.name,
        plan_path=config.plan_path,
        plan_digest=config.plan_digest,
        store=config.store,
        cache=config.cache or default_cache(),
        device=device,
        accept_terms=config.accept_terms,
        allow_large=config.allow_large,
        as_json=options.json,
        command=("harness", *options.command_line),
        **planted(config.fault, family),
    )
