"""The planted faults: each is caught by its audit, and localized to where it first shows.

Every run is one fresh process and a record of its own; a run without a fault stands beside those
of its family, and is never flagged.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from harness.cli.derive import settings_of
from harness.errors import InvalidInputError
from harness.evidence.record import load_record
from harness.evidence.store import Store
from harness.experiment import compose_experiment
from harness.laboratory.faults.catalogue import FAULTS, Fault, planted
from harness.laboratory.matrix import Matrix, build_matrix
from harness.measure.environment import DeviceRequest
from harness.plan.freeze import freeze
from harness.plan.load import LoadedPlan
from harness.realize.arming import Arming
from harness.run.derivation import derive_settings
from harness.run.progress import Progress
from harness.run.request import RunRequest
from harness.run.supervisor import Completed, execute

MIB = 1 << 20
TRIALS = Path(__file__).parent / "race_trials.py"
MANY_CHUNKS = (65, 66, 67)
EXPERIMENTS = {
    "llama": "tiny_llama",
    "gemma": "tiny_gemma_hybrid",
    "qwen3_5_moe": "tiny_qwen_nvfp4",
}
SMALL = (
    "workload.decode_steps=2",
    "workload.repetitions=2",
    "workload.fresh_realizations=1",
    "determinism.num_threads=1",
)
REGENERATE = "paste this table into docs/determinism.md:"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


# The race alone, in one process ----------------------------------------------------------------


def digests_of(fault: str, cache: Path, *lengths: int) -> dict[str, dict[str, list[str]]]:
    arguments = [fault, str(cache), "6", *map(str, lengths)]
    done = subprocess.run(
        [sys.executable, str(TRIALS), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, list[str]]] = json.loads(done.stdout)
    return found


def varying(boundaries: dict[str, list[str]]) -> list[str]:
    """Boundaries whose digests are not all equal, in execution order."""
    return [name for name, digests in boundaries.items() if len(set(digests)) > 1]


def test_an_unknown_fault_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match="swa_unallocated"):
        planted("none-such", "llama")


def test_a_fault_is_refused_where_it_would_never_act() -> None:
    with pytest.raises(InvalidInputError, match="a plan of family qwen3_5_moe"):
        planted("nan_expert", "llama")
    assert planted("late_read", "llama")["planted_fault"] == "late_read"
    assert planted(None, "llama") == {}


ALSO_OF_RUNS = ("flipped_bit", "late_read", "leaked_mirror", "wrong_token")
"""Whose like the tests of whole runs plant too."""


@pytest.mark.slow
def test_without_a_fault_nothing_varies(cache: Path) -> None:
    for length, boundaries in digests_of("none", cache, 53, 64, *MANY_CHUNKS).items():
        assert varying(boundaries) == [], length


@pytest.mark.slow
def test_the_race_first_shows_in_the_written_slice_of_the_first_window_layer(cache: Path) -> None:
    """Layer 0 attends to everything and stays stable; layer 1 is the first one with a window.

    A chunk's own rows are read back through their slots like any other position, so prompts of
    one chunk vary here as well.
    """
    found = digests_of("swa_raced", cache, 53, 64, *MANY_CHUNKS)
    for length, boundaries in found.items():
        assert varying(boundaries)[0] == "0/layers.1.kv_written", length
        assert not any("layers.0." in name for name in varying(boundaries) if name[0] == "0")
    for length in map(str, MANY_CHUNKS):
        assert "1/logits" in varying(found[length]), length


# Whole runs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Caught:
    """One armed run, its verdict, and where it first shows."""

    completed: Completed
    store: Store
    boundary: str | None

    @property
    def failed(self) -> set[str]:
        checks = self.completed.verdict["checks"]
        return {check["id"] for check in checks if check["status"] == "failed"}


class Laboratory:
    """Runs each plan and each fault once, when it is asked for."""

    def __init__(self, root: Path, folder: Path, cache: Path) -> None:
        self._root, self._folder, self._cache = root, folder, cache
        self._plans: dict[str, LoadedPlan] = {}
        self._runs: dict[tuple[str, str | None], Completed] = {}

    def _plan(self, family: str) -> LoadedPlan:
        if family not in self._plans:
            config = compose_experiment(
                [f"experiment={EXPERIMENTS[family]}", *SMALL],
                config_dir=self._root / "experiments",
            )
            document, manifest = derive_settings(
                settings_of(config), cache=self._cache, progress=lambda text, fraction=None: None
            )
            path = self._folder / f"{family}.json"
            self._plans[family] = freeze(document, path, manifest=manifest)
        return self._plans[family]

    def run(self, family: str, fault: str | None) -> Completed:
        if (family, fault) not in self._runs:
            plan = self._plan(family)
            assert plan.path is not None
            request = RunRequest(
                experiment=family,
                plan_path=plan.path,
                plan_digest=plan.plan.digest,
                store=self._folder / "store",
                cache=self._cache,
                device=DeviceRequest(
                    kind="simulated",
                    simulated_vram_bytes=1024 * MIB,
                    system_ram_limit_bytes=2048 * MIB,
                ),
                arming=Arming(repetitions=3),
                **planted(fault, family),
            )
            with Progress() as progress:
                self._runs[family, fault] = execute(request, progress)
        return self._runs[family, fault]

    def caught(self, fault: str) -> Caught:
        family = FAULTS[fault].family or "llama"
        completed, clean = self.run(family, fault), self.run(family, None)
        store, found = Store(self._folder / "store"), matrix_of(completed)
        if found.varying():
            boundary: str | None = found.boundaries[found.varying()[0]].label
        else:
            boundary = first_difference(clean, completed)
        return Caught(completed, store, boundary)


def matrix_of(completed: Completed) -> Matrix:
    tables = completed.observed.gathered.rows["boundaries"]
    return build_matrix({number: rows for number, rows in tables.items() if number is not None})


def first_difference(clean: Completed, faulty: Completed) -> str | None:
    """The first boundary at which a stable run differs from one without the fault."""
    one, other = (run.observed.gathered.rows["boundaries"][0] for run in (clean, faulty))
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        if left["digest"] != right["digest"]:
            return f"{left['phase']} {left['step']}: {left['name']}"
    return None


@pytest.fixture(scope="module")
def laboratory(
    repo_root: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Laboratory:
    return Laboratory(repo_root, tmp_path_factory.mktemp("laboratory"), cache)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(EXPERIMENTS))
def test_a_run_without_a_fault_is_never_flagged(family: str, laboratory: Laboratory) -> None:
    clean = laboratory.run(family, None)
    assert clean.exit_code == 0
    assert matrix_of(clean).varying() == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if name in ALSO_OF_RUNS else name
        for name in sorted(FAULTS)
    ],
)
def test_each_fault_is_caught_and_localized(name: str, laboratory: Laboratory) -> None:
    fault, found = FAULTS[name], laboratory.caught(name)
    assert found.completed.exit_code == 1
    assert fault.check in found.failed
    assert "trials.completed" not in found.failed
    record = load_record(found.completed.record, found.store)
    assert [c.detail for c in record.predicate.claims if c.name == "planted_fault"] == [name]
    assert bool(matrix_of(found.completed).varying()) == fault.varies
    assert found.boundary == fault.boundary


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swa_raced", "swa_unallocated"])
def test_without_allocation_no_position_of_the_window_owns_a_slot(
    name: str, laboratory: Laboratory
) -> None:
    found = laboratory.caught(name)
    assert "state.ownership" in found.failed
    rows = load_record(found.completed.record, found.store).rows("ownership", 0)
    assert all(r["num_mapped"] == r["num_live"] == 0 for r in rows if r["pool"] == "swa")
    assert all(r["num_mapped"] == r["num_positions"] for r in rows if r["pool"] == "full")
    clean = laboratory.run("gemma", None)
    for row in load_record(clean.record, found.store).rows("ownership", 0):
        assert row["num_live"] + row["num_available"] == row["num_pages"] - 1
        assert row["num_mapped"] == row["num_positions"] >= 64


def test_each_fault_is_an_experiment_that_differs_in_nothing_else(repo_root: Path) -> None:
    folder = repo_root / "experiments"
    for name, fault in FAULTS.items():
        base = EXPERIMENTS[fault.family or "llama"]
        file = yaml.safe_load((folder / "experiment" / f"{name}.yaml").read_text())
        assert file == {"defaults": [base, "_self_"], "name": name, "fault": name}
    clean, faulty = (
        compose_experiment([f"experiment={each}"], config_dir=folder)
        for each in (EXPERIMENTS["gemma"], "swa_raced")
    )
    same = {"name": clean.name, "fault": None, "overrides": clean.overrides}
    assert replace(faulty, **same) == clean
    assert (faulty.name, faulty.fault) == ("swa_raced", "swa_raced")


def table_of(faults: Mapping[str, Fault]) -> str:
    titles = "| fault and experiment | planted in | what it does | verdict | first boundary |"
    lines = [titles, "| --- | --- | --- | --- | --- |"]
    for name, fault in faults.items():
        varies = ", varies" if fault.varies else ""
        place = "-" if fault.boundary is None else f"`{fault.boundary}`{varies}"
        where = f"`{name}` | `{EXPERIMENTS[fault.family or 'llama']}`"
        lines.append(f"| {where} | {fault.text} | failed: `{fault.check}` | {place} |")
    return "\n".join(lines)


def test_the_documented_table_is_the_catalogue_s(repo_root: Path) -> None:
    """Which the slow tests above hold against what happens."""
    table = table_of(FAULTS)
    text = (repo_root / "docs" / "determinism.md").read_text()
    assert table in text, f"{REGENERATE}\n{table}"
