"""Starts the producer: loads it, and torch with it, then runs it.

Nothing is collected while it loads: what modules are made of stays, and to look through it for
garbage again and again takes an eighth of the time.
"""

import gc
from importlib import import_module

from harness.run.child import run_child


def main() -> int:
    """Entry of the child process."""
    gc.disable()
    producer = import_module("harness.run.producer")
    gc.enable()
    code: int = producer.main()
    return code


if __name__ == "__main__":
    run_child(main)
