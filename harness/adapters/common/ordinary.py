"""The ordinary, unselective load: what reference outputs and expected digests are made from.

Shares nothing with the realized path's loading: every safetensors file is loaded whole, tensors
are concatenated and cast in plain memory, no arena, no bounded reader. Knows no family.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from harness.errors import CheckpointError
from harness.realize.adapter import Executor


@dataclass(frozen=True, kw_only=True)
class OrdinaryReference:
    """A model loaded the ordinary way."""

    executor: Executor
    residents: Mapping[str, Mapping[str, torch.Tensor]]
    """Expected tensors of each immutable or derived representation, by name."""


def placed(make: Callable[[], dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Tables, computed on the host as a realization computes them, on the default device."""
    device = torch.get_default_device()
    with torch.device("cpu"):
        tables = make()
    return {name: table.to(device) for name, table in tables.items()}


def load_files(root: Path) -> dict[str, torch.Tensor]:
    """Load every safetensors file under ``root`` whole, to the default device.

    Raises:
        CheckpointError: When a tensor is in two files.
    """
    loaded: dict[str, torch.Tensor] = {}
    for path in sorted(root.glob("*.safetensors")):
        for key, tensor in load_file(path, device=str(torch.get_default_device())).items():
            if key in loaded:
                raise CheckpointError("a tensor is in two files", got=key, where=path.name)
            loaded[key] = tensor
    return loaded


def concatenated(
    loaded: Mapping[str, torch.Tensor], recipe: Mapping[str, Sequence[str]], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Concatenate checkpoint tensors along their rows, as a recipe of names to keys says.

    Raises:
        CheckpointError: Listing the tensors that are absent.
    """
    absent = sorted({key for keys in recipe.values() for key in keys} - loaded.keys())
    if absent:
        raise CheckpointError("tensors are absent", got=", ".join(absent))
    return {
        name: torch.cat([loaded[key].to(dtype) for key in keys]) for name, keys in recipe.items()
    }
