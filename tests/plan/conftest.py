import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

# The sample plan is shared by this folder's tests; importlib mode adds no folder to the path.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def published_bytes(shared_r1: Path) -> bytes:
    """The published plan's file, unpacked."""
    return gzip.decompress((shared_r1 / "frozen-plan.json.gz").read_bytes())


@pytest.fixture(scope="session")
def published_result(shared_r1: Path) -> dict[str, Any]:
    """The published result."""
    return json.loads((shared_r1 / "result.json").read_bytes())
