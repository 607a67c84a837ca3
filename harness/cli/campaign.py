"""``harness campaign``: how large it has to be, freeze it, run it, and open its holdout once."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.canonical import bare_hex
from harness.cli.derive import settings_of
from harness.cli.laboratory import (
    CODES,
    PAGE_FOLDER,
    end_like_an_interrupt,
    frozen_cases,
    print_localization,
    write_page,
)
from harness.cli.output import print_json, print_lines
from harness.cli.project import config_dir, run_request
from harness.cli.records import open_store
from harness.errors import ExitCode
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate
from harness.experiment import compose_experiment
from harness.laboratory import campaign as campaigns
from harness.laboratory.cases import of_prompts
from harness.laboratory.confidence import cases_needed, zero_failure_confidence
from harness.laboratory.corpora import read_holdout, read_manifest
from harness.laboratory.localization import STABLE
from harness.laboratory.localize import localize
from harness.realize.arming import Arming
from harness.run.progress import Progress

_ELSEWHERE = ("store=", "cache=", "accept_terms=", "allow_large=")
"""Overrides that say where something lies, or what a person agrees to, and are not frozen."""


def size(options: Namespace) -> int:
    """Say how many cases without a failure give a confidence."""
    share, rate, repeats = options.share, options.rate, options.repeats
    count = cases_needed(options.confidence, share, rate, repeats)
    reached = zero_failure_confidence(count, share, rate, repeats)
    if options.json:
        print_json({"num_cases": count, "repeats": repeats, "confidence": reached})
    else:
        print_lines(
            [f"{count} cases of {repeats} repeats without a failure: confidence {reached:.4f}"]
        )
    return int(ExitCode.PASSED)


def freeze(options: Namespace) -> int:
    """Freeze a campaign into the store, before anything of it runs."""
    config = compose_experiment(options.overrides, config_dir=config_dir(options.config_dir))
    kept = [text for text in options.overrides if not text.startswith(_ELSEWHERE)]
    digest, study = campaigns.freeze_campaign(
        Store(options.store),
        read_manifest(options.manifest),
        read_holdout(options.holdout),
        config.name,
        overrides=kept,
        command=("harness", *options.command_line),
    )
    if options.json:
        print_json({"campaign": digest, "findings": dict(study.findings)})
    else:
        reached = study.findings["confidence_without_failure"]
        print_lines([f"campaign  {digest}", f"a holdout without a failure: {reached:.4f}"])
    return int(ExitCode.PASSED)


def run(options: Namespace) -> int:
    """Run the development cases of a campaign."""
    store = open_store(options.store)
    digest = store.resolve(options.campaign, "studies")
    frozen = campaigns.load_campaign(store, digest)
    manifest = read_manifest(options.file)
    campaigns.require_development(frozen, manifest)
    return _run(options, store, digest, frozen, manifest.development)


def holdout(options: Namespace) -> int:
    """Open the holdout of a campaign and run it; a second time is refused."""
    store = open_store(options.store)
    digest = store.resolve(options.campaign, "studies")
    frozen = campaigns.load_campaign(store, digest)
    sealed = read_holdout(options.file)
    command = ("harness", *options.command_line)
    campaigns.open_holdout(store, digest, sealed, command=command)
    return _run(options, store, digest, frozen, sealed.cases)


def _run(
    options: Namespace,
    store: Store,
    digest: str,
    frozen: StudyPredicate,
    prompts: Sequence[Sequence[int]],
) -> int:
    told = frozen.parameters
    config = compose_experiment(told["overrides"], config_dir=config_dir(options.config_dir))
    end_like_an_interrupt()
    with Progress() as progress:
        listed = of_prompts(settings_of(config), prompts, told["processes"], limits=told["limits"])
        cases = frozen_cases(config, listed, progress)
        base = replace(run_request(config, options), plan_digest=None, store=store.root)
        arming = Arming(repetitions=told["repetitions"])
        study_digest, study = localize(base, cases, arming, progress, campaign=digest)
    path: Path = config.root / PAGE_FOLDER / f"localization-{bare_hex(study_digest)[:16]}.html"
    write_page(path, store, study, study_digest)
    if options.json:
        print_json({"study": study_digest, "findings": dict(study.findings)})
    else:
        print_localization(study, study_digest, path)
        if study.findings["status"] == STABLE:
            design = told["design"]
            reached = zero_failure_confidence(
                len(cases), design["share"], design["rate"], told["processes"] * told["repetitions"]
            )
            print_lines([f"no failure in {len(cases)} cases: confidence {reached:.4f}"])
    return int(CODES.get(study.findings["status"], ExitCode.NOT_EVALUABLE))
