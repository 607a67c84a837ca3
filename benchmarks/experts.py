"""Bytes of expert weights that a decode step touches a second, beside the memory's bandwidth.

One layer's bank with the dimensions of Qwen3.6-35B-A3B (256 experts, 8 a token), packed NVFP4 and
bfloat16, behind the functions that the adapter calls. Every step routes anew, so the chosen experts come
from memory and not from a cache. Each round runs every contender and both measures of the memory
once, in turn. Prints a table and writes JSON.

    python -m benchmarks.experts --rounds 5 --json out.json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernels.grouped_moe.api import GroupedMoe, select
from kernels.grouped_moe.records import Bank, DenseBank, NvFp4Bank, touched_experts

NUM_EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 256, 8, 2048, 512
MEMORY_BYTES = 512 << 20


@dataclass
class Rates:
    """Bytes a second of one contender, one value a round, and how many experts a step touched."""

    bytes_per_sec: list[float] = field(default_factory=list)
    num_touched: list[int] = field(default_factory=list)


def packed_bank() -> NvFp4Bank:
    """Random codes; scales that keep activations of order one."""

    def codes(rows: int, columns: int) -> torch.Tensor:
        return torch.randint(0, 256, (NUM_EXPERTS, rows, columns // 2), dtype=torch.uint8)

    def block_scales(rows: int, columns: int) -> torch.Tensor:
        bits = torch.randint(0x30, 0x40, (NUM_EXPERTS, rows, columns // 16), dtype=torch.uint8)
        return bits.view(torch.float8_e4m3fn)

    def row_scales(rows: int, columns: int) -> torch.Tensor:
        return torch.full((NUM_EXPERTS, rows), 0.3 * columns**-0.5)

    up, down = (2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE)
    return NvFp4Bank(
        gate_up_codes=codes(*up),
        gate_up_block_scales=block_scales(*up),
        gate_up_row_scales=row_scales(*up),
        down_codes=codes(*down),
        down_block_scales=block_scales(*down),
        down_row_scales=row_scales(*down),
    )


def plain_bank() -> DenseBank:
    """Random bfloat16 weights."""

    def weights(rows: int, columns: int) -> torch.Tensor:
        made = torch.empty((NUM_EXPERTS, rows, columns), dtype=torch.bfloat16)
        return made.uniform_(-(columns**-0.5), columns**-0.5)

    return DenseBank(gate_up=weights(2 * INTERMEDIATE, HIDDEN), down=weights(HIDDEN, INTERMEDIATE))


def run_step(bank: Bank, rows: int, moe: GroupedMoe, rates: Rates) -> None:
    """Route and multiply ``rows`` rows once."""
    x = torch.randn(rows, HIDDEN).bfloat16()
    logits = torch.randn(rows, NUM_EXPERTS)
    began = time.perf_counter()
    routing = moe.route(logits, TOP_K)
    moe.routed(x, routing, bank)
    seconds = time.perf_counter() - began
    touched = len(touched_experts(routing))
    rates.num_touched.append(touched)
    rates.bytes_per_sec.append(touched * bank.bytes_per_expert / seconds)


def read_memory(buffer: torch.Tensor, rates: Rates) -> None:
    """Sum a buffer larger than any cache: each byte is read once."""
    began = time.perf_counter()
    buffer.sum()
    rates.bytes_per_sec.append(buffer.nbytes / (time.perf_counter() - began))


def copy_memory(buffer: torch.Tensor, target: torch.Tensor, rates: Rates) -> None:
    """Copy it: each byte is read once and written once."""
    began = time.perf_counter()
    target.copy_(buffer)
    rates.bytes_per_sec.append(2 * buffer.nbytes / (time.perf_counter() - began))


def summarize(rates: Mapping[str, Rates], args: argparse.Namespace) -> dict[str, Any]:
    """Medians, and each as a share of the best measure of the memory in this run."""
    memory = max(statistics.median(rates[name].bytes_per_sec) for name in ("read", "copy"))
    rows = {}
    for name, one in rates.items():
        rate = statistics.median(one.bytes_per_sec)
        low, high = min(one.bytes_per_sec), max(one.bytes_per_sec)
        rows[name] = {
            "bytes_per_sec_median": rate,
            "bytes_per_sec_min": low,
            "bytes_per_sec_max": high,
            "share_of_memory": rate / memory,
            "touched_experts_median": statistics.median(one.num_touched or [0]),
        }
    return {
        "schema": "harness.benchmark-experts/1",
        "threads": args.threads,
        "rounds": args.rounds,
        "kernel_set": args.kernel_set,
        "torch": torch.__version__,
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "contenders": rows,
    }


def print_table(summary: Mapping[str, Any]) -> None:
    """One line a contender."""
    print(f"threads {summary['threads']}, {summary['instruction_set']}, {summary['kernel_set']}")
    print(f"{'contender':<18} {'GB/s':>7} {'min':>7} {'max':>7} {'of memory':>10} {'experts':>8}")
    for name, row in summary["contenders"].items():
        figures = (row[f"bytes_per_sec_{kind}"] / 1e9 for kind in ("median", "min", "max"))
        cells = " ".join(f"{figure:>7.2f}" for figure in figures)
        touched = f"{row['touched_experts_median']:>8g}"
        print(f"{name:<18} {cells} {row['share_of_memory']:>10.1%} {touched}")


@torch.inference_mode()
def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the comparison, print its table, and return the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernel-set", default="torch-cpu/1")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    packed, plain, moe = packed_bank(), plain_bank(), select(args.kernel_set)
    buffer = torch.ones(MEMORY_BYTES // 4)
    target = torch.empty_like(buffer)
    contenders: dict[str, Callable[[Rates], None]] = {
        "read": lambda rates: read_memory(buffer, rates),
        "copy": lambda rates: copy_memory(buffer, target, rates),
        "nvfp4, 1 row": lambda rates: run_step(packed, 1, moe, rates),
        "nvfp4, 8 rows": lambda rates: run_step(packed, 8, moe, rates),
        "bfloat16, 1 row": lambda rates: run_step(plain, 1, moe, rates),
        "bfloat16, 8 rows": lambda rates: run_step(plain, 8, moe, rates),
    }
    rates = {name: Rates() for name in contenders}
    for run in contenders.values():
        run(Rates())  # first calls allocate and choose primitives
    for _ in range(args.rounds):
        for name, run in contenders.items():
            run(rates[name])
    summary = summarize(rates, args)
    print_table(summary)
    if args.json is not None:
        args.json.write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n")
    return summary


if __name__ == "__main__":
    main()
