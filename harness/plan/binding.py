"""The binding: which real resource of an environment serves each resource of a plan."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Binding:
    """Plan resource id -> environment resource id, one to one."""

    compute_units: Mapping[str, str]
    memories: Mapping[str, str]
