"""A campaign: cases and limits that are frozen before the first run, and a holdout opened once.

    freeze -> run the development cases, as often as it takes -> open the holdout, once

A manifest names its development cases openly and its holdout by digest alone; the limits lie in it,
so that they were there before the holdout was opened. Freezing and opening are studies of the
store: a second opening finds the first one and is refused. Knows files, stores and cases; the runs
are localizations.
"""

from collections.abc import Sequence
from typing import Any

from harness.canonical import canonical_bytes, sha256_digest
from harness.errors import EvidenceError, InvalidInputError
from harness.evidence.record import load_record
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate, study_predicate
from harness.laboratory.confidence import zero_failure_confidence
from harness.laboratory.corpora import Holdout, Manifest
from harness.laboratory.writing import draft, finish
from harness.measure.clock import utc_timestamp
from harness.plan.limits import limits_digest, limits_document, limits_of, parse_limits
from harness.plan.load import parse_plan

KIND = "campaign"
FROZEN, OPENED = "frozen", "opened"


def freeze_campaign(
    store: Store,
    manifest: Manifest,
    holdout: Holdout,
    experiment: str,
    *,
    overrides: Sequence[str] = (),
    command: Sequence[str] = (),
) -> tuple[str, StudyPredicate]:
    """Freeze a campaign; returns its digest, and what it says.

    Raises:
        InvalidInputError: When a case is in both corpora, or the holdout cannot give the
            confidence that the design asks for.
    """
    shared = set(manifest.development) & set(holdout.cases)
    if shared:
        raise InvalidInputError(
            "corpora are not disjoint", expected="no case in both", got=f"{len(shared)} shared"
        )
    repeats = manifest.processes * manifest.repetitions
    share, rate = manifest.design["share"], manifest.design["rate"]
    reached = zero_failure_confidence(len(holdout.cases), share, rate, repeats)
    if reached < manifest.design["confidence"]:
        raise InvalidInputError(
            "the holdout is too small for the design",
            expected=f"confidence {manifest.design['confidence']:g} without a failure",
            got=f"{reached:.4f} with {len(holdout.cases)} cases of {repeats} repeats",
            hint="add cases or repeats, or exclude a larger share",
        )
    limits = limits_document(manifest.limits) or None
    study = draft(
        kind=KIND,
        experiment=experiment,
        parameters={
            "stage": FROZEN,
            "name": manifest.name,
            "overrides": list(overrides),
            "development": [_digest(case) for case in manifest.development],
            "holdout": {"digest": holdout.digest, "num_cases": len(holdout.cases)},
            "processes": manifest.processes,
            "repetitions": manifest.repetitions,
            "design": dict(manifest.design),
            "limits": limits,
            "limits_digest": _limits_digest(limits),
        },
        records=(),
        command=command,
        started_at=utc_timestamp(),
    )
    return finish(store, study, campaign_findings(study))


def open_holdout(
    store: Store, campaign: str, holdout: Holdout, *, command: Sequence[str] = ()
) -> tuple[str, StudyPredicate]:
    """Open a campaign's holdout, before anything of it is run; returns the opening's digest.

    Raises:
        InvalidInputError: When it is not the sealed one, or was opened before, whatever became
            of it.
    """
    frozen = load_campaign(store, campaign)
    if holdout.digest != frozen.parameters["holdout"]["digest"]:
        raise InvalidInputError(
            "not the holdout that was sealed",
            expected=frozen.parameters["holdout"]["digest"],
            got=holdout.digest,
        )
    earlier = openings(store, campaign)
    if earlier:
        raise InvalidInputError(
            "the holdout was opened before, and is used once",
            got=", ".join(earlier),
            where=campaign,
            hint="freeze another campaign with a holdout of its own",
        )
    study = draft(
        kind=KIND,
        experiment=frozen.experiment,
        parameters={"stage": OPENED, "campaign": campaign},
        records=(),
        command=command,
        started_at=utc_timestamp(),
    )
    return finish(store, study, {"limits_digest": frozen.parameters["limits_digest"]})


