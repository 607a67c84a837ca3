import hashlib

import pytest
import torch

from harness.errors import NotEvaluableError
from harness.state import digest_kinds
from harness.state.digest_kinds import digest_function

TENSOR = torch.arange(24, dtype=torch.float32).view(4, 6)


def test_sha256_is_of_the_bytes_in_row_major_order() -> None:
    turned = TENSOR.t()
    expected = "sha256:" + hashlib.sha256(turned.contiguous().numpy().tobytes()).hexdigest()
    assert digest_function("sha256")(turned) == expected


def test_xxh3_is_of_the_same_bytes() -> None:
    xxhash = pytest.importorskip("xxhash")
    expected = xxhash.xxh3_128_hexdigest(TENSOR.t().contiguous().numpy().tobytes())
    assert digest_function("xxh3-128")(TENSOR.t()) == f"xxh3-128:{expected}"


def test_a_kind_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(digest_kinds.importlib, "import_module", absent)
    with pytest.raises(NotEvaluableError, match="not installed"):
        digest_function("xxh3-128")
    with pytest.raises(NotEvaluableError, match="unknown kind"):
        digest_function("md5")
