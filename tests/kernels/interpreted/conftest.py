"""Tests of Triton kernels in its interpreter, which a process chooses once, before it imports one.

Each of these tests therefore runs in a child process that has TRITON_INTERPRET set; here its
outcome is reported under its own name. One child runs all that were selected (with several
workers: all of a file), as most of a short one would be its start.
"""

import contextlib
import functools
import importlib.util
import inspect
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

IS_CHILD = os.environ.get("TRITON_INTERPRET") == "1"
RESULTS = "INTERPRETED_TESTS_RESULTS"
FOLDER = Path(__file__).parent
Outcomes = dict[str, tuple[str, str]]
_OUTCOMES = pytest.StashKey[dict[str, Outcomes]]()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In a child: write down what became of a test."""
    path = os.environ.get(RESULTS)
    if not IS_CHILD or path is None or (report.passed and report.when != "call"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    line = {"id": report.nodeid, "outcome": report.outcome, "text": reason}
    with open(path, "a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let infinities and NaNs pass: numpy, which interprets, warns of what a GPU computes."""
    ignored = "ignore::RuntimeWarning:triton.runtime.interpreter"
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """In the parent: report what became of the test in the child, instead of running it."""
    if IS_CHILD:
        return None
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    found = outcomes(pyfuncitem)
    outcome, text = found.get(pyfuncitem.nodeid, ("failed", f"did not end:\n{found[''][1]}"))
    if outcome == "failed":
        pytest.fail(text, pytrace=False)
    if outcome == "skipped":
        pytest.skip(text)
    return True


def outcomes(item: pytest.Item) -> Outcomes:
    """Of the item and all that share its child, which is started for the first of them."""
    by_group = item.session.stash.setdefault(_OUTCOMES, {})
    several = "PYTEST_XDIST_WORKER" in os.environ
    group = str(item.path) if several else ""
    if group not in by_group:
        mates = [
            other.nodeid
            for other in item.session.items
            if FOLDER in other.path.parents and (not several or other.path == item.path)
        ]
        by_group[group] = run_child(mates, item.config.rootpath)
    return by_group[group]


def run_child(ids: list[str], root: Path) -> Outcomes:
    """Run tests by id in a child; under the empty id: what it printed."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))
    }
    with tempfile.TemporaryDirectory() as folder:
        results, names = Path(folder, "results"), Path(folder, "names")
        results.touch()
        names.write_text("\n".join(ids))
        environment |= {"TRITON_INTERPRET": "1", RESULTS: str(results)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"@{names}"]
        child = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, check=False
        )
        found: Outcomes = {"": ("ended", (child.stdout + child.stderr)[-4000:])}
        for line in results.read_text().splitlines():
            entry = json.loads(line)
            if found.get(entry["id"], ("", ""))[0] != "failed":
                found[entry["id"]] = (entry["outcome"], entry["text"])
    return found


@pytest.fixture(scope="session", autouse=True)
def builtins_are_searched_once() -> Iterator[None]:
    """In a child: at each call of a helper the interpreter searches Triton's modules for what it
    replaces, which takes most of a short kernel's time. Their names do not change."""
    if not IS_CHILD:
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

    @functools.cache
    def names(package: Any) -> list[str]:
        return [name for name, value in inspect.getmembers(package) if tl.core.is_builtin(value)]

    def replace(package: Any, builder: Any, scope: Any) -> None:
        for name in names(package):
            value = getattr(package, name)
            if tl.core.is_builtin(value):
                interpreter._patch_attr(package, name, value, builder, scope)

    original = interpreter._patch_builtin
    interpreter._patch_builtin = replace
    yield
    interpreter._patch_builtin = original


ProgramOrder = Callable[[str], contextlib.AbstractContextManager[None]]


@pytest.fixture
def program_order() -> ProgramOrder:
    """``with program_order("reversed")`` or ``"shuffled"``: kernels' programs run in that order."""
    return in_order


@contextlib.contextmanager
def in_order(name: str) -> Iterator[None]:
    from triton.runtime.interpreter import interpreter_builder

    original = interpreter_builder.set_grid_idx

    def permuted(x: int, y: int, z: int) -> None:
        _, size_y, size_z = size = tuple(interpreter_builder.grid_dim)
        count = size[0] * size_y * size_z
        index = (x * size_y + y) * size_z + z
        if name == "reversed":
            index = count - 1 - index
        else:
            index = random.Random(count).sample(range(count), count)[index]
        original(index // (size_y * size_z), index // size_z % size_y, index % size_z)

    interpreter_builder.set_grid_idx = permuted
    try:
        yield
    finally:
        interpreter_builder.set_grid_idx = original


@pytest.fixture
def same_in_any_order(program_order: ProgramOrder) -> Callable[[Callable[[], Any]], None]:
    """Asserts that an op gives equal bits, whatever the order of its programs."""

    def check(op: Callable[[], Any]) -> None:
        import torch

        def bits() -> list[torch.Tensor]:
            result = op()
            return [x.clone() for x in (result if isinstance(result, tuple) else (result,))]

        expected = bits()
        for name in ("reversed", "shuffled"):
            with program_order(name):
                actual = bits()
            for one, other in zip(actual, expected, strict=True):
                assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), name

    return check
