"""Compile every Triton kernel in every shipped configuration for every target; needs no GPU.

Prints registers, stack, shared memory and spills per kernel and target. Exits by 1 where a kernel
spills registers, or wants more shared memory than the target gives one block, without a reason
listed here.
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).resolve().parents[1] / "kernels"
SHARED_LIMIT_BYTES = {
    80: 166_912,
    86: 101_376,
    89: 101_376,
    90: 232_448,
    100: 232_448,
    120: 101_376,
}
"""Of one block, per compute capability: NVIDIA, CUDA C++ Programming Guide, Technical
Specifications per Compute Capability."""
REASONS: dict[tuple[str, str, int], str] = {}
"""Why a (op, variant, target) may spill or exceed the limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """What one variant takes on one target."""

    op: str
    variant: str
    target: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    spill_bytes: int

    @property
    def fault(self) -> str | None:
        """What is wrong with it, unless a reason is listed."""
        if (self.op, self.variant, self.target) in REASONS:
            return None
        if self.spill_bytes:
            return "spills"
        return "shared memory" if self.shared_bytes > SHARED_LIMIT_BYTES[self.target] else None


def ops() -> list[str]:
    """The ops that have Triton kernels."""
    return sorted(path.parent.name for path in KERNELS.glob("*/kernel.py"))


def assemble(ptx: str, target: int) -> tuple[int, int, int]:
    """Registers, stack bytes and spilled bytes of a kernel's PTX."""
    import triton

    suffix = "a" if target >= 90 else ""
    tool = triton.knobs.nvidia.ptxas_blackwell if target >= 100 else triton.knobs.nvidia.ptxas
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as source:
        source.write(ptx)
        source.flush()
        command = [tool.path, "-v", f"-arch=sm_{target}{suffix}", source.name, "-o", os.devnull]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    text = result.stderr
    found = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill", text)
    registers = re.search(r"Used (\d+) registers", text)
    if found is None or registers is None:
        raise RuntimeError(f"ptxas said nothing about registers: {text!r}")
    return int(registers.group(1)), int(found.group(1)), int(found.group(2)) + int(found.group(3))


def compile_for(op: str, variant: Any, target: int) -> Line:
    """Compile one variant and measure it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = variant.kernel
    signature = {name: variant.types.get(name, "constexpr") for name in kernel.signature.parameters}
    source = ASTSource(kernel, signature, constexprs=dict(variant.constants))
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", target, 32),
        options={"num_warps": variant.num_warps, "num_stages": variant.num_stages},
    )
    registers, stack, spilled = assemble(compiled.asm["ptx"], target)
    return Line(
        op=op,
        variant=variant.name,
        target=target,
        registers=registers,
        stack_bytes=stack,
        shared_bytes=compiled.metadata.shared,
        spill_bytes=spilled,
    )


def lines(chosen: list[str], targets: list[int]) -> Iterator[Line]:
    """All variants of the chosen ops on the targets."""
    for op in chosen:
        for variant in importlib.import_module(f"kernels.{op}.kernel").variants():
            for target in targets:
                yield compile_for(op, variant, target)


def main(arguments: list[str] | None = None) -> int:
    """Print the report; 1 when something is at fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--op", action="append", choices=ops(), help="only these ops")
    parser.add_argument("--target", action="append", type=int, choices=sorted(SHARED_LIMIT_BYTES))
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(KERNELS.parent))
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        parser.error("interpreted kernels cannot be compiled; unset TRITON_INTERPRET")
    form = "{:16} {:24} {:>5} {:>9} {:>6} {:>8} {:>7}  {}"
    print(form.format("op", "variant", "sm", "registers", "stack", "shared", "spills", ""))
    faults = 0
    for line in lines(options.op or ops(), options.target or sorted(SHARED_LIMIT_BYTES)):
        faults += line.fault is not None
        reason = REASONS.get((line.op, line.variant, line.target), "")
        cells = (line.registers, line.stack_bytes, line.shared_bytes, line.spill_bytes)
        print(
            form.format(line.op, line.variant, line.target, *cells, line.fault or reason),
            flush=True,
        )
    print(f"{faults} at fault" if faults else "nothing spills, everything fits")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
