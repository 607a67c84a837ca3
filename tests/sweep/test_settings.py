from pathlib import Path
from typing import Any

import pytest

from harness.errors import InvalidInputError
from harness.experiment import compose_experiment
from harness.sweep.settings import LauncherSettings, parse_settings


@pytest.mark.parametrize("kind", ["basic", "joblib", "ray", "submitit"])
def test_the_launchers_of_the_project_are_valid(kind: str, repo_root: Path) -> None:
    config = compose_experiment(
        ["experiment=tiny_llama", f"launcher={kind}"], config_dir=repo_root / "experiments"
    )
    settings = parse_settings(config.launcher, config.root)
    assert settings.kind == kind
    assert settings.num_jobs >= 1


def test_a_relative_folder_starts_where_it_is_told_to(tmp_path: Path) -> None:
    settings = parse_settings({"kind": "submitit", "folder": "a"}, tmp_path)
    assert settings == LauncherSettings(kind="submitit", folder=tmp_path / "a")


@pytest.mark.parametrize(
    ("launcher", "named"),
    [
        ({"kind": "slurm"}, "no such launcher"),
        ({"kind": "basic", "num_jobs": 2}, "num_jobs: unknown to basic"),
        ({"kind": "joblib", "num_jobs": True}, "num_jobs: True is no number"),
        ({"kind": "joblib", "num_jobs": "2"}, "num_jobs: '2' is no number"),
        ({"kind": "joblib", "num_jobs": 10**9}, "num_jobs: 1000000000 is no number"),
        ({"kind": "submitit", "executor": "debug"}, "executor: 'debug' is none of"),
        ({"kind": "submitit", "folder": 3}, "folder: 3 has another type"),
        ({"kind": "submitit", "folder": "~nobody-by-that-name/a"}, "names no folder"),
        ({"kind": "submitit", "folder": "a\0b"}, "names no folder"),
        ({"kind": "submitit", "parameters": [], "timeout_min": 0}, "timeout_min: 0"),
        ({"kind": "ray", "address": 7}, "address: 7 has another type"),
    ],
)
def test_every_fault_is_named(launcher: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=named):
        parse_settings(launcher, tmp_path)
