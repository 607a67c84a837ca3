"""A campaign: cases and limits that are frozen before the first run, and a holdout opened once.

    freeze -> run the development cases, as often as it takes -> open the holdout, once

A manifest names its development cases openly and its holdout by digest alone; the limits lie in it,
so that they were there before the holdout was opened. Freezing and opening are studies of the
store: a second opening finds the first one and is refused. Knows files, stores and cases; the runs
are localizations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.canonical import canonical_bytes, read_json, sha256_digest
from harness.errors import EvidenceError, InvalidInputError
from harness.evidence.store import Store
from harness.evidence.studies import StudyPredicate, study_predicate
from harness.laboratory.confidence import zero_failure_confidence
from harness.laboratory.limits import limits_digest, parse_limits
from harness.laboratory.writing import draft, finish
from harness.measure.clock import utc_timestamp

KIND = "campaign"
MANIFEST_SCHEMA, HOLDOUT_SCHEMA = "harness.campaign/1", "harness.holdout/1"
FROZEN, OPENED = "frozen", "opened"
MAX_FILE_BYTES = 16 << 20
MAX_CASES = 400
MIN_SALT_CHARS = 32
_MANIFEST = frozenset(
    {"schema", "name", "development", "processes", "repetitions", "design", "limits"}
)
_DESIGN = frozenset({"share", "rate", "confidence"})


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """The sealed cases."""

    cases: tuple[tuple[int, ...], ...]
    digest: str
    """Over the whole document; its salt keeps it from being guessed."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a campaign will do, before it does anything."""

    name: str
    development: tuple[tuple[int, ...], ...]
    """Prompts, as token ids."""
    processes: int
    repetitions: int
    design: Mapping[str, float]
    """``share`` and ``rate`` of the defect that is to be excluded, with which ``confidence``."""
    limits: Any
    """Limits document of comparisons, or ``None``."""


def read_manifest(path: Path) -> Manifest:
    """Read a manifest file.

    Raises:
        InvalidInputError: When it is not valid, or its cases do not give its confidence.
    """
    document, where = read_json(path, max_bytes=MAX_FILE_BYTES), str(path)
    _require(document, _MANIFEST, MANIFEST_SCHEMA, where)
    design = document["design"]
    if not isinstance(design, Mapping) or design.keys() != _DESIGN:
        raise InvalidInputError("a design is {share, rate, confidence}", where=where)
    numbers = (document["processes"], document["repetitions"])
    if any(type(n) is not int or not 1 <= n <= 1000 for n in numbers):
        raise InvalidInputError("processes and repetitions are 1 to 1000", where=where)
    if any(type(value) not in (int, float) for value in design.values()):
        raise InvalidInputError("a design is of numbers", got=str(dict(design)), where=where)
    if document["limits"] is not None:
        parse_limits(document["limits"], where=where)
    return Manifest(
        name=str(document["name"])[:80],
        development=_cases(document["development"], where),
        processes=numbers[0],
        repetitions=numbers[1],
        design={name: float(value) for name, value in design.items()},
        limits=document["limits"],
    )


def read_holdout(path: Path) -> Holdout:
    """Read a holdout file: ``{schema, salt, cases}``.

    Raises:
        InvalidInputError: When it is not valid.
    """
    document, where = read_json(path, max_bytes=MAX_FILE_BYTES), str(path)
    _require(document, frozenset({"schema", "salt", "cases"}), HOLDOUT_SCHEMA, where)
    salt = document["salt"]
    if type(salt) is not str or len(salt) < MIN_SALT_CHARS:
        raise InvalidInputError(
            "a holdout needs a salt", expected=f"{MIN_SALT_CHARS} characters", where=where
        )
    cases = _cases(document["cases"], where)
    return Holdout(cases=cases, digest=sha256_digest(canonical_bytes(document)))


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
            "limits": manifest.limits,
            "limits_digest": _limits_digest(manifest.limits),
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


def _require(document: Any, fields: frozenset[str], schema: str, where: str) -> None:
    if (
        not isinstance(document, Mapping)
        or document.keys() != fields
        or document["schema"] != schema
    ):
        raise InvalidInputError(
            "not a file of this kind",
            expected=f"schema {schema} with {', '.join(sorted(fields))}",
            where=where,
        )


def _cases(value: Any, where: str) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CASES:
        raise InvalidInputError(f"cases are a list of 1 to {MAX_CASES}", where=where)
    for case in value:
        if not isinstance(case, list) or not case or any(type(t) is not int for t in case):
            raise InvalidInputError("a case is a list of token ids", where=where)
    cases = tuple(tuple(case) for case in value)
    if len(set(cases)) != len(cases):
        raise InvalidInputError("a case is listed twice", where=where)
    return cases


def _digest(case: Sequence[int]) -> str:
    return sha256_digest(canonical_bytes(list(case)))


def _limits_digest(document: Any) -> str | None:
    return None if document is None else limits_digest(parse_limits(document, where="limits"))
