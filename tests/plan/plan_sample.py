"""A small native plan, written out by hand, and tools to corrupt it."""

import copy
import hashlib
import json
from collections.abc import Callable
from typing import Any

from harness.plan.documents import plan_from_document
from harness.plan.environment import Environment, parse_environment
from harness.plan.load import LoadedPlan
from harness.plan.manifest import ManifestEntry

Document = dict[str, Any]
ZERO = "sha256:" + "0" * 64
DECISIVE = (
    "integrity.tables",
    "memory.unplanned",
    "integrity.source",
    "trials.completed",
    "plan.binding",
    "realization.materializations",
    "realization.authorities",
    "realization.executions",
    "realization.release",
    "tensors.expected",
    "tensors.unchanged",
    "memory.ledger",
    "memory.invariants",
    "memory.release",
    "steps.complete",
    "steps.repeat",
    "state.selfproof",
    "correctness.exact",
    "numbers.finite",
    "sentinels.canaries",
    "sentinels.zero",
    "summaries.agree",
    "result.digest",
)
"""Checks that decide the verdict of every native plan; the limited one is the second."""


def entries() -> list[ManifestEntry]:
    rows = [
        ("bank.a", "part-1.bin", "bfloat16", (4, 8), 64, 128),
        ("bank.b", "part-2.bin", "float32", (3,), 12, 12),
    ]
    return [
        ManifestEntry(
            key=key,
            file=file,
            dtype=dtype,
            shape=shape,
            logical_state_id="state.bank",
            source_bytes=source_bytes,
            expected_bytes=expected_bytes,
            sha256=None,
            digest_source="none",
        )
        for key, file, dtype, shape, source_bytes, expected_bytes in rows
    ]


def manifest() -> bytes:
    """The manifest's lines, spelled by hand: sorted fields, no blanks."""
    lines = [
        '{"digest_source":"none","dtype":"bfloat16","expected_bytes":128,"file":"part-1.bin",'
        '"key":"bank.a","logical_state_id":"state.bank","sha256":null,"shape":[4,8],'
        '"source_bytes":64}',
        '{"digest_source":"none","dtype":"float32","expected_bytes":12,"file":"part-2.bin",'
        '"key":"bank.b","logical_state_id":"state.bank","sha256":null,"shape":[3],'
        '"source_bytes":12}',
    ]
    return "".join(line + "\n" for line in lines).encode()


def digest_of(document: Document) -> str:
    """Independent of the code under test; equals RFC 8785 for ASCII keys without floats."""
    payload = {name: value for name, value in document.items() if name != "digest"}
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def file_of(document: Document) -> bytes:
    text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
    return text.encode() + b"\n"


def resources() -> Document:
    return {
        "swarm_id": "local",
        "nodes": [
            {
                "id": "node0",
                "compute_units": [
                    {
                        "id": "accelerator0",
                        "kind": "simulated-accelerator",
                        "device_uuid": None,
                        "memory_resources": ["node0.ram", "accelerator0.vram"],
                    }
                ],
                "memory_resources": [
                    {"id": "node0.ram", "kind": "system-ram", "capacity_bytes": 1000},
                    {"id": "accelerator0.vram", "kind": "simulated-vram", "capacity_bytes": 400},
                ],
            }
        ],
    }


def _materialization(
    name: str, state: str, form: str, memory: str, size: int, role: str, **more: Any
) -> Document:
    return {
        "id": name,
        "logical_state_id": state,
        "representation": form,
        "memory_resource_id": memory,
        "expected_bytes": size,
        "role": role,
        "requirement": "required",
        "persistence": "persistent",
        **more,
    }


def _materializations() -> list[Document]:
    ram, vram = "node0.ram", "accelerator0.vram"
    return [
        _materialization(
            "mat.bank.stage",
            "state.bank",
            "checkpoint-native",
            ram,
            76,
            "staging",
            persistence="transient",
            path_id="checkpoint-to-ram",
        ),
        _materialization(
            "mat.bank.resident",
            "state.bank",
            "merged",
            vram,
            140,
            "required_residency",
            path_id="ram-to-device",
        ),
        _materialization(
            "mat.table.resident", "state.table", "table", vram, 32, "required_residency"
        ),
        _materialization(
            "mat.cells.resident", "state.cells", "cells", vram, 64, "mutable_authority"
        ),
        _materialization(
            "mat.replay.resident",
            "state.replay-baseline",
            "snapshot",
            vram,
            64,
            "required_test_state",
        ),
        _materialization(
            "mat.spare",
            "state.table",
            "table",
            ram,
            32,
            "optional_cache",
            requirement="optional",
            realize=False,
        ),
    ]


def _states() -> list[Document]:
    return [
        {
            "id": "state.bank",
            "semantic_class": "immutable_source",
            "backing_source_id": "checkpoint",
        },
        {
            "id": "state.table",
            "semantic_class": "derived_reconstructible",
            "reconstruction_inputs": ["checkpoint"],
        },
        {"id": "state.cells", "semantic_class": "mutable_authoritative"},
        {
            "id": "state.replay-baseline",
            "semantic_class": "derived_reconstructible",
            "reconstruction_inputs": ["state.cells"],
        },
    ]


