"""Reading typed fields from an untrusted mapping, collecting every fault. Knows no model."""

from collections.abc import Mapping
from typing import Any

from harness.errors import PlanError
from harness.plan.records import Finding

_MISSING: Any = object()
_MOST = 1e300


class Fields:
    """One mapping; each field is taken once, and what is left over can be refused.

    A faulty field yields a harmless stand-in, so that reading goes on and finds the rest.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        *,
        rule: str,
        path: str = "$",
        findings: list[Finding] | None = None,
    ) -> None:
        self._path = path
        self._rule = rule
        self.findings: list[Finding] = [] if findings is None else findings
        self.document: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
        if not isinstance(document, Mapping):
            self.findings.append(Finding(path=path, rule=rule, message="is not an object"))
        self._left = set(self.document)

    def refuse(self, name: str, message: str) -> None:
        """Record a fault of one field."""
        self.findings.append(Finding(path=f"{self._path}.{name}", rule=self._rule, message=message))

    def take(self, name: str, default: Any = _MISSING) -> Any:
        """The raw value of a field; absent without a default is a fault, and gives ``None``."""
        self._left.discard(name)
        if name in self.document:
            return self.document[name]
        if default is _MISSING:
            self.refuse(name, "is missing")
            return None
        return default

    def _value(self, name: str, default: Any) -> Any:
        # A null is how published files say "absent".
        value = self.take(name, _MISSING if default is None else default)
        return default if value is None else value

    def size(self, name: str, *, default: int | None = None, most: int = 1 << 31) -> int:
        """A positive integer of at most ``most``; ``default`` stands for absent and null."""
        value = self._value(name, default)
        if value is None and name not in self.document:
            return 1
        if type(value) is not int or not 0 < value <= most:
            self.refuse(name, f"{value!r} is not an integer in [1, {most}]")
            return 1
        return value

    def number(self, name: str, *, default: float | None = None, least: float = 1e-30) -> float:
        """A finite number of at least ``least``; ``default`` stands for absent and null."""
        value = self._value(name, default)
        if value is None and name not in self.document:
            return 1.0
        if type(value) not in (int, float) or not least <= value < _MOST:
            self.refuse(name, f"{value!r} is not a number in [{least}, {_MOST})")
            return 1.0
        return float(value)

    def flag(self, name: str, *, default: bool | None = None) -> bool:
        """A boolean; ``default`` stands for absent and null."""
        value = self._value(name, default)
        if value is None and name not in self.document:
            return False
        if type(value) is not bool:
            self.refuse(name, f"{value!r} is not true or false")
            return False
        return value

    def text(self, name: str, *, default: str | None = None) -> str:
        """A string; ``default`` stands for absent and null."""
        value = self._value(name, default)
        if value is None and name not in self.document:
            return ""
        if not isinstance(value, str):
            self.refuse(name, f"{value!r} is not a string")
            return ""
        return value

    def require(self, supported: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse every field that has none of its supported values; absent is the first of them."""
        for name, values in supported.items():
            value = self.take(name, values[0])
            # Of one type, so that true is not 1.
            if not any(type(value) is type(one) and value == one for one in values):
                wanted = " or ".join(repr(one) for one in values)
                self.refuse(name, f"{value!r} is not supported, only {wanted}")

    def child(self, name: str, document: Any) -> "Fields":
        """Fields of a nested mapping whose faults are collected here."""
        return Fields(
            document, rule=self._rule, path=f"{self._path}.{name}", findings=self.findings
        )

    def nested(self, name: str) -> "Fields":
        """Take a field that is a mapping itself."""
        value = self.take(name)
        return self.child(name, value if name in self.document else {})

    def refuse_rest(self, ignored: frozenset[str] = frozenset()) -> None:
        """Refuse by name every field that was never taken and is not ``ignored``."""
        for name in sorted(self._left - ignored, key=str):
            self.refuse(str(name), "is unknown; it may change the model")

    def raise_if_any(self, problem: str) -> None:
        """Raise one error that lists every fault found, sorted.

        Raises:
            PlanError: When there is any.
        """
        if self.findings:
            raise PlanError(problem, sorted(set(self.findings)))
