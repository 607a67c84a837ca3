"""What may stand in a composed experiment, and what a frozen plan decides of it.

Works on plain values; knows nothing of how they were composed.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_SECTIONS: Mapping[str, frozenset[str]] = {
    "plan": frozenset({"path", "digest"}),
    "model": frozenset({"family", "repository", "revision", "source", "range"}),
    "device": frozenset(
        {"kind", "simulated_vram_bytes", "system_ram_limit_bytes", "assumed_vram_bytes"}
    ),
    "workload": frozenset(
        {
            "prompt_text",
            "chat",
            "prompt_token_ids",
            "chunk_rows",
            "decode_steps",
            "repetitions",
            "fresh_realizations",
            "sampling",
            "max_positions",
            "prefill_partition",
            "page_size",
            "decode_token_ids",
            "decode_mode",
        }
    ),
    "realization": frozenset(
        {
            "staging",
            "staging_window_bytes",
            "unplanned_host_bytes",
            "unplanned_device_bytes",
            "eviction_policy",
            "representations",
            "stages",
            "nodes",
        }
    ),
    "determinism": frozenset(
        {"dtype", "num_threads", "deterministic_algorithms", "batch_invariant", "kernel_set"}
    ),
    "timeouts": frozenset(
        {"fixture_s", "realization_s", "audit_s", "stage_wait_s", "stage_start_s"}
    ),
    "checks": frozenset({"acceptance", "telemetry", "comparison"}),
    "launcher": frozenset(
        {
            "kind",
            "num_jobs",
            "executor",
            "folder",
            "timeout_min",
            "parameters",
            "address",
            "num_cpus",
        }
    ),
}
_VALUES = frozenset({"name", "store", "cache", "fault"})
_FLAGS = frozenset({"accept_terms", "allow_large"})
"""What only a person on the command line can give."""
GOVERNED = ("model", "device", "workload", "realization", "determinism", "checks", "timeouts")
"""Sections whose values a frozen plan decides."""
LAUNCHERS = ("basic", "joblib", "submitit", "ray")
"""Ways to run the jobs of a sweep."""
ALLOWED_TARGETS: frozenset[str] = frozenset()
"""Import paths that a ``_target_`` may name. Nothing is instantiated today."""
_PLAIN_INTERPOLATION = re.compile(r"\$\{\.*[A-Za-z0-9_][A-Za-z0-9_.\-\[\]]*\}")


def refusals(value: Any, path: str) -> Iterator[str]:
    """Yield what a composed configuration must not hold, wherever it stands."""
    if isinstance(value, dict):
        for key, item in value.items():
            here = f"{path}.{key}" if path else str(key)
            if key == "_target_" and item not in ALLOWED_TARGETS:
                yield f"{here}: {item!r} is not in the allow list; nothing is instantiated"
            yield from refusals(str(key), here)
            yield from refusals(item, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from refusals(item, f"{path}[{index}]")
    elif isinstance(value, str) and "${" in _PLAIN_INTERPOLATION.sub("", value):
        yield (
            f"{path}: {value!r}: only references to other fields are allowed, no resolver "
            "(a configuration does not depend on environment variables)"
        )


def faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield every field that is unknown, missing or of another kind."""
    for key in config.keys() - _SECTIONS.keys() - _VALUES - _FLAGS:
        yield f"{key}: unknown"
    for key in (_SECTIONS.keys() | _VALUES | _FLAGS) - config.keys():
        yield f"{key}: missing"
    for name, known in _SECTIONS.items():
        section = config.get(name)
        if isinstance(section, dict):
            yield from (f"{name}.{key}: unknown" for key in section.keys() - known)
        elif not (section is None and name in ("plan", "checks")) and name in config:
            yield f"{name}: must be a mapping, not {section!r}"
    launcher = config.get("launcher")
    if isinstance(launcher, dict) and launcher.get("kind") not in LAUNCHERS:
        yield f"launcher.kind: must be one of {', '.join(LAUNCHERS)}, not {launcher.get('kind')!r}"
    for name in _VALUES & config.keys():
        if config[name] is not None and not isinstance(config[name], str):
            yield f"{name}: must be text, not {config[name]!r}"
    for name in _FLAGS & config.keys():
        if not isinstance(config[name], bool):
            yield f"{name}: must be true or false, not {config[name]!r}"


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    else:
        yield path, value


def governed_changes(pinned: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, ...]:
    """Governed values that differ, ``field: pinned -> asked``, sorted."""
    before = {key: v for name in GOVERNED for key, v in _leaves(pinned[name], name)}
    after = {key: v for name in GOVERNED for key, v in _leaves(config[name], name)}
    return tuple(
        f"{key}: {_short(before, key)} -> {_short(after, key)}"
        for key in sorted(before.keys() | after.keys())
        if key not in before
        or key not in after
        or (type(before[key]), before[key]) != (type(after[key]), after[key])
    )


def _short(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "absent"
    text = json.dumps(values[key], ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
