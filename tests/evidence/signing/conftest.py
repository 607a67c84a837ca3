"""Keys made once; tests that need them are skipped where ``cryptography`` is not installed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.evidence.signing.keys import AllowedKeys, allowed_keys, generate


@dataclass(frozen=True)
class Key:
    id: str
    private: Path
    public: Path

    def allowed(self) -> AllowedKeys:
        return allowed_keys(self.public)


@pytest.fixture(scope="session")
def make_key(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Key]:
    pytest.importorskip("cryptography", reason="cryptography is not installed")

    def make(name: str) -> Key:
        folder = tmp_path_factory.mktemp(name)
        paths = folder / "private.pem", folder / f"{name}.pem"
        return Key(generate(*paths), *paths)

    return make


@pytest.fixture(scope="session")
def key(make_key: Callable[[str], Key]) -> Key:
    return make_key("ours")


@pytest.fixture(scope="session")
def stranger(make_key: Callable[[str], Key]) -> Key:
    return make_key("stranger")
