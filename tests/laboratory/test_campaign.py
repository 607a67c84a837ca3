"""Confidence by exact counting, and campaigns whose holdout is opened once."""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.errors import EvidenceError, InvalidInputError
from harness.evidence.store import Store
from harness.evidence.studies import study_predicate, study_statement
from harness.laboratory.campaign import (
    freeze_campaign,
    load_campaign,
    open_holdout,
    require_development,
)
from harness.laboratory.confidence import (
    cases_needed,
    visible_share,
    zero_failure_confidence,
)
from harness.laboratory.corpora import Holdout, Manifest, read_holdout, read_manifest
from harness.laboratory.recheck import recheck_studies

SALT = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("num_cases", [1, 2, 3])
@pytest.mark.parametrize("repeats", [2, 3])
def test_confidence_is_the_share_of_all_ways_that_show_the_defect(
    num_cases: int, repeats: int
) -> None:
    """Every way in which cases are touched, and repeats of these show it, weighed exactly."""
    share, rate = Fraction(1, 5), Fraction(1, 3)
    unseen = Fraction(0)
    per_case = list(itertools.product([False, True], repeat=repeats))
    for ways in itertools.product(per_case, repeat=num_cases):
        weight = Fraction(1)
        for is_touched, *shown in ways:
            weight *= share if is_touched else 1 - share
            for each in shown:
                weight *= rate if each else 1 - rate
        if not any(is_touched and any(shown) for is_touched, *shown in ways):
            unseen += weight
    found = zero_failure_confidence(num_cases, float(share), float(rate), repeats)
    assert math.isclose(found, float(1 - unseen), rel_tol=1e-12)


def test_the_rule_of_three_is_met() -> None:
    """Without a failure in 3/p cases that always show, about 95 % confidence."""
    assert cases_needed(0.95, 0.01, 1.0, 2) == 299
    assert cases_needed(0.95, 0.05, 1.0, 2) == 59
    assert cases_needed(0.5, 1.0, 1.0, 2) == 1


@pytest.mark.parametrize(("share", "rate", "repeats"), [(0.1, 0.5, 2), (0.02, 0.9, 4), (1, 0.3, 3)])
def test_the_least_number_of_cases_is_enough_and_one_less_is_not(
    share: float, rate: float, repeats: int
) -> None:
    count = cases_needed(0.9, share, rate, repeats)
    assert zero_failure_confidence(count, share, rate, repeats) >= 0.9
    assert zero_failure_confidence(count - 1, share, rate, repeats) < 0.9


@pytest.mark.parametrize(("share", "rate", "repeats"), [(0, 0.5, 2), (0.5, 1.1, 2), (0.5, 0.5, 1)])
def test_what_is_no_design_is_refused(share: float, rate: float, repeats: int) -> None:
    with pytest.raises(InvalidInputError):
        visible_share(share, rate, repeats)
    with pytest.raises(InvalidInputError, match="confidence"):
        cases_needed(1.0, 0.1, 0.5, 2)


# Files -----------------------------------------------------------------------------------------


def manifest_document(**changes: Any) -> dict[str, Any]:
    return {
        "schema": "harness.campaign/1",
        "name": "windows",
        "development": [[1, 2, 3], [4, 5]],
        "processes": 2,
        "repetitions": 2,
        "design": {"share": 0.5, "rate": 0.9, "confidence": 0.8},
        "limits": [{"kind": "acceptance", "metric": "max_abs", "tensors": "logits", "limit": 0.5}],
    } | changes


def holdout_document(**changes: Any) -> dict[str, Any]:
    cases = [[7, n] for n in range(4)]
    return {"schema": "harness.holdout/1", "salt": SALT, "cases": cases} | changes


