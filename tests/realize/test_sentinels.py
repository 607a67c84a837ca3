import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from harness.measure.settle import settle
from harness.plan.layout import TensorSpec
from harness.realize.recorder import StepRecorder
from harness.realize.sentinels import (
    CANARY_BYTES,
    Sentinel,
    StagingWatch,
    check,
    non_finite,
    unplanned_tensors,
)
from harness.realize.witnessed import (
    checkpoint_descriptors,
    checkpoint_mappings,
    unplanned_pages,
)
from harness.state.accounting import TensorAccounting
from harness.state.arena import Memory

SPECS = [TensorSpec(name="t", dtype="float32", shape=(64,))]


def counts(sentinel: Sentinel) -> tuple[int, int]:
    (row,) = check([sentinel], "after_release")
    assert row["name"] == sentinel.name
    assert row["point"] == "after_release"
    return int(str(row["canary_count"])), int(str(row["count"]))


def test_staging_watch() -> None:
    home = Memory(resource_id="ram", kind="system-ram", capacity_bytes=1 << 20)
    arena = home.allocate("stage", SPECS)
    staging = StagingWatch([arena])
    assert counts(staging.tensors_alive()) == (1, 1)
    assert counts(staging.mappings_alive()) == (1, 1)
    kept = arena.tensors["t"]
    arena.release()
    assert counts(staging.tensors_alive()) == (1, 1)
    assert counts(staging.mappings_alive()) == (1, 1)
    del kept
    arena.release()
    assert counts(staging.tensors_alive()) == (1, 0)
    assert counts(staging.mappings_alive()) == (1, 0)


def test_unplanned_tensors() -> None:
    home = Memory(resource_id="ram", kind="system-ram", capacity_bytes=1 << 20)
    sentinel = unplanned_tensors(TensorAccounting(), lambda: home.arenas)
    home.allocate("x", SPECS)
    assert counts(sentinel) == (CANARY_BYTES, 0)
    mirror = torch.ones(300)
    assert counts(sentinel) == (CANARY_BYTES, 1200)
    del mirror
    assert counts(sentinel) == (CANARY_BYTES, 0)


@pytest.mark.parametrize("name", ["nan", "inf"])
def test_non_finite(name: str) -> None:
    recorder = StepRecorder(None)
    sentinel = non_finite(name, recorder)
    assert counts(sentinel) == (1, 0)
    recorder.count({"plane": torch.tensor([float("nan"), float("inf"), float("inf"), 1.0])})
    assert counts(sentinel) == (1, {"nan": 1, "inf": 2}[name])
    assert (recorder.num_nan, recorder.num_inf) == (1, 2)


def test_a_recorder_that_does_not_count_shows_no_canary() -> None:
    recorder = StepRecorder(None)
    recorder.count = lambda outputs: {}  # type: ignore[method-assign]
    assert counts(non_finite("nan", recorder)) == (0, 0)


@dataclass
class Reading:
    """Counts this process by hand, in place of the witness."""

    unplanned_bytes: int = 0
    checkpoint_descriptors: tuple[str, ...] = ()
    checkpoint_mappings: tuple[str, ...] = ()


def reading(file: Path) -> Callable[[], Reading]:
    def anonymous_bytes() -> int:
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no Anonymous line")

    settle()
    baseline = anonymous_bytes()

    def probe() -> Reading:
        settle()
        links = []
        for number in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink(f"/proc/self/fd/{number}"))
            except OSError:
                continue
        maps = Path("/proc/self/maps").read_text()
        return Reading(
            unplanned_bytes=anonymous_bytes() - baseline,
            checkpoint_descriptors=tuple(link for link in links if link == str(file)),
            checkpoint_mappings=(file.name,) if str(file) in maps else (),
        )

    return probe


def test_witnessed(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"x" * 8192)
    probe = reading(file)
    assert counts(checkpoint_descriptors(probe, file))[0] >= 1  # type: ignore[arg-type]
    assert counts(checkpoint_mappings(probe, file)) == (1, 0)  # type: ignore[arg-type]
    with file.open("rb"):
        assert counts(checkpoint_descriptors(probe, file)) == (1, 1)  # type: ignore[arg-type]


def count_in_a_quiet_process() -> None:
    """What the test below asserts; a process full of other tests' heap is never at rest."""
    probe = reading(Path("/nonexistent"))
    allowance = 512 << 10
    clean = counts(unplanned_pages(probe, allowance))  # type: ignore[arg-type]
    mirror = bytearray(os.urandom(1 << 12) * (1 << 9))
    planted = counts(unplanned_pages(probe, allowance))  # type: ignore[arg-type]
    print(json.dumps([allowance, len(mirror), *clean, *planted]))


def test_unplanned_pages_counts_beyond_the_allowance() -> None:
    code = "import test_sentinels; test_sentinels.count_in_a_quiet_process()"
    folder = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {folder!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    allowance, mirror, canary, count, planted_canary, planted = json.loads(done.stdout)
    # The heap around a plant may give a few pages back.
    slack = 64 << 10
    assert count == 0
    assert canary >= CANARY_BYTES - allowance - slack
    assert planted >= mirror - allowance - slack
    assert planted_canary >= CANARY_BYTES - slack
