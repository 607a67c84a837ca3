"""The identity of a reference fixture: its recipe, apart from the machine that makes it."""

from typing import Any

from harness.canonical import canonical_bytes, sha256_digest
from harness.plan.records import ModelRange

FIXTURE_FILE = "reference.safetensors"
FIXTURE_LOADER = "unselective-safetensors"
"""The one supported loader: the ordinary load of every file, whole."""


def fixture_outputs(spec: ModelRange) -> tuple[str, ...]:
    """What the reference fixture of a range holds; without a head there are no logits."""
    return ("plane", "logits") if spec.owns_final_norm_head else ("plane",)


_WORKLOAD = ("prompt_token_ids", "chunk_rows", "decode_steps", "sampling")
_OPTIONAL_WORKLOAD = ("prefill_partition", "page_size", "decode_token_ids")


def recipe_document(document: dict[str, Any]) -> dict[str, Any]:
    """The parts of a plan document that decide what the reference outputs are."""
    return {
        "recipe": document["reference_fixture"],
        "files": document["checkpoint"]["files"],
        "family": document["adapter_data"]["family"],
        "config": document["adapter_data"]["config"],
        "spec": document["adapter_data"]["spec"],
        "workload": {
            key: document["workload"][key]
            for key in (*_WORKLOAD, *_OPTIONAL_WORKLOAD)
            if key in _WORKLOAD or key in document["workload"]
        },
        "determinism": document["determinism"],
        "max_positions": document["workload"]["max_positions"],
    } | {key: document[key] for key in ("eviction_policy", "stages") if key in document}


def recipe_digest(document: dict[str, Any]) -> str:
    """Digest of the recipe of a plan document."""
    return sha256_digest(canonical_bytes(recipe_document(document)))
