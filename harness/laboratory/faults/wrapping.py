"""How a fault is wrapped around a function or a method of the code under test."""

import functools
from collections.abc import Callable
from typing import Any


def before(owner: Any, name: str, act: Callable[..., object]) -> None:
    """Let ``act`` run first, with the same arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        act(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, wrapper)


def after(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Let ``change`` make what is returned, of the result and the arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return change(original(*args, **kwargs), *args, **kwargs)

    setattr(owner, name, wrapper)
