"""A producer's place in a chain of stages: it meets the others, and runs its steps in turn.

    meet -> handshake -> (realize) -> open -> prefill, decodes -> rows of what crossed

Nothing is loaded before every stage has said that it is of one chain. Knows a plan's stages, no
model and no verdict.
"""

import socket
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from typing import cast

import torch
from torch._C._distributed_c10d import Store

from harness.errors import NotEvaluableError
from harness.evidence.source import package_digest
from harness.measure.environment import observe_facts
from harness.plan.layout import REFERENCE_OUTPUTS, AdapterLayout
from harness.plan.nodes import fact_text, has_nodes
from harness.plan.records import Plan, TimeoutsS
from harness.plan.request import layout_request
from harness.realize.adapter import Executor
from harness.run.child import say
from harness.run.conditions import machine_conditions
from harness.run.devices import ComputeDevice
from harness.run.job import Place
from harness.run.kernel_library import library_facts
from harness.stages import carriers
from harness.stages.carriers import DeviceCarrier
from harness.stages.chain import PlaneForm, RangeExecutor, Stage
from harness.stages.frames import nonce_number
from harness.stages.handshake import Greeting, shake_hands
from harness.stages.rendezvous import Meeting, join
from harness.stages.transport import Transport
from harness.stages.warm import WarmSteps
from harness.state.digests import tensor_digest
from harness.state.driver import Driver

Row = dict[str, object]
HARNESS, INSTRUCTION_SET, TORCH = "harness", "instruction_set", "torch"


class ChainPlace:
    """One stage's end of a chain, from the meeting on."""

    def __init__(
        self,
        place: Place,
        *,
        whole: Plan,
        own: Plan,
        layout: AdapterLayout,
        device: ComputeDevice,
        listener: socket.socket | None,
    ) -> None:
        """Meet the other stages, compare what each of them is, and connect with neighbours.

        Args:
            place: Of this process.
            whole: The plan with all its stages.
            own: This stage's part of it.
            layout: Of the plan's family.
            device: Where this stage executes.
            listener: The first stage's, where it listens already; taken over.

        Raises:
            NotEvaluableError: When the port is in use, or planes cannot travel between devices.
            InvalidInputError: When the stages are not of one chain.
            PeerError: When another stage is gone, silent or out of turn.
        """
        timeouts, num_stages = whole.timeouts, len(whole.stages or ())
        assert timeouts is not None
        self._place = place
        self._machine = machine_rows() if has_nodes(whole) else None
        self._timeouts: TimeoutsS = timeouts
        self.form = replace(plane_form(own, layout), device=device.device)
        say("meeting")
        meeting = Meeting(
            stage=place.number,
            num_stages=num_stages,
            port=place.port,
            lead_host=place.lead_host,
            own_host=place.own_host,
            timeout_s=float(timeouts.stage_wait_s or 0),
            start_timeout_s=float(timeouts.stage_start_s or 0),
        )
        self._transport = join(meeting, listener)
        spec = own.adapter_data.spec
        greeting = greeting_of(
            number=place.number,
            num_stages=num_stages,
            nonce=place.nonce,
            plan_digest=whole.digest,
            form=self.form,
            start_layer=spec.start_layer,
            end_layer=spec.end_layer,
            kernel_set=None if whole.determinism is None else whole.determinism.kernel_set,
            driver=device.driver,
        )
        self.greetings = shake_hands(self._transport, greeting, whole.adapter_data.spec.end_layer)
        if device.driver is not None:
            # Before the baseline: what the library takes for itself is no growth then.
            self._transport.carry(
                partial(_between_devices, meeting), device.device, timeout_s=meeting.start_timeout_s
            )
        self._stage: Stage | None = None

    @property
    def transport(self) -> Transport:
        """This stage's end of the group."""
        return self._transport

    def warm_steps(self, executor: Executor) -> WarmSteps:
        """How a throwaway executor runs, alone."""
        ranged = cast(RangeExecutor, executor)
        return WarmSteps(ranged, self.form, is_first=self._place.number == 0)

    def steps(self, executor: Executor) -> Stage:
        """How the realized executor runs, in turn with the other stages."""
        self._stage = Stage(
            cast(RangeExecutor, executor),
            self._transport,
            nonce=nonce_number(self._place.nonce),
            form=self.form,
            digest=tensor_digest,
            start_timeout_s=float(self._timeouts.stage_start_s or 0),
        )
        return self._stage

    @property
    def planes(self) -> str:
        """Name of the library that carries the planes."""
        return self._transport.planes

    def settle(self) -> None:
        """Wait until every stage has taken what was sent to it."""
        self._transport.finish()

    def close(self) -> None:
        """End what still holds a device; the chain is at its end, or broken."""
        self._transport.close()

    def rows(self, steps: Sequence[Row]) -> dict[str, list[Row]]:
        """Rows of the tables that only a stage writes, where ``steps`` are those of its steps."""
        crossings, times = (
            ([], []) if self._stage is None else (self._stage.crossings, self._stage.times)
        )
        where = ("repetition", "phase", "step")
        return {
            **({"machine": self._machine} if self._machine is not None else {}),
            "stage_greetings": [greeting_row(greeting) for greeting in self.greetings],
            "crossings": [asdict(crossing) for crossing in crossings],
            "stage_times": [
                {name: step[name] for name in where} | asdict(time)
                for step, time in zip(steps, times, strict=True)
            ],
        }


