"""Two scales of a quantized bank change places while the residency is filled.

Each number is a right one, at a wrong place: sums and counts of bytes do not show it.
"""

from harness.adapters.common.adapter import FamilyAdapter
from harness.laboratory.faults.wrapping import after
from harness.plan.records import Materialization
from harness.realize.adapter import TensorSource

SCALES = "layers.0.experts.down_row_scales"


def plant() -> None:
    """Wrap the population in this process."""

    def swap(_: None, self: FamilyAdapter, intent: Materialization, source: TensorSource) -> None:
        del source
        scales = self._arenas[intent.id].tensors.get(SCALES)
        if scales is None or intent.role != "required_residency":
            return
        rows = scales.view(len(scales), -1)
        different = (rows != rows[0]).any(dim=1).nonzero()
        other = int(different[0]) if len(different) else 0
        rows[[0, other]] = rows[[other, 0]].clone()

    after(FamilyAdapter, "populate", swap)
