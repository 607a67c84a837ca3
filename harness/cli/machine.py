"""``harness doctor``: what this machine can run."""

from argparse import Namespace
from dataclasses import asdict

from harness.checkpoint.cache import default_cache
from harness.cli.output import print_json, print_lines
from harness.errors import ExitCode
from harness.measure.doctor import diagnose

REQUIRED = (
    "system",
    "python",
    "package ",
    "memory",
    "cores",
    "process memory",
    "cache folder",
    "import name",
    "determinism",
)
"""Findings without which nothing runs, or nothing can be claimed; others say what more could."""


def doctor(options: Namespace) -> int:
    """Print every finding; exit 3 when something that every run needs is unavailable."""
    findings = diagnose(cache_folder=options.cache or default_cache())
    blocking = [
        finding
        for finding in findings
        if finding.status == "unavailable" and finding.name.startswith(REQUIRED)
    ]
    if options.json:
        print_json(
            {
                "findings": [asdict(finding) for finding in findings],
                "can_run": not blocking,
                "can_claim_determinism": all(
                    finding.status == "ok" for finding in findings if finding.name == "determinism"
                ),
            }
        )
    else:
        print_lines(f"{f.status:<12} {f.name}: {f.message}" for f in findings)
    return int(ExitCode.NOT_EVALUABLE if blocking else ExitCode.PASSED)
