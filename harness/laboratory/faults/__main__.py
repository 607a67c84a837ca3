"""``python -m harness.laboratory.faults FAULT ...``: the producer, with one fault around it.

Planting happens in this process alone, before the producer starts; nothing inside it knows.
"""

import importlib
import sys

from harness.laboratory.faults.catalogue import require_fault
from harness.run import producer
from harness.run.child import run_child


def main() -> int:
    """Plant the named fault, then be the producer with the arguments that are left."""
    fault = sys.argv.pop(1)
    require_fault(fault)
    importlib.import_module(f"harness.laboratory.faults.{fault}").plant()
    return producer.main()


if __name__ == "__main__":
    run_child(main)