def write(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., tuple[Manifest, Holdout]]:
    def read(
        manifest: dict[str, Any] | None = None, holdout: dict[str, Any] | None = None
    ) -> tuple[Manifest, Holdout]:
        one = write(tmp_path / "manifest.json", manifest_document(**(manifest or {})))
        other = write(tmp_path / "holdout.json", holdout_document(**(holdout or {})))
        return read_manifest(one), read_holdout(other)

    return read


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "harness.campaign/2"},
        {"more": 1},
        {"development": []},
        {"development": [[1], [1]]},
        {"development": [["a"]]},
        {"processes": 0},
        {"design": {"share": 0.5}},
        {"design": {"share": 0.5, "rate": "x", "confidence": 0.5}},
        {"limits": []},
        {"limits": {"schema": "x"}},
        {"limits": [{"metric": "max_abs"}]},
    ],
)
def test_a_manifest_that_is_not_valid_is_refused(files: Any, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        files(manifest=change)


@pytest.mark.parametrize("change", [{"salt": "short"}, {"cases": [[]]}, {"cases": 1}])
def test_a_holdout_that_is_not_valid_is_refused(files: Any, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        files(holdout=change)


def test_a_campaign_names_its_holdout_by_digest_alone(files: Any, tmp_store: Path) -> None:
    store = Store(tmp_store)
    digest, study = freeze_campaign(store, *files(), "tiny")
    assert "[7, 0]" not in json.dumps(store.read_study(digest))
    assert study.parameters["holdout"]["num_cases"] == 4
    assert study.findings["repeats"] == 4
    assert study.findings["confidence_without_failure"] > 0.8
    assert recheck_studies(store) == []
    manifest, _ = files()
    require_development(load_campaign(store, digest), manifest)
    other, _ = files(manifest={"development": [[1, 2, 3], [4, 6]]})
    with pytest.raises(InvalidInputError, match="not those that were frozen"):
        require_development(study, other)


def test_corpora_that_share_a_case_are_refused(files: Any, tmp_store: Path) -> None:
    with pytest.raises(InvalidInputError, match="not disjoint"):
        freeze_campaign(Store(tmp_store), *files(manifest={"development": [[7, 1]]}), "tiny")


def test_a_holdout_too_small_for_the_design_is_refused(files: Any, tmp_store: Path) -> None:
    design = {"share": 0.01, "rate": 0.9, "confidence": 0.95}
    with pytest.raises(InvalidInputError, match="too small for the design"):
        freeze_campaign(Store(tmp_store), *files(manifest={"design": design}), "tiny")


def test_a_holdout_is_opened_once(files: Any, tmp_store: Path) -> None:
    store = Store(tmp_store)
    manifest, holdout = files()
    digest, study = freeze_campaign(store, manifest, holdout, "tiny")
    _, opened = open_holdout(store, digest, holdout)
    assert opened.findings["limits_digest"] == study.parameters["limits_digest"] is not None
    with pytest.raises(InvalidInputError, match="opened before"):
        open_holdout(store, digest, holdout)
    assert recheck_studies(store) == []


def test_another_holdout_than_the_sealed_one_is_refused(files: Any, tmp_store: Path) -> None:
    store = Store(tmp_store)
    manifest, holdout = files()
    digest, _ = freeze_campaign(store, manifest, holdout, "tiny")
    for change in ({"salt": SALT[::-1]}, {"cases": [[7, n] for n in range(5)]}):
        with pytest.raises(InvalidInputError, match="not the holdout that was sealed"):
            open_holdout(store, digest, files(holdout=change)[1])
    with pytest.raises(EvidenceError, match="not a frozen campaign"):
        open_holdout(store, open_holdout(store, digest, holdout)[0], holdout)


def test_limits_changed_after_freezing_and_a_second_opening_are_found(
    files: Any, tmp_store: Path
) -> None:
    store = Store(tmp_store)
    manifest, holdout = files()
    digest, study = freeze_campaign(store, manifest, holdout, "tiny")
    first, _ = open_holdout(store, digest, holdout)
    opened = study_predicate(store.read_study(first))
    store.put_study(study_statement(replace(opened, command=("again",))))
    looser = [{**study.parameters["limits"][0], "limit": 5.0}]
    store.put_study(
        study_statement(replace(study, parameters={**study.parameters, "limits": looser}))
    )
    messages = sorted(problem.message for problem in recheck_studies(store))
    assert messages == [
        "its holdout was opened more than once",
        "its holdout was opened more than once",
        "its limits are not those that were hashed",
    ]


def test_the_commands_freeze_and_open_once(
    repo_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = write(tmp_path / "manifest.json", manifest_document())
    holdout = write(tmp_path / "holdout.json", holdout_document())
    place = ["--store", str(tmp_path / "store")]
    given = ["--manifest", str(manifest), "--holdout", str(holdout), "--json"]
    configs = ["--config-dir", str(repo_root / "experiments")]
    command = ["campaign", "freeze", "experiment=tiny_llama", "store=elsewhere"]
    assert main([*command, *given, *place, *configs]) == 0
    digest = json.loads(capsys.readouterr().out)["campaign"]
    store = Store(tmp_path / "store")
    told = load_campaign(store, digest).parameters
    assert told["overrides"] == ["experiment=tiny_llama"]
    open_holdout(store, digest, read_holdout(holdout))
    assert main(["campaign", "holdout", digest, str(holdout), *place, *configs]) == 2
    assert "opened before" in capsys.readouterr().err
    assert main(["campaign", "size", "--share", "0.01"]) == 0
    assert capsys.readouterr().out.startswith("299 cases")
