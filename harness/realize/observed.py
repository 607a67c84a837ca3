"""Rows of what was observed beyond bytes: tensors, authorities, executions.

Owners and places are found from addresses of live tensors, not from the plan.
"""

from collections.abc import Iterable, Mapping, Sequence

from harness.plan.records import ComputeUnit, Materialization
from harness.realize.adapter import Executor
from harness.realize.observe import locate
from harness.realize.realizer import Activation
from harness.state.arena import Arena, Memory
from harness.state.digests import tensor_digests
from harness.team import Team

Row = dict[str, object]


def tensor_rows(
    arenas: Mapping[str, Arena], intents: Iterable[Materialization], point: str, team: Team
) -> list[Row]:
    """Hash every tensor of every required residency: rows of the ``tensors`` table."""
    found = [
        (intent.id, name, tensor)
        for intent in intents
        if intent.role == "required_residency" and intent.id in arenas
        for name, tensor in arenas[intent.id].tensors.items()
    ]
    digests = tensor_digests((tensor for *_, tensor in found), team)
    return [
        {
            "materialization_id": identifier,
            "name": name,
            "point": point,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "bytes": tensor.nbytes,
            "digest": digest,
        }
        for (identifier, name, tensor), digest in zip(found, digests, strict=True)
    ]


def owner_of(executor: Executor, arenas: Mapping[str, Arena]) -> str | None:
    """The materialization in which the executor's mutable state lies, if it is one."""
    owners = {
        identifier
        for tensor in executor.declared_state().values()
        for identifier, arena in arenas.items()
        if arena.contains(tensor.data_ptr())
    }
    return owners.pop() if len(owners) == 1 else None


def authority_rows(
    minted: Iterable[tuple[str, str, str]],
    arenas: Mapping[str, Arena],
    memories: Mapping[str, Memory],
    point: str,
) -> list[Row]:
    """Rows of the ``authorities`` table from (state, materialization, lineage)."""
    return [
        {
            "logical_state_id": state,
            "materialization_id": identifier,
            "lineage": lineage,
            "memory_resource_id": (
                locate(arenas[identifier], memories) if identifier in arenas else None
            ),
            "point": point,
        }
        for state, identifier, lineage in minted
    ]


def execution_rows(
    activations: Sequence[Activation],
    units: Sequence[ComputeUnit],
    arenas: Mapping[str, Arena],
    memories: Mapping[str, Memory],
) -> list[Row]:
    """Rows of the ``executions`` table.

    The compute unit is calculated: the first that can execute from the memory in which the
    executor's mutable state was found.
    """
    rows: list[Row] = []
    for activation in activations:
        executor, unit_id = activation.executor, None
        if executor is not None:
            owner = owner_of(executor, arenas)
            place = locate(arenas[owner], memories) if owner is not None else None
            unit_id = next((unit.id for unit in units if place in unit.memory_resources), None)
        rows.append(
            {
                "id": activation.execution.id,
                "strategy_unit": None if executor is None else executor.strategy_unit,
                "compute_unit_id": unit_id,
                "status": "NOT_ACTIVATED" if executor is None else "ACTIVE",
                "detail": activation.detail,
            }
        )
    return rows
