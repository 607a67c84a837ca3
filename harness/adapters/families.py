"""Model families by name. Imports no torch until an adapter or a reference is asked for."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.errors import InvalidInputError
from harness.plan.layout import AdapterLayout, LayoutRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from harness.realize.adapter import Adapter, Executor

_FAMILIES = {"gemma": "Gemma", "llama": "Llama", "qwen3_5_moe": "Qwen"}
"""Room under ``harness.adapters`` -> how the names of its classes begin."""


class Reference(Protocol):
    """A model loaded the ordinary way, for reference outputs and expected digests."""

    @property
    def executor(self) -> "Executor":
        """The forward code over the ordinarily loaded tensors, with an empty mutable state."""

    @property
    def residents(self) -> "Mapping[str, Mapping[str, torch.Tensor]]":
        """Expected tensors of each immutable or derived representation, by name."""


class ReferenceMaker(Protocol):
    """Loads a family's checkpoint the ordinary way."""

    def ordinary(self, root: Path, request: LayoutRequest) -> Reference:
        """Load every file under ``root``, unselectively."""


def layout_for(family: str) -> AdapterLayout:
    """The torch-free layout of a family.

    Raises:
        InvalidInputError: For an unknown family, listing the known ones.
    """
    layout: AdapterLayout = _made(family, "layout", "Layout")
    return layout


def adapter_for(family: str) -> "Adapter":
    """A new adapter of a family; imports torch.

    Raises:
        InvalidInputError: For an unknown family, listing the known ones.
    """
    adapter: Adapter = _made(family, "load", "Adapter")
    return adapter


def reference_for(family: str) -> ReferenceMaker:
    """The maker of a family's references; imports torch.

    Raises:
        InvalidInputError: For an unknown family, listing the known ones.
    """
    maker: ReferenceMaker = _made(family, "reference", "Reference")
    return maker


def _made(family: str, module: str, kind: str) -> Any:
    if family not in _FAMILIES:
        raise InvalidInputError(
            "unknown model family", expected=", ".join(sorted(_FAMILIES)), got=repr(family)
        )
    room = importlib.import_module(f"harness.adapters.{family}.{module}")
    return getattr(room, _FAMILIES[family] + kind)()
