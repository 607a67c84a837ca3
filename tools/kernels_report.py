"""Compile every Triton kernel in every shipped configuration for every target; needs no GPU.

Prints registers, stack, shared memory and spills per kernel and target. Exits by 1 where a kernel
spills registers, or wants more shared memory than the target gives one block, without a reason
listed here. With ``--quick`` a part: every variant for the oldest and the newest target and, in
turn, for one of those between.
"""

import argparse
import contextlib
import importlib
import io
import multiprocessing
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

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
QUICK_TARGETS = (min(SHARED_LIMIT_BYTES), max(SHARED_LIMIT_BYTES))
"""Compiled for in every case: the oldest, and the newest."""
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


Job: TypeAlias = tuple[str, int, int]
"""An op, the index of one of its variants, and a target."""


def ops() -> list[str]:
    """The ops that have Triton kernels."""
    return sorted(path.parent.name for path in KERNELS.glob("*/kernel.py"))


def resources(log: str) -> tuple[int, int, int]:
    """Registers, stack bytes and spilled bytes of a kernel, from what ptxas says of it."""
    found = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill", log)
    registers = re.search(r"Used (\d+) registers", log)
    if found is None or registers is None:
        raise RuntimeError(f"ptxas said nothing about registers: {log!r}")
    return int(registers.group(1)), int(found.group(1)), int(found.group(2)) + int(found.group(3))


def variants(op: str) -> list[Any]:
    """The shipped variants of an op."""
    return list(importlib.import_module(f"kernels.{op}.kernel").variants())


def compile_for(op: str, index: int, target: int) -> Line:
    """Compile one variant, as a launch would, and measure it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    variant, log = variants(op)[index], io.StringIO()
    kernel, knobs = variant.kernel, triton.knobs
    signature = {name: variant.types.get(name, "constexpr") for name in kernel.signature.parameters}
    source = ASTSource(kernel, signature, constexprs=dict(variant.constants))
    with knobs.nvidia.scope(), knobs.compilation.scope(), contextlib.redirect_stdout(log):
        # What was compiled before says nothing.
        knobs.nvidia.dump_ptxas_log = knobs.compilation.always_compile = True
        compiled = triton.compile(
            source,
            target=GPUTarget("cuda", target, 32),
            options={"num_warps": variant.num_warps, "num_stages": variant.num_stages},
        )
    registers, stack, spilled = resources(log.getvalue())
    return Line(
        op=op,
        variant=variant.name,
        target=target,
        registers=registers,
        stack_bytes=stack,
        shared_bytes=compiled.metadata.shared,
        spill_bytes=spilled,
    )


def jobs(chosen: list[str], targets: list[int], quick: bool) -> list[Job]:
    """All variants of the chosen ops on the targets, or a part of them."""
    between = [target for target in targets if target not in QUICK_TARGETS]
    found: list[Job] = []
    for op in chosen:
        for index in range(len(variants(op))):
            own = targets
            if quick:
                turn = {between[index % len(between)]} if between else set()
                own = [target for target in targets if target in {*QUICK_TARGETS, *turn}]
            found += [(op, index, target) for target in own]
    return found


def lines(listed: list[Job], workers: int = 1) -> Iterator[Line]:
    """What the jobs give, in their order, by so many processes."""
    if workers == 1:
        yield from (compile_for(*job) for job in listed)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from pool.map(compile_for, *zip(*listed, strict=True))


def main(arguments: list[str] | None = None) -> int:
    """Print the report; 1 when something is at fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--op", action="append", choices=ops(), help="only these ops")
    parser.add_argument("--target", action="append", type=int, choices=sorted(SHARED_LIMIT_BYTES))
    parser.add_argument("--quick", action="store_true", help="a part, for every change")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(KERNELS.parent))
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        parser.error("interpreted kernels cannot be compiled; unset TRITON_INTERPRET")
    form = "{:16} {:24} {:>5} {:>9} {:>6} {:>8} {:>7}  {}"
    print(form.format("op", "variant", "sm", "registers", "stack", "shared", "spills", ""))
    faults = 0
    targets = sorted(options.target or SHARED_LIMIT_BYTES)
    listed = jobs(options.op or ops(), targets, options.quick)
    for line in lines(listed, os.cpu_count() or 1):
        faults += line.fault is not None
        reason = REASONS.get((line.op, line.variant, line.target), "")
        cells = (line.registers, line.stack_bytes, line.shared_bytes, line.spill_bytes)
        print(
            form.format(line.op, line.variant, line.target, *cells, line.fault or reason),
            flush=True,
        )
    print(f"{faults} at fault" if faults else "nothing spills, everything fits")
    if options.quick:
        print(f"a part: {len(listed)} compilations; all of them without --quick")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
