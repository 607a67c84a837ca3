"""Loads a module without looking for garbage among what modules are made of.

That stays, and to walk it again and again takes an eighth of the time of large libraries.
"""

import gc
from importlib import import_module
from types import ModuleType


def load_uncollected(name: str) -> ModuleType:
    """The module of this name, imported with the collector off; it is as before afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if was_enabled:
            gc.enable()
