"""``harness run``: one experiment, or a sweep of jobs, each a process of its own."""

import signal
import sys
from argparse import Namespace

from harness.cli.output import safe
from harness.cli.project import config_dir, run_request
from harness.errors import InvalidInputError
from harness.experiment import compose_experiment
from harness.run import supervisor


def run(options: Namespace) -> int:
    """Run what the overrides name; returns the exit code of its verdict."""
    folder = config_dir(options.config_dir)
    if options.multirun:
        from harness.cli.multirun import multirun  # what sweeps need, of no use to one run

        return multirun(options, folder)
    if options.freeze or options.resume:
        raise InvalidInputError(
            "--freeze and --resume are of a sweep", hint="add --multirun, or leave them out"
        )
    config = compose_experiment(options.overrides, config_dir=folder)
    config.require_frozen()
    if config.governed_changes:
        changes = "; ".join(config.governed_changes)
        print(
            f"note: the plan named by plan= decides, these overrides have no effect: "
            f"{safe(changes)}",
            file=sys.stderr,
        )
    # Ends like an interrupt: children ended, the temporary folder removed, one line said.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    return supervisor.run(run_request(config, options))
