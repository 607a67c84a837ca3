"""A plan that counts how often it is read once it has been sealed.

Interpretation of a plan belongs to set-up. After the seal every attribute access of any of the
plan's records is counted, however the record was reached or kept.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any


class Seal:
    """Counter of accesses; counts only after :meth:`close`."""

    def __init__(self) -> None:
        self.closed = False
        self.num_accesses = 0

    def close(self) -> None:
        """From now on every access counts."""
        self.closed = True

    def open(self) -> None:
        """Allow set-up and writing again; the count stays."""
        self.closed = False


class _Counting:
    """Mixin whose attribute reads report to the seal of its class."""

    _seal: Seal

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            seal = object.__getattribute__(self, "_seal")
            if seal.closed:
                seal.num_accesses += 1
        return object.__getattribute__(self, name)


def watch(plan: Any) -> tuple[Any, Seal]:
    """Rebuild a tree of frozen records so that each counts its accesses; returns it and its seal.

    The rebuilt records are instances of subclasses of the originals and equal among themselves.
    """
    seal = Seal()
    classes: dict[type, type] = {}

    def rebuild(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            kind = type(value)
            if kind not in classes:
                classes[kind] = type(kind.__name__, (_Counting, kind), {"_seal": seal})
            fields = {
                field.name: rebuild(getattr(value, field.name))
                for field in dataclasses.fields(value)
            }
            return classes[kind](**fields)
        if isinstance(value, tuple):
            return tuple(rebuild(item) for item in value)
        if isinstance(value, Mapping):
            return {key: rebuild(item) for key, item in value.items()}
        return value

    return rebuild(plan), seal