def native_document() -> Document:
    """A valid plan document with its digest."""
    model = {"repository": "nobody/fake", "revision": "r1"}
    document: Document = {
        "schema": "harness.plan/1",
        "plan_version": "sample-1",
        "model": model,
        "resources": {
            **resources(),
            "backing_sources": [{"id": "checkpoint", "kind": "checkpoint", **model}],
            "links": [
                {
                    "id": "checkpoint-to-ram",
                    "kind": "bounded-read",
                    "source": "checkpoint",
                    "target": "node0.ram",
                },
                {
                    "id": "ram-to-device",
                    "kind": "host-to-device",
                    "source": "node0.ram",
                    "target": "accelerator0.vram",
                },
            ],
        },
        "logical_state_units": _states(),
        "materializations": _materializations(),
        "authorities": [
            {
                "logical_state_id": "state.cells",
                "materialization_id": "mat.cells.resident",
                "lineage": "state.cells@epoch-1",
            }
        ],
        "execution": [
            {
                "id": "exec.model",
                "strategy_unit": "fake.run/1",
                "compute_unit_id": "accelerator0",
                "required_state": [
                    {
                        "logical_state_id": state,
                        "representations": [form],
                        "memory_resources": ["accelerator0.vram"],
                    }
                    for state, form in (("state.bank", "merged"), ("state.cells", "cells"))
                ],
            }
        ],
        "forbidden_persistent_materializations": [
            {"logical_state_id": "state.bank", "memory_resource_id": "node0.ram"}
        ],
        "memory_expectations": {
            "persistent_optional_bytes": 0,
            "unplanned_persistent_bytes": 0,
            "unexplained_persistent_host_mirror_bytes": 0,
        },
        "adapter_data": {
            "family": "fake",
            "config": {"size": 8, "names": ["ä", "b"]},
            "spec": {
                "start_layer": 0,
                "end_layer": 2,
                "owns_embeddings": True,
                "owns_final_norm_head": True,
                "model_repository": model["repository"],
                "revision": model["revision"],
            },
            "allowed_tensor_keys": ["bank.a", "bank.b"],
        },
        "checkpoint": {
            "source": {"kind": "hub", **model},
            "files": [
                {"name": "part-1.bin", "size_bytes": 100, "sha256": ZERO},
                {"name": "sub/part-2.bin", "size_bytes": 0, "sha256": ZERO},
                {"name": "part-2.bin", "size_bytes": 100, "sha256": ZERO},
            ],
            "manifest": {
                "digest": "sha256:" + hashlib.sha256(manifest()).hexdigest(),
                "num_tensors": 2,
                "source_bytes": 76,
                "expected_bytes": 140,
            },
        },
        "workload": {
            "prompt_token_ids": [1, 2, 3],
            "prompt_text": "one two three",
            "chunk_rows": 2,
            "decode_steps": 4,
            "repetitions": 2,
            "fresh_realizations": 2,
            "sampling": "greedy",
            "max_positions": 7,
        },
        "reference_fixture": {
            "loader": "unselective-safetensors",
            "outputs": ["plane", "logits"],
            "dtype": "float32",
            "num_threads": 2,
        },
        "determinism": {
            "dtype": "float32",
            "num_threads": 2,
            "deterministic_algorithms": True,
            "batch_invariant": True,
            "kernel_set": "torch-cpu/1",
        },
        "checks": {
            "acceptance": [
                {"id": name, "limit": 4096} if name == "memory.unplanned" else {"id": name}
                for name in DECISIVE
            ],
            "telemetry": [{"id": "step.times"}],
        },
        "timeouts": {"fixture_s": 10, "realization_s": 10, "audit_s": 10},
        "memory_allowances": {"unplanned_host_bytes": 4096},
        "scope": {"proves": ["that it runs"], "does_not_prove": ["anything else"]},
    }
    document["digest"] = digest_of(document)
    return document


def corrupted(change: Callable[[Document], object], document: Document | None = None) -> Document:
    """A copy with ``change`` applied and the digest made to match again."""
    copied = copy.deepcopy(native_document() if document is None else document)
    change(copied)
    copied["digest"] = digest_of(copied)
    return copied


def loaded(document: Document) -> LoadedPlan:
    """A plan as the rules see it, without the checks of form."""
    return LoadedPlan(
        plan=plan_from_document(document), document=document, file_digest=ZERO, path=None
    )


FORMS = {
    "state.bank": {"checkpoint-native", "checkpoint-window", "merged"},
    "state.table": {"table"},
    "state.cells": {"cells"},
    "state.replay-baseline": {"snapshot"},
}


class FakeSupport:
    """An adapter that supports exactly the sample's names."""

    strategy_units = frozenset({"fake.run/1"})
    acceptance_checks: tuple[str, ...] = ()

    def supports_representation(self, logical_state_id: str, representation: str) -> bool:
        return representation in FORMS.get(logical_state_id, set())


def environment(change: Callable[[Document], object] = lambda document: None) -> Environment:
    """The machine of the sample plan, after a change."""
    document = {"schema": "harness.environment/1", "resources": resources(), "facts": {"cores": 2}}
    change(document["resources"])  # type: ignore[arg-type]
    return parse_environment(document, where="test")
