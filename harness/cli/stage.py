"""``harness stage``: one stage of a plan, on a machine of its own; the first writes the record."""

import json
import os
import re
import signal
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace

from harness.cli.device import device_of
from harness.cli.output import safe
from harness.cli.project import config_dir, run_request
from harness.errors import ExitCode, InvalidInputError
from harness.experiment import compose_experiment
from harness.plan.load import load_plan
from harness.plan.records import Plan
from harness.plan.stages import stage_views
from harness.run import outpost, supervisor
from harness.run.request import Address, RunRequest

_NUMBER = re.compile(r"\A[0-9]{1,4}\Z")
_ADDRESS = re.compile(r"\A(?P<host>[A-Za-z0-9._-]{1,253}):(?P<port>[0-9]{1,5})\Z")


def stage(options: Namespace) -> int:
    """Run one stage; returns the exit code of the run's verdict, on every machine the same."""
    config = compose_experiment(options.overrides, config_dir=config_dir(options.config_dir))
    config.require_frozen()
    request = run_request(config, options)
    plan = load_plan(request.plan_path).plan
    number = stage_number(options.number, options.number_from, len(plan.stages or ()), os.environ)
    request = _on_own_node(request, plan, number)
    request = replace(request, lead=address(options.lead))
    # Ends like an interrupt: children ended, the temporary folder removed, one line said.
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.default_int_handler)
    if number == 0:
        return supervisor.run(request)
    told = outpost.serve(request, number)
    ended = {"stage": number, **{name: told.get(name) for name in ("record", "status")}}
    if options.json:
        print(json.dumps(ended))
    else:
        print(safe(f"stage {number}: {ended['status']}, {ended['record']} on the first machine"))
    code = told.get("exit_code")
    return code if type(code) is int and 0 <= code < 256 else int(ExitCode.NOT_EVALUABLE)


def stage_number(
    number: int | None, number_from: str | None, num_stages: int, environment: Mapping[str, str]
) -> int:
    """The stage's number, as given or as a launcher sets it.

    Args:
        number: As given.
        number_from: Name of the variable that holds it, instead.
        num_stages: Of the plan.
        environment: Variables of this process.

    Raises:
        InvalidInputError: When it is the number of no stage.
    """
    text = str(number) if number_from is None else environment.get(number_from, "")
    if not _NUMBER.match(text) or int(text) >= num_stages:
        raise InvalidInputError(
            "not the number of a stage",
            expected=f"0 to {num_stages - 1}" if num_stages else "a plan with stages",
            got=repr(text[:80]),
            where=number_from or "--number",
            hint="start one process for each stage of the plan",
        )
    return int(text)


def address(text: str) -> Address:
    """Where the first machine listens, as HOST:PORT.

    Raises:
        InvalidInputError: When it is none.
    """
    found = _ADDRESS.match(text)
    if found is None or not 0 < int(found["port"]) < 1 << 16:
        raise InvalidInputError(
            "not an address to meet at",
            expected="HOST:PORT",
            got=repr(text[:300]),
            where="--lead",
            hint="name the machine of stage 0 and a free port of it, such as 192.0.2.1:29500",
        )
    return Address(host=found["host"], port=int(found["port"]))


def _on_own_node(request: RunRequest, plan: Plan, number: int) -> RunRequest:
    """The device that this stage's node asks for, and no address in the recorded command."""
    own = stage_views(plan, None, None)[number].plan
    words = list(request.command)
    for index, word in enumerate(words):
        if word == "--lead" and index + 1 < len(words):
            words[index + 1] = "ADDRESS"
        elif word.startswith("--lead="):
            words[index] = "--lead=ADDRESS"
    return replace(request, device=device_of(own, request.device), command=tuple(words))
