"""Starts the producer: loads it, and torch with it, then runs it."""

from harness.run.child import run_child
from harness.run.uncollected import load_uncollected


def main() -> int:
    """Entry of the child process."""
    code: int = load_uncollected("harness.run.producer").main()
    return code


if __name__ == "__main__":
    run_child(main)
