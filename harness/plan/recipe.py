"""The identity of a reference fixture: its recipe, apart from the machine that makes it."""

from typing import Any

from harness.canonical import canonical_bytes, sha256_digest

FIXTURE_FILE = "reference.safetensors"
FIXTURE_LOADER = "unselective-safetensors"
"""The one supported loader: the ordinary load of every file, whole."""
FIXTURE_OUTPUTS = ("plane", "logits")
"""What every reference fixture holds."""


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
            for key in ("prompt_token_ids", "chunk_rows", "decode_steps", "sampling")
        },
        "determinism": document["determinism"],
        "max_positions": document["workload"]["max_positions"],
    }


def recipe_digest(document: dict[str, Any]) -> str:
    """Digest of the recipe of a plan document."""
    return sha256_digest(canonical_bytes(recipe_document(document)))
