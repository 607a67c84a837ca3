"""``harness checkpoint fetch``: an experiment's checkpoint, into the cache."""

from argparse import Namespace

from harness.checkpoint.cache import default_cache
from harness.cli.checkpoints import fetch_checkpoint
from harness.cli.output import print_json, print_lines
from harness.cli.project import config_dir
from harness.errors import ExitCode
from harness.experiment import compose_experiment


def fetch(options: Namespace) -> int:
    """Fetch an experiment's checkpoint into the cache and print its folder."""
    config = compose_experiment(options.overrides, config_dir=config_dir(options.config_dir))
    source, family = config.model["source"], config.model["family"]
    folder = fetch_checkpoint(
        source,
        family,
        config.cache or default_cache(),
        accept_terms=config.accept_terms,
        allow_large=config.allow_large,
    )
    if options.json:
        print_json({"folder": str(folder), "source": source})
    else:
        print_lines([str(folder)])
    return int(ExitCode.PASSED)
