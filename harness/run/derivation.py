"""From an experiment's settings to a frozen plan: fetch, count, lay out, derive, freeze.

The only place where settings become a plan. Imports no torch; knows no model family.
"""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from harness.adapters.families import layout_for
from harness.canonical import read_json
from harness.checkpoint.survey import Survey, survey
from harness.checkpoint.tokenizer import encode_prompt
from harness.errors import InvalidInputError, ResourceError
from harness.measure.environment import DeviceRequest, planning_environment
from harness.plan.checks import default_checks, device_checks, stage_checks
from harness.plan.derive import DeriveRequest, derive
from harness.plan.derive_resources import Device
from harness.plan.layout import AdapterLayout, CensusEntry, LayoutRequest
from harness.plan.limits import parse_limits
from harness.plan.recipe import FIXTURE_LOADER, fixture_outputs
from harness.plan.records import (
    CheckLimit,
    Checks,
    ComputeUnit,
    Determinism,
    FixtureRecipe,
    MemoryAllowances,
    ModelRange,
    Resources,
    Scope,
    TimeoutsS,
    Workload,
)

T = TypeVar("T")
MAX_CONFIG_BYTES = 4 << 20
MAX_THREADS = 1024
_PLAIN = frozenset({int, bool, str, float, type(None)})
UNEXECUTED = "anything about a path that was not executed"
ON_THE_HOST = ", such as CUDA or CUDA graphs"
SCOPE = Scope(
    proves=(
        "this frozen plan was realized with exactly the planned bytes, forms and memories",
        "staging was released on measured evidence, and nothing unplanned beyond the allowance "
        "stayed",
        "prefill and repeated decode are bitwise equal to the same-backend reference, under the "
        "recorded applicability key",
    ),
    does_not_prove=(
        "that the model is accurate or useful",
        "equal bits on another device class, instruction set, build, thread count or chunking",
        UNEXECUTED + ON_THE_HOST,
        "absence of mirrors smaller than the recorded smallest visible one, or in a recorded blind "
        "spot",
        "that the producing program is the recorded source: a producer that consistently reports "
        "what it did not do is not found out",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The governed sections of a composed experiment, as plain values."""

    name: str
    model: Mapping[str, Any]
    device: Mapping[str, Any]
    workload: Mapping[str, Any]
    realization: Mapping[str, Any]
    determinism: Mapping[str, Any]
    timeouts: Mapping[str, Any]
    checks: Mapping[str, Any] | None


def device_request(device: Mapping[str, Any]) -> DeviceRequest:
    """The device that a composed experiment asks for."""
    return DeviceRequest(**device)


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The part of a surveyed checkpoint that a plan is about."""

    survey: Survey
    config: dict[str, Any]
    spec: ModelRange
    entries: tuple[CensusEntry, ...]
    """Tensors that the range needs in the chosen forms, with what digests they have."""


def derive_settings(
    settings: Settings,
    *,
    cache: Path,
    progress: Callable[[str, float | None], None],
    accept_terms: bool = False,
    allow_large: bool = False,
) -> tuple[dict[str, Any], bytes]:
    """Derive a plan document and its manifest, with exact bytes from the checkpoint's headers."""
    layout = layout_for(str(settings.model["family"]))
    surveyed = survey(
        settings.model["source"],
        cache,
        progress=progress,
        tensors=layout.synthetic_tensors,
        accept_terms=accept_terms,
        allow_large=allow_large,
    )
    model = _model(settings, layout, surveyed, progress)
    num_stages = _num_stages(settings.realization.get("stages"))
    has_nodes = _has_nodes(settings.realization.get("nodes"), num_stages)
    num_devices = 1 if num_stages is None or has_nodes else num_stages
    environment = planning_environment(device_request(settings.device), num_devices)
    (node,) = environment.resources.nodes
    unit = node.compute_units[0]
    host, device = _places(environment.resources, unit)
    allowances = MemoryAllowances(
        unplanned_host_bytes=settings.realization["unplanned_host_bytes"],
        staging_window_bytes=settings.realization["staging_window_bytes"],
        unplanned_device_bytes=settings.realization.get("unplanned_device_bytes"),
    )
    own_checks = (
        *layout.acceptance_checks,
        *device_checks(environment.resources),
        *stage_checks(has_stages=num_stages is not None, has_nodes=has_nodes),
    )
    on_gpu = unit.kind == "cuda-gpu"
    request = _layout_request(settings, model, has_device_memory=device != host, on_gpu=on_gpu)
    checks = _checks(settings.checks or {}, default_checks(allowances, own_checks))
    _require_boundaries(checks, layout.boundaries(model.config, model.spec))
    return derive(
        DeriveRequest(
            plan_version=f"{settings.name}-1",
            model_repository=model.spec.model_repository,
            model_revision=model.spec.revision,
            checkpoint_source=dict(settings.model["source"]),
            checkpoint_files=surveyed.pin_files(model.entries),
            census=model.entries,
            layout=layout,
            layout_request=request,
            resources=environment.resources,
            compute_unit_id=unit.id,
            host_memory_id=host,
            device_memory_id=device,
            reference_fixture=FixtureRecipe(
                loader=FIXTURE_LOADER,
                outputs=fixture_outputs(model.spec),
                dtype=request.determinism.dtype,
                num_threads=request.determinism.num_threads,
            ),
            checks=checks,
            timeouts=_timeouts(settings.timeouts, has_stages=num_stages is not None),
            memory_allowances=allowances,
            scope=replace(SCOPE, does_not_prove=_unproven(on_gpu)),
            num_stages=num_stages,
            has_nodes=has_nodes,
            stage_devices=(
                _stage_devices(environment.resources, num_devices)
                if on_gpu and num_devices > 1
                else None
            ),
        )
    )


def _unproven(on_gpu: bool) -> tuple[str, ...]:
    """What a record of the plan shows nothing of; a GPU is such a path where none is planned."""
    executed = {UNEXECUTED + ON_THE_HOST: UNEXECUTED} if on_gpu else {}
    return tuple(executed.get(text, text) for text in SCOPE.does_not_prove)


def _model(
    settings: Settings,
    layout: AdapterLayout,
    surveyed: Survey,
    progress: Callable[[str, float | None], None],
) -> _Model:
    """Read the configuration, and account for every tensor of the checkpoint."""
    progress("census of the checkpoint", None)
    document = read_json(surveyed.folder / "config.json", max_bytes=MAX_CONFIG_BYTES)
    config = layout.parse_config(document)
    spec = _range(settings.model, int(config["num_layers"]))
    representations = _representations(settings.realization.get("representations"))
    for left in layout.account(config, spec, surveyed.tensors, representations):
        text = f"left out {left.num_tensors:,} tensors of {left.source_bytes:,} bytes: {left.rule}"
        progress(text, None)
    keys = layout.tensor_keys(config, spec, representations)
    return _Model(survey=surveyed, config=config, spec=spec, entries=surveyed.pin_tensors(keys))


def _layout_request(
    settings: Settings, model: _Model, *, has_device_memory: bool, on_gpu: bool
) -> LayoutRequest:
    realization = settings.realization
    determinism = _record(Determinism, settings.determinism, "determinism")
    if not 1 <= determinism.num_threads <= MAX_THREADS:
        got = str(determinism.num_threads)
        raise _misfit("determinism.num_threads", f"1 to {MAX_THREADS} threads", got)
    if on_gpu and realization["staging"] == "none":
        raise _misfit("realization.staging", "whole or streaming, on a GPU", "none")
    return LayoutRequest(
        config=model.config,
        spec=model.spec,
        determinism=determinism,
        workload=_workload(settings.workload, model.survey.folder),
        staging=str(realization["staging"]) if has_device_memory else "none",
        staging_window_bytes=realization["staging_window_bytes"],
        eviction_policy=_policy(realization.get("eviction_policy")),
        representations=_representations(realization.get("representations")),
    )


def _range(model: Mapping[str, Any], num_layers: int) -> ModelRange:
    """The part of the model that is realized: the whole of it, unless the settings name a range.

    Where the settings do not say so, a range has the ends that lie beside its layers.
    """
    fields = ("start_layer", "end_layer", "owns_embeddings", "owns_final_norm_head")
    asked = {} if model.get("range") is None else model["range"]
    if not isinstance(asked, Mapping) or not set(fields) >= asked.keys():
        raise _misfit("model.range", f"any of {', '.join(fields)}", repr(asked))
    layers = {"start_layer": 0, "end_layer": num_layers, **asked}
    ends = {
        "owns_embeddings": layers["start_layer"] == 0,
        "owns_final_norm_head": layers["end_layer"] == num_layers,
    }
    identity = {
        "model_repository": str(model["repository"]),
        "revision": str(model["revision"]),
    }
    return _record(ModelRange, {**ends, **layers, **identity}, "model.range")


def _num_stages(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 2):
        raise _misfit("realization.stages", "2 or more, or null for one process", repr(value))
    return value


def _has_nodes(value: Any, num_stages: int | None) -> bool:
    if value is not None and (type(value) is not int or value != num_stages):
        expected = "the number of stages, or null for one node of all"
        raise _misfit("realization.nodes", expected, repr(value))
    return value is not None


def _timeouts(values: Mapping[str, Any], *, has_stages: bool) -> TimeoutsS:
    """Bounds on the children; those of stages belong only to a plan that has some."""
    found = _record(TimeoutsS, values, "timeouts")
    return found if has_stages else replace(found, stage_wait_s=None, stage_start_s=None)


def _policy(value: Any) -> str | None:
    if value is not None and type(value) is not str:
        raise _misfit("realization.eviction_policy", "the name of a policy, or null", repr(value))
    return value


def _representations(value: Any) -> dict[str, str]:
    """Logical state -> form of its persistent copy, where the settings choose one."""
    asked = {} if value is None else value
    if not isinstance(asked, Mapping) or any(type(t) is not str for t in (*asked, *asked.values())):
        raise _misfit("realization.representations", "a name by logical state", repr(value))
    return dict(asked)


def _misfit(where: str, expected: str, got: str) -> InvalidInputError:
    return InvalidInputError("settings do not fit", expected=expected, got=got[:200], where=where)


def _places(resources: Resources, unit: ComputeUnit) -> tuple[str, str]:
    """Ids of the host memory and of the device's own memory (the same where there is one)."""
    kinds = {memory.id: memory.kind for node in resources.nodes for memory in node.memory_resources}
    host = next(name for name, kind in kinds.items() if kind == "system-ram")
    own = [name for name in unit.memory_resources if kinds[name] != "system-ram"]
    return host, own[0] if own else host


def _stage_devices(resources: Resources, num_stages: int) -> tuple[Device, ...]:
    """A GPU for each stage: two processes of one are not connected to each other.

    Raises:
        ResourceError: When there are fewer.
    """
    units = [unit for node in resources.nodes for unit in node.compute_units]
    if len(units) < num_stages:
        raise ResourceError(
            "not every stage has a GPU of its own",
            expected=f"{num_stages} GPUs, one for each stage",
            got=f"{len(units)}: {', '.join(unit.id for unit in units)}",
            where="realization.stages",
            hint="use fewer stages, or plan for a machine that is not this one "
            "(device.assumed_vram_bytes)",
        )
    return tuple(
        Device(compute_unit_id=unit.id, device_memory_id=_places(resources, unit)[1])
        for unit in units[:num_stages]
    )


def _record(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a record of settings, with the field types that it declares."""
    allowed = {
        name: get_args(hint) if isinstance(hint, UnionType) else (hint,)
        for name, hint in get_type_hints(kind).items()
    }
    wrong = [
        f"{name}: {value!r} is not {' or '.join(each.__name__ for each in allowed[name])}"
        for name, value in sorted(values.items())
        if _PLAIN.issuperset(allowed.get(name, (object,))) and type(value) not in allowed[name]
    ]
    if wrong:
        raise InvalidInputError("settings do not fit", got="; ".join(wrong), where=where)
    try:
        return kind(**values)
    except TypeError as error:
        raise InvalidInputError("settings do not fit", got=str(error), where=where) from error


def _workload(values: Mapping[str, Any], folder: Path) -> Workload:
    text, ids = values["prompt_text"], values["prompt_token_ids"]
    if (ids is None) == (text is None):
        raise InvalidInputError(
            "a workload has a prompt, once",
            expected="either prompt_text or prompt_token_ids",
            where="workload",
        )
    if ids is None:
        ids = encode_prompt(folder, str(text), chat=bool(values["chat"]))
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise _misfit("workload.prompt_token_ids", "a list of token ids", repr(ids))
    kept = {key: value for key, value in values.items() if key not in ("chat", "prompt_token_ids")}
    if kept.get("prefill_partition") is not None:
        kept["prefill_partition"] = _intervals(kept["prefill_partition"])
    return _record(Workload, kept | {"prompt_token_ids": tuple(ids)}, "workload")


def _intervals(value: Any) -> tuple[tuple[Any, ...], ...]:
    if not isinstance(value, list) or not all(isinstance(item, list) for item in value):
        raise _misfit("workload.prefill_partition", "a list of [start, end]", repr(value))
    return tuple(tuple(item) for item in value)


def _checks(values: Mapping[str, Any], default: Checks) -> Checks:
    """The checks that a person declared; what is absent is as in every plan."""
    declared: dict[str, Any] = {}
    for kind, listed in values.items():
        where = f"checks.{kind}"
        if listed is None:
            continue
        if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
            raise _misfit(where, "a list of mappings", repr(listed))
        if kind == "comparison":
            declared[kind] = parse_limits(listed, where=where)
        else:
            declared[kind] = tuple(_record(CheckLimit, each, where) for each in listed)
    return replace(default, **declared)


def _require_boundaries(checks: Checks, names: Sequence[str]) -> None:
    """Refuse a limit that would never be about anything."""
    for limit in checks.comparison or ():
        if not fnmatch.filter(names, limit.tensors):
            raise _misfit("checks.comparison", "a pattern of boundary names", limit.tensors)
