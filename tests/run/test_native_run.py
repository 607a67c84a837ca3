"""A whole run whose kernels are a compiled library, and what its absence or change means."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.adapters.llama.layout import LlamaLayout
from harness.canonical import file_digest
from harness.errors import NotEvaluableError
from harness.plan.load import LoadedPlan
from harness.run import kernel_library
from harness.run.fixture import cache_name
from harness.run.runnable import require_runnable
from kernels.native.sources import LIBRARY, built_digest

NATIVE = {"determinism__kernel_set": "native-cpu/1", "determinism__batch_invariant": True}
built = pytest.mark.skipif(built_digest() is None, reason="the native kernels are not built")


@built
@pytest.mark.slow
def test_passes_and_names_the_library(
    run_plan: Callable[..., Any], freeze_plan: Callable[..., LoadedPlan]
) -> None:
    trial = run_plan(freeze_plan(**NATIVE))
    assert trial.code == 0
    (digest,) = trial.store.digests("records")
    predicate = trial.store.read_record(digest)["predicate"]
    assert predicate["applicability_key"]["kernel_set"] == "native-cpu/1"
    library = file_digest(LIBRARY)
    assert predicate["applicability_key"]["instruction_set"].endswith(f"; library {library}")


@built
def test_another_library_is_another_fixture(
    freeze_plan: Callable[..., LoadedPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native, other = freeze_plan(**NATIVE), freeze_plan()
    before = cache_name(native, {}), cache_name(other, {})
    copy = tmp_path / "library"
    copy.write_bytes(LIBRARY.read_bytes() + b"\0")
    find = kernel_library.library_file
    monkeypatch.setattr(kernel_library, "library_file", lambda name: find(name) and copy)
    assert cache_name(native, {}) != before[0]
    assert cache_name(other, {}) == before[1]


def test_what_was_not_built_cannot_be_evaluated_and_says_how_to_build_it(
    freeze_plan: Callable[..., LoadedPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = freeze_plan(**NATIVE).plan
    if built_digest() is not None:
        require_runnable(plan, LlamaLayout())
    monkeypatch.setattr(kernel_library.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotEvaluableError, match="native-cpu/1 is not built") as caught:
        require_runnable(plan, LlamaLayout())
    assert "pip install" in str(caught.value)
    assert caught.value.exit_code == 3
