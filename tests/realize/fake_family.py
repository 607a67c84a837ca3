"""A family of one matrix: small enough to plant every fault in it, through the real protocol."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from harness.plan.layout import LayoutRequest, TensorSpec
from harness.plan.records import (
    AdapterData,
    Authority,
    Determinism,
    Execution,
    ForbiddenMaterialization,
    Materialization,
    MemoryExpectations,
    ModelRange,
    Plan,
    RequiredState,
    Resources,
    StateUnit,
    Workload,
)
from harness.realize.adapter import AdapterContext, Choice, Realized, StepOutput, Tap, TensorSource
from harness.state.arena import Memory
from harness.state.ownership import Ownership

SIZE = 16
WEIGHT = TensorSpec(name="w", dtype="float32", shape=(SIZE, SIZE))
STATE = TensorSpec(name="s", dtype="float32", shape=(8, SIZE))
KNOWN: dict[str, Sequence[TensorSpec]] = {
    "native": (TensorSpec(name="w.raw", dtype="float32", shape=(SIZE, SIZE)),),
    "resident": (WEIGHT,),
    "transposed": (TensorSpec(name="wt", dtype="float32", shape=(SIZE, SIZE)),),
    "state": (STATE,),
    "state-snapshot": (STATE,),
}
KNOWN_FORMS = {
    (state, form): specs
    for state in ("state.w", "state.s", "state.b")
    for form, specs in KNOWN.items()
}
SPEC = ModelRange(
    start_layer=0,
    end_layer=1,
    owns_embeddings=True,
    owns_final_norm_head=True,
    model_repository="none/fake",
    revision="0",
)
DETERMINISM = Determinism(
    dtype="float32",
    num_threads=1,
    deterministic_algorithms=True,
    batch_invariant=False,
    kernel_set="none/1",
)
WORKLOAD = Workload(
    prompt_token_ids=(3, 1, 2),
    chunk_rows=2,
    decode_steps=3,
    repetitions=2,
    fresh_realizations=1,
    sampling="greedy",
    max_positions=8,
)
REQUEST = LayoutRequest(
    config={}, spec=SPEC, determinism=DETERMINISM, workload=WORKLOAD, staging="whole"
)


def materialization(identifier: str, **changes: object) -> Materialization:
    values: dict[str, object] = {
        "id": identifier,
        "logical_state_id": "state.w",
        "representation": "resident",
        "memory_resource_id": "vram",
        "expected_bytes": WEIGHT.num_bytes,
        "role": "required_residency",
        "requirement": "required",
        "persistence": "persistent",
    }
    return Materialization(**(values | changes))  # type: ignore[arg-type]


STAGE = materialization(
    "stage",
    representation="native",
    memory_resource_id="ram",
    role="staging",
    persistence="transient",
)
RESIDENT = materialization("resident")
MUTABLE = materialization(
    "mutable",
    logical_state_id="state.s",
    representation="state",
    expected_bytes=STATE.num_bytes,
    role="mutable_authority",
)
SNAPSHOT = materialization(
    "snapshot",
    logical_state_id="state.b",
    representation="state-snapshot",
    expected_bytes=STATE.num_bytes,
    role="required_test_state",
)


def plan(*materializations: Materialization) -> Plan:
    return Plan(
        schema="test",
        plan_version="1",
        digest="sha256:" + "0" * 64,
        model_repository="none/fake",
        model_revision="0",
        resources=Resources(swarm_id="s", nodes=()),
        logical_state_units=(
            StateUnit(id="state.w", semantic_class="immutable_source"),
            StateUnit(id="state.s", semantic_class="mutable_authoritative"),
        ),
        materializations=materializations or (STAGE, RESIDENT, MUTABLE, SNAPSHOT),
        authorities=(
            Authority(
                logical_state_id="state.s", materialization_id="mutable", lineage="state.s@epoch-1"
            ),
        ),
        execution=(
            Execution(
                id="exec",
                strategy_unit="fake/1",
                compute_unit_id="gpu",
                required_state=(
                    RequiredState(
                        logical_state_id="state.w",
                        representations=("resident",),
                        memory_resources=("vram",),
                    ),
                ),
            ),
        ),
        forbidden_persistent_materializations=(
            ForbiddenMaterialization(logical_state_id="state.w", memory_resource_id="ram"),
        ),
        memory_expectations=MemoryExpectations(
            persistent_optional_bytes=0,
            unplanned_persistent_bytes=0,
            unexplained_persistent_host_mirror_bytes=0,
        ),
        adapter_data=AdapterData(spec=SPEC, allowed_tensor_keys=("w",)),
        workload=WORKLOAD,
        determinism=DETERMINISM,
    )


class Source:
    """Hands out one deterministic matrix."""

    def __init__(self) -> None:
        self.reads: list[str] = []

    def begin(self, key: str, target: torch.Tensor) -> Callable[[], None]:
        self.reads.append(key)
        target.copy_(torch.arange(target.numel(), dtype=torch.float32).view_as(target).sin())
        return lambda: None


@dataclass
class FakeAdapter:
    """An honest adapter; tests plant faults by subclassing."""

    layout: object = None
    realized: dict[str, Realized] = field(default_factory=dict)
    populated: set[str] = field(default_factory=set)
    allocated: list[str] = field(default_factory=list)
    context: AdapterContext | None = None

    def begin(self, context: AdapterContext) -> None:
        self.context = context

    def memory_for(self, intent: Materialization) -> Memory:
        assert self.context is not None
        return self.context.memories[intent.memory_resource_id]

    def specs_for(self, intent: Materialization) -> Sequence[TensorSpec]:
        return KNOWN[intent.representation]

    def state_for(self, intent: Materialization) -> str:
        return intent.logical_state_id

    def allocate(self, intent: Materialization) -> Realized:
        self.allocated.append(intent.id)
        arena = self.memory_for(intent).allocate(intent.id, self.specs_for(intent))
        lineage = "state.s@epoch-1" if intent.role == "mutable_authority" else None
        realized = Realized(arena=arena, logical_state_id=self.state_for(intent), lineage=lineage)
        self.realized[intent.id] = realized
        return realized

    def populate(self, intent: Materialization, source: TensorSource) -> None:
        if intent.role == "staging":
            source.begin("w", self.realized[intent.id].arena.tensors["w.raw"])()
        elif intent.role == "required_residency":
            staged = self.realized["stage"].arena.tensors["w.raw"]
            for tensor in self.realized[intent.id].arena.tensors.values():
                tensor.view(-1)[: staged.numel()].copy_(staged.view(-1)[: tensor.numel()])
        self.populated.add(intent.id)

    def unpopulated(self, intent: Materialization) -> Sequence[str]:
        return () if intent.id in self.populated else (f"{intent.id}.w",)

    def release(self, intent: Materialization) -> None:
        del self.realized[intent.id]

    def activate(self, execution: Execution) -> "FakeExecutor":
        return FakeExecutor(
            self.realized["resident"].arena.tensors["w"], self.realized["mutable"].arena.tensors
        )


class FakeExecutor:
    """plane = one_hot(token) w + sum of the state so far; logits = the plane's last row."""

    def __init__(self, weight: torch.Tensor, state: Mapping[str, torch.Tensor]) -> None:
        self.weight, self.state, self.length = weight, state, 0

    def step(
        self,
        token_ids: Sequence[int],
        start_position: int,
        *,
        want_logits: bool,
        tap: Tap | None = None,
    ) -> StepOutput:
        assert start_position == self.length
        planes = []
        for token in token_ids:
            plane = self.weight[token % SIZE] + self.state["s"][: self.length].sum(0)
            self.state["s"][self.length] = plane * 0.1
            self.length += 1
            planes.append(plane)
        stacked = torch.stack(planes)
        return StepOutput(plane=stacked, logits=stacked[-1].clone() if want_logits else None)

    strategy_unit = "fake/1"

    def conditions(self) -> Mapping[str, str]:
        return {"dtype": "float32", "kernel_set": "none/1", "positions": "8"}

    def choose(self, logits: torch.Tensor) -> Choice:
        top = logits.topk(2).values
        return Choice(token=int(logits.argmax()), margin=float(top[0] - top[1]))

    def reset(self) -> None:
        self.state["s"].zero_()
        self.length = 0

    def declared_state(self) -> Mapping[str, torch.Tensor]:
        return self.state

    def frontier(self) -> int:
        return self.length

    def restore_frontier(self, positions: int) -> None:
        self.length = positions

    def ownership(self) -> Sequence[Ownership]:
        return ()

    def observed_authorities(self) -> Mapping[str, str]:
        return {"state.s": "state.s@epoch-1"}


def memories(ram_bytes: int = 1 << 20, vram_bytes: int = 1 << 20) -> dict[str, Memory]:
    return {
        "ram": Memory(resource_id="ram", kind="system-ram", capacity_bytes=ram_bytes),
        "vram": Memory(resource_id="vram", kind="simulated-vram", capacity_bytes=vram_bytes),
    }