def machine_rows() -> list[Row]:
    """Rows of ``machine``: what this process sees of the machine that it runs on."""
    return [{"name": name, "value": fact_text(fact)} for name, fact in observe_facts().items()]


def _between_devices(meeting: Meeting, store: Store) -> DeviceCarrier:
    bound = timedelta(seconds=meeting.start_timeout_s)
    return DeviceCarrier(
        carriers.nccl_group(store, meeting.stage, meeting.num_stages, bound),
    )


def greeting_of(
    *,
    number: int,
    num_stages: int,
    nonce: str,
    plan_digest: str,
    form: PlaneForm,
    start_layer: int,
    end_layer: int,
    kernel_set: str | None,
    driver: Driver | None = None,
) -> Greeting:
    """What a stage of this process says of itself, and of the library that will compute."""
    conditions = machine_conditions(driver, library_facts(kernel_set).get("library"))
    return Greeting(
        stage=number,
        num_stages=num_stages,
        nonce=nonce,
        plan_digest=plan_digest,
        # Stages of several instruction sets would have the bits of none.
        versions={
            HARNESS: package_digest() or "unknown",
            INSTRUCTION_SET: conditions["instruction_set"],
            TORCH: conditions["torch_build"],
        },
        dtype=str(form.dtype).removeprefix("torch."),
        width=form.width,
        start_layer=start_layer,
        end_layer=end_layer,
    )


def greeting_row(greeting: Greeting) -> Row:
    """A row of ``stage_greetings``."""
    return {
        "stage": greeting.stage,
        "num_stages": greeting.num_stages,
        "nonce": greeting.nonce,
        "plan_digest": greeting.plan_digest,
        "start_layer": greeting.start_layer,
        "end_layer": greeting.end_layer,
        "dtype": greeting.dtype,
        "width": greeting.width,
        "package_digest": greeting.versions.get(HARNESS, "unknown"),
        "instruction_set": greeting.versions.get(INSTRUCTION_SET, "unknown"),
        "torch_build": greeting.versions.get(TORCH, "unknown"),
    }


def plane_form(plan: Plan, layout: AdapterLayout) -> PlaneForm:
    """What the planes between stages are, as the plan's reference outputs have them.

    Raises:
        NotEvaluableError: When the plan asks for no reference outputs.
    """
    for intent in plan.materializations:
        if intent.representation == REFERENCE_OUTPUTS:
            state, form = intent.logical_state_id, intent.representation
            for spec in layout.tensors(layout_request(plan), state, form, ()):
                if spec.name == "prefill.plane":
                    return PlaneForm(width=spec.shape[1], dtype=getattr(torch, spec.dtype))
    raise NotEvaluableError("the plan asks for no reference outputs")
