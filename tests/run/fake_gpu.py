"""Runs a child's module with a GPU that is not there: ``fake_gpu.py -m MODULE ARGUMENTS``.

Replaced are the driver's seam, and the group between GPUs where it is made; nothing above them:
what decides about blocks, transfers, planes and the device's ledger is the code that runs on a GPU.
"""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "state"))
sys.path.insert(0, str(Path(__file__).parents[1] / "stages"))

from fake_driver import FakeDriver
from fake_nccl import FakeGroup

from harness.run import devices
from harness.stages import carriers

CAPACITY_BYTES = 1 << 30

if __name__ == "__main__":
    devices.CudaDriver = lambda uuid: FakeDriver(CAPACITY_BYTES)  # type: ignore[assignment,misc]
    carriers.nccl_group = FakeGroup  # type: ignore[assignment]
    module, sys.argv = sys.argv[2], [sys.argv[2], *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
