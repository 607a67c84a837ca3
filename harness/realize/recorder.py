"""The per-step sentinels: digests, counters, comparison with the reference, durations.

Called after each step, outside the step's own duration; what it costs itself is recorded beside
it. Knows outputs and rows of tables; knows no plan, no model and no verdict.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import torch

from harness.measure.clock import monotonic_ns
from harness.realize.adapter import Choice, StepOutput
from harness.realize.compare import compare
from harness.state.digests import count_non_finite, tensor_digest
from harness.state.ownership import Ownership

Row = dict[str, object]


class StepRecorder:
    """Collects the rows of ``steps``, ``step_times``, ``correctness`` and ``ownership``."""

    def __init__(self, reference: Mapping[str, torch.Tensor] | None) -> None:
        """Args: reference: the resident reference outputs (see :class:`ReferenceRows`)."""
        self._reference = ReferenceRows(reference) if reference is not None else None
        self.steps: list[Row] = []
        self.step_times: list[Row] = []
        self.correctness: list[Row] = []
        self.ownership: list[Row] = []
        self.num_nan = 0
        self.num_inf = 0

    def record(
        self,
        output: StepOutput,
        *,
        repetition: int,
        phase: str,
        step: int,
        start_position: int,
        choice: Choice | None,
        duration_ns: int,
        owned: Callable[[], Sequence[Ownership]],
    ) -> None:
        """Record one step, the token chosen after it (``None`` without logits), and who owns what.

        ``owned`` is called here, so that its time counts as the sentinels', not as the step's.
        """
        began = monotonic_ns()
        # The reference outputs are the host's; on a host this copies nothing.
        plane = output.plane.cpu()
        logits = None if output.logits is None else output.logits.cpu()
        where: Row = {"repetition": repetition, "phase": phase, "step": step}
        outputs = {"plane": plane} if logits is None else {"plane": plane, "logits": logits}
        digests = {name: tensor_digest(tensor) for name, tensor in outputs.items()}
        counts = self.count(outputs)
        self.steps.append(
            where
            | {
                "start_position": start_position,
                "num_rows": plane.shape[0],
                "token": None if choice is None else choice.token,
                "plane_digest": digests["plane"],
                "logits_digest": digests.get("logits"),
                "num_nan": sum(nan for nan, _ in counts.values()),
                "num_inf": sum(inf for _, inf in counts.values()),
                "margin": None if choice is None else choice.margin,
            }
        )
        if self._reference is not None:
            for name, actual in outputs.items():
                expected = self._reference.rows(name, phase, step, start_position, plane.shape[0])
                result = compare(actual, expected, non_finite=counts[name])
                # Equal bits have the digest that was just taken; only others are hashed again.
                same = result.num_different == 0
                digest = digests[name] if same else tensor_digest(expected)
                self.correctness.append(
                    where | {"output": name, "fixture_digest": digest} | vars(result)
                )
        self.ownership += [where | asdict(pool) for pool in owned()]
        self.step_times.append(
            where | {"duration_ns": duration_ns, "sentinel_ns": monotonic_ns() - began}
        )

    def count(self, outputs: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, int]]:
        """Count NaN and infinite elements of each output, and add them to the totals."""
        counts = {name: count_non_finite(tensor) for name, tensor in outputs.items()}
        self.num_nan += sum(nan for nan, _ in counts.values())
        self.num_inf += sum(inf for _, inf in counts.values())
        return counts


class ReferenceRows:
    """The reference outputs, cut the way the steps are.

    ``prefill.plane`` [P, H], ``prefill.logits`` [V], ``decode.plane`` [D, H],
    ``decode.logits`` [D, V]; P prompt rows, D decode steps, H hidden size, V vocabulary.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def rows(
        self, output: str, phase: str, step: int, start_position: int, num_rows: int
    ) -> torch.Tensor:
        """The part of the reference that one step's output is compared with."""
        whole = self._tensors[f"{phase}.{output}"]
        if phase == "decode":
            return whole[step : step + 1] if output == "plane" else whole[step]
        if output == "logits":
            return whole
        return whole[start_position : start_position + num_rows]
