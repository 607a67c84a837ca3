"""The planted faults: each is caught by the check that is meant for it, and none by accident."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.errors import InvalidInputError
from harness.evidence.record import load_record
from harness.evidence.store import Store
from harness.laboratory.faults.catalogue import FAULTS, faulty_producer_argv
from harness.measure.environment import DeviceRequest
from harness.plan.load import load_plan
from harness.run.request import RunRequest
from harness.run.supervisor import run

MIB = 1 << 20
TRIALS = Path(__file__).parent / "race_trials.py"
MANY_CHUNKS = (65, 66, 67)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def matrix(fault: str, cache: Path, *lengths: int) -> dict[str, dict[str, list[str]]]:
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
        faulty_producer_argv("none-such")


@pytest.mark.slow
def test_without_a_fault_nothing_varies(cache: Path) -> None:
    for length, boundaries in matrix("none", cache, 53, 64, *MANY_CHUNKS).items():
        assert varying(boundaries) == [], length


@pytest.mark.slow
def test_the_race_first_shows_in_the_written_slice_of_the_first_window_layer(cache: Path) -> None:
    """Layer 0 attends to everything and stays stable; layer 1 is the first one with a window.

    A chunk's own rows are read back through their slots like any other position, so prompts of
    one chunk vary here as well.
    """
    found = matrix("swa_raced", cache, 53, 64, *MANY_CHUNKS)
    for length, boundaries in found.items():
        assert varying(boundaries)[0] == "0/layers.1.kv_written", length
        assert not any("layers.0." in name for name in varying(boundaries) if name[0] == "0")
    for length in map(str, MANY_CHUNKS):
        assert "1/logits" in varying(found[length]), length


@pytest.mark.slow
def test_the_defect_alone_is_stable_on_this_device(cache: Path) -> None:
    # Duplicate slots are written in the order of the rows here, so repetition cannot show it;
    # only the ownership of the pool does.
    for length, boundaries in matrix("swa_unallocated", cache, 64, 67).items():
        assert varying(boundaries) == [], length


def run_with(
    fault: str | None, repo_root: Path, cache: Path, folder: Path
) -> tuple[int, dict[str, Any], Store]:
    """Run the committed plan of ``tiny_gemma_hybrid``, as ``swa_unallocated`` does with a fault."""
    plan = load_plan(repo_root / "plans" / "tiny_gemma_hybrid.json")
    assert plan.path is not None
    changes: dict[str, Any] = {}
    if fault is not None:
        changes = {"planted_fault": fault, "producer_argv": faulty_producer_argv(fault)}
    request = RunRequest(
        experiment="hybrid",
        plan_path=plan.path,
        plan_digest=plan.plan.digest,
        store=folder / "store",
        cache=cache,
        device=DeviceRequest(
            kind="simulated", simulated_vram_bytes=1024 * MIB, system_ram_limit_bytes=2048 * MIB
        ),
        as_json=True,
        **changes,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        code = run(request)
    store = Store(request.store)
    (digest,) = store.digests("verdicts")
    return code, store.read_verdict(digest)["predicate"], store


def failed(verdict: dict[str, Any]) -> set[str]:
    return {check["id"] for check in verdict["checks"] if check["status"] == "failed"}


@pytest.mark.slow
def test_a_faithful_hybrid_run_passes_and_owns_every_position(
    repo_root: Path, cache: Path, tmp_path: Path
) -> None:
    code, verdict, store = run_with(None, repo_root, cache, tmp_path)
    assert (code, failed(verdict)) == (0, set())
    (digest,) = store.digests("records")
    rows = load_record(digest, store).rows("ownership", 0)
    assert {row["pool"] for row in rows} == {"full", "swa"}
    for row in rows:
        assert row["num_live"] + row["num_available"] == row["num_pages"] - 1
        assert row["num_mapped"] == row["num_positions"] >= 64


@pytest.mark.slow
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_planted_fault_ends_as_an_audited_failure_of_ownership(
    fault: str, repo_root: Path, cache: Path, tmp_path: Path
) -> None:
    code, verdict, store = run_with(fault, repo_root, cache, tmp_path)
    assert (code, verdict["status"]) == (1, "failed")
    assert {"state.ownership", "summaries.agree"} <= failed(verdict)
    assert "trials.completed" not in failed(verdict)
    (digest,) = store.digests("records")
    record = load_record(digest, store)
    assert [c.detail for c in record.predicate.claims if c.name == "planted_fault"] == [fault]
    swa = [row for row in record.rows("ownership", 0) if row["pool"] == "swa"]
    assert all(row["num_mapped"] == 0 and row["num_live"] == 0 for row in swa)
    full = [row for row in record.rows("ownership", 0) if row["pool"] == "full"]
    assert all(row["num_mapped"] == row["num_positions"] for row in full)
