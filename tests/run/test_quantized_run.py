"""A made-up quantized checkpoint from its experiment to a verdict, in both experiments' forms."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.evidence.record import load_record
from harness.plan.load import LoadedPlan

NAMES = ("tiny_qwen_nvfp4", "r1_block_a_synthetic")


def section(repo_root: Path, group: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(
        (repo_root / "experiments" / group / f"{name}.yaml").read_text()
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_banks_are_staged_filled_and_let_go(
    repo_root: Path,
    freeze_plan: Callable[..., LoadedPlan],
    run_plan: Callable[..., Any],
    name: str,
) -> None:
    experiment = section(repo_root, "experiment", name)
    model = section(repo_root, "model", "tiny_qwen_nvfp4")
    changes: dict[str, Any] = {}
    if name == "r1_block_a_synthetic":
        # The block's forms, and a range without a head, of the small model.
        model["range"] = {"start_layer": 0, "end_layer": 3, "owns_final_norm_head": False}
        changes = {
            "realization__representations": experiment["realization"]["representations"],
            "workload__decode_token_ids": [5, 6, 7],
        }
    plan = freeze_plan(
        model=model,
        determinism__dtype="bfloat16",
        realization__unplanned_host_bytes=1 << 20,
        **changes,
    )
    trial = run_plan(plan)
    assert trial.failed == set()
    assert trial.code == 0
    (digest,) = trial.store.digests("records")
    record = load_record(digest, trial.store)
    rows = {row["id"]: row for row in record.rows("materializations", 0)}
    staged = [item.id for item in plan.plan.materializations if item.role == "staging"]
    assert staged
    assert {rows[item]["lifecycle"] for item in staged} == {"released"}
    assert {rows[item]["bytes_after_release"] for item in staged} == {0}
    if name == "r1_block_a_synthetic":
        # Only the banks are staged, as banks.
        (banks,) = (rows[item] for item in staged)
        (resident,) = (rows[item] for item in banks["qualifying_ids"])
        assert banks["representation"] == "checkpoint-native-host"
        assert resident["representation"] == "freetoken-nvfp4-slot-banks"
        assert banks["bytes_before_release"] == resident["requested_bytes"] > 0
    assert all(row["count"] == 0 for row in record.rows("sentinels", 0))