def openings(store: Store, campaign: str) -> list[str]:
    """Digests of the openings of a campaign's holdout that a store holds."""
    found = []
    for digest in store.digests("studies"):
        study = study_predicate(store.read_study(digest))
        told = study.parameters
        is_opening = study.kind == KIND and told.get("stage") == OPENED
        if is_opening and told.get("campaign") == campaign:
            found.append(digest)
    return found


def with_openings(store: Store, digests: Sequence[str]) -> list[str]:
    """Studies, and the openings of the campaigns among them, which no study but these names."""
    found = dict.fromkeys(digests)
    for digest in digests:
        found |= dict.fromkeys(openings(store, digest))
    return list(found)


def load_campaign(store: Store, digest: str) -> StudyPredicate:
    """Read a frozen campaign.

    Raises:
        EvidenceError: When the study is none.
    """
    study = study_predicate(store.read_study(digest))
    if study.kind != KIND or study.parameters.get("stage") != FROZEN:
        raise EvidenceError("not a frozen campaign", got=study.kind, where=digest)
    return study


def require_development(campaign: StudyPredicate, manifest: Manifest) -> None:
    """Refuse a manifest whose cases are not those that were frozen.

    Raises:
        InvalidInputError: When they differ.
    """
    if [_digest(case) for case in manifest.development] != campaign.parameters["development"]:
        raise InvalidInputError("the manifest's cases are not those that were frozen")


def campaign_findings(study: StudyPredicate) -> dict[str, Any]:
    """What a frozen campaign's own figures give."""
    told = study.parameters
    repeats = told["processes"] * told["repetitions"]
    design = told["design"]
    reached = zero_failure_confidence(
        told["holdout"]["num_cases"], design["share"], design["rate"], repeats
    )
    return {"repeats": repeats, "confidence_without_failure": reached}


def recheck_campaign(store: Store, study: StudyPredicate) -> list[str]:
    """What is wrong with a frozen campaign, or with an opening."""
    told = study.parameters
    if told.get("stage") == FROZEN:
        problems = []
        if told["limits_digest"] != _limits_digest(told["limits"]):
            problems.append("its limits are not those that were hashed")
        if study.findings != campaign_findings(study):
            problems.append("its confidence is not the one that its figures give")
        return problems
    frozen = load_campaign(store, told["campaign"])
    problems = []
    if len(openings(store, told["campaign"])) > 1:
        problems.append("its holdout was opened more than once")
    if study.findings != {"limits_digest": frozen.parameters["limits_digest"]}:
        problems.append("names other limits than its campaign")
    return problems


def recheck_campaign_run(store: Store, study: StudyPredicate) -> list[str]:
    """What is wrong with a localization that says it is of a campaign."""
    campaign = study.parameters.get("campaign")
    if campaign is None:
        return []
    frozen = load_campaign(store, campaign).parameters
    records = [load_record(digest, store) for digest in study.records]
    plans = [parse_plan(each.plan_bytes(), where=each.digest).plan for each in records]
    problems = []
    workloads = [plan.workload for plan in plans if plan.workload is not None]
    cases = [_digest(workload.prompt_token_ids) for workload in workloads]
    if not set(cases) <= set(frozen["development"]) and not openings(store, campaign):
        problems.append("ran other cases than its campaign's, whose holdout was never opened")
    if study.parameters["arming"]["repetitions"] != frozen["repetitions"] or any(
        workload.fresh_realizations != frozen["processes"] for workload in workloads
    ):
        problems.append("ran other processes or repetitions than its campaign's")
    limits = frozen["limits"]
    wanted = () if limits is None else parse_limits(limits, where="limits")
    if wanted and any(limits_of([plan]) != wanted for plan in plans):
        problems.append("its plans have other limits than its campaign")
    return problems


def _digest(case: Sequence[int]) -> str:
    return sha256_digest(canonical_bytes(list(case)))


def _limits_digest(document: Any) -> str | None:
    return None if document is None else limits_digest(parse_limits(document, where="limits"))
