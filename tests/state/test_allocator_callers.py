"""There is one allocator, and one way to it: session -> hybrid pool -> page pool."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CALLERS = {
    "PagePool": {"harness/state/hybrid.py"},
    "allocate_pages": {"harness/state/hybrid.py"},
    "free_pages": {"harness/state/hybrid.py"},
    "map_positions": {"harness/state/session.py"},
    "evict_positions": {"harness/state/session.py"},
}
"""Where each is called, or handed on to be called; the names are nothing else's."""

PLANTED_FAULTS = "harness/laboratory/faults/"
"""Wrappers there break the session on purpose, so they must reach into it."""


def calls(source: str) -> Iterator[str]:
    """Names of what is called, or handed on without a call, in ``source``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def callers(root: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {name: set() for name in CALLERS}
    for package in ("harness", "kernels"):
        for path in sorted((root / package).rglob("*.py")):
            for name in calls(path.read_text()):
                where = path.relative_to(root).as_posix()
                if name in found and not where.startswith(PLANTED_FAULTS):
                    found[name].add(where)
    return found


def test_only_the_session_reaches_the_allocator(repo_root: Path) -> None:
    assert callers(repo_root) == CALLERS


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("session.pool.map_positions(0, 1)", "map_positions"),
        ("hand_on(self._pool.evict_positions)", "evict_positions"),
        ("PagePool('x', {})", "PagePool"),
        ("pages.PagePool('x', {})", "PagePool"),
        ("take = anything.allocate_pages", "allocate_pages"),
        ("a.b().free_pages(c)", "free_pages"),
    ],
)
def test_another_caller_would_be_seen(tmp_path: Path, line: str, name: str) -> None:
    path = tmp_path / "harness" / "adapters" / "planted.py"
    path.parent.mkdir(parents=True)
    path.write_text(f"def f():\n    {line}\n")
    found = callers(tmp_path)
    assert {key for key in found if found[key]} == {name}
