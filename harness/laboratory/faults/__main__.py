"""``python -m harness.laboratory.faults FAULT CHILD ...``: a child, with one fault around it.

Planting happens in this process alone, before the child starts; nothing inside it knows.
"""

import importlib
import sys

from harness.laboratory.faults.catalogue import CHILDREN, require_fault
from harness.run.child import run_child


def main() -> int:
    """Plant the named fault, then be the named child with the arguments that are left."""
    fault, child = sys.argv.pop(1), sys.argv.pop(1)
    require_fault(fault)
    importlib.import_module(f"harness.laboratory.faults.{fault}").plant()
    code: int = importlib.import_module(CHILDREN[child]).main()
    return code


if __name__ == "__main__":
    run_child(main)
