"""What a machine has: resources that a plan can be bound to, and facts for the record.

Reads an environment document, a record that holds one, or a published result of the R1 schema.
Measures nothing (that is ``measure``'s work).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.canonical import read_json
from harness.errors import InvalidInputError, PlanError
from harness.plan.documents import from_document, to_document
from harness.plan.published.result_r1 import RESULT_SCHEMA
from harness.plan.records import Finding, Resources
from harness.plan.schema import schema_findings

SCHEMA = "harness.environment/1"
RECORD_PREDICATE_TYPE = "urn:harness:record:1"
MAX_ENVIRONMENT_BYTES = 4 << 20
_RESOURCES_SCHEMA_ID = "urn:harness:plan:1#/$defs/resources"

Fact = str | int | bool | None


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The resources of one machine (or of several nodes), and facts about it."""

    resources: Resources
    facts: Mapping[str, Fact]


def environment_document(environment: Environment) -> dict[str, Any]:
    """Write an environment as a document of schema ``harness.environment/1``."""
    resources = environment.resources
    return {
        "schema": SCHEMA,
        "resources": {"swarm_id": resources.swarm_id, "nodes": to_document(resources.nodes)},
        "facts": dict(environment.facts),
    }


def parse_environment(document: Any, *, where: str) -> Environment:
    """Read an environment out of a parsed document of any of the three kinds.

    Args:
        document: An environment document, a record statement, or a published R1 result.
        where: What is being read, for error messages.

    Raises:
        InvalidInputError: When it holds no valid environment, with every violation.
    """
    if isinstance(document, Mapping):
        if document.get("predicateType") == RECORD_PREDICATE_TYPE:
            predicate = document.get("predicate")
            inner = predicate.get("environment") if isinstance(predicate, Mapping) else None
            return _native(inner, where=f"{where} (predicate.environment)")
        if document.get("schema") == RESULT_SCHEMA:
            return _published(document, where=where)
        if document.get("schema") == SCHEMA:
            return _native(document, where=where)
    raise InvalidInputError(
        "not an environment",
        expected=f"a document of schema {SCHEMA}, a record, or a published result",
        where=where,
    )


def load_environment(path: Path) -> Environment:
    """Read an environment file (see :func:`parse_environment`)."""
    return parse_environment(read_json(path, max_bytes=MAX_ENVIRONMENT_BYTES), where=str(path))


def _native(document: Any, *, where: str) -> Environment:
    findings = schema_findings("urn:harness:environment:1", document)
    if findings:
        raise PlanError("not a valid environment document", findings, where=where)
    return _build(document["resources"], document["facts"], where=where)


def _published(document: Mapping[str, Any], *, where: str) -> Environment:
    outer = document.get("resources")
    inner = outer.get("resources") if isinstance(outer, Mapping) else None
    findings = schema_findings(_RESOURCES_SCHEMA_ID, inner)
    if findings:
        raise PlanError("not a valid published result", findings, where=f"{where} (resources)")
    physical = outer.get("physical") if isinstance(outer, Mapping) else None
    # A host's name is nobody's business; the other scalars are facts of the machine.
    facts = {
        name: value
        for name, value in (physical if isinstance(physical, Mapping) else {}).items()
        if isinstance(value, (str, int)) and name != "hostname"
    }
    assert isinstance(inner, Mapping)
    return _build(inner, facts, where=where)


def _build(
    resources_document: Mapping[str, Any], facts: Mapping[str, Fact], *, where: str
) -> Environment:
    resources = from_document(Resources, resources_document)
    findings = sorted(_ambiguities(resources))
    if findings:
        raise PlanError("environment is ambiguous", findings, where=where)
    return Environment(resources=resources, facts=dict(facts))


def _ambiguities(resources: Resources) -> Iterator[Finding]:
    units = [unit for node in resources.nodes for unit in node.compute_units]
    memories = [memory for node in resources.nodes for memory in node.memory_resources]
    for what, ids in (
        ("node", [node.id for node in resources.nodes]),
        ("compute unit", [unit.id for unit in units]),
        ("memory", [memory.id for memory in memories]),
        ("device UUID", [unit.device_uuid for unit in units if unit.device_uuid is not None]),
    ):
        for repeated in (name for name, count in Counter(ids).items() if count > 1):
            yield Finding(
                path="$.resources.nodes", rule="environment", message=f"two of {what} {repeated}"
            )
    for index, node in enumerate(resources.nodes):
        own = {memory.id for memory in node.memory_resources}
        for unit in node.compute_units:
            for name in unit.memory_resources:
                if name not in own:
                    yield Finding(
                        path=f"$.resources.nodes[{index}]",
                        rule="environment",
                        message=f"unit {unit.id} names memory {name}, which its node lacks",
                    )
