import os
from pathlib import Path

import psutil
import pytest

from harness.errors import NotEvaluableError
from harness.measure import cpu

V4 = "avx2 fma avx512f avx512bw avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("sse2 avx512_bf16 amx_bf16 " + V4, "AMX_BF16"),
        ("sse2 avx512_bf16 " + V4, "AVX512_BF16"),
        ("sse2 " + V4, "AVX512"),
        ("sse2 avx2 fma avx512f avx512_bf16", "AVX2"),
        ("sse2 avx2 fma", "AVX2"),
        ("sse2 avx2", "SSE"),
        ("sse2 avx", "SSE"),
        ("fpu", "baseline"),
    ],
)
def test_instruction_set_is_the_best_complete_level(flags: str, expected: str) -> None:
    assert cpu.instruction_set({"flags": flags}) == expected


def test_arm() -> None:
    fields = {"Features": "fp asimd bf16", "CPU implementer": "0x41", "CPU part": "0xd0c"}
    assert cpu.instruction_set(fields) == "ASIMD_BF16"
    assert cpu.instruction_set({"Features": "fp asimd"}) == "ASIMD"
    assert cpu.cpu_model(fields) == "processor 0x41 0xd0c"


def test_first_processor_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t:  Some   CPU @ 2GHz\nflags\t\t: fpu sse2\n\n"
        "processor\t: 1\nmodel name\t: Other\nflags\t\t: avx2 fma\n"
    )
    fields = cpu.read_cpuinfo(proc=tmp_path)
    assert cpu.cpu_model(fields) == "Some CPU @ 2GHz"
    assert cpu.instruction_set(fields) == "SSE"


def test_unreadable_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(NotEvaluableError, match="cannot describe the processor"):
        cpu.read_cpuinfo(proc=tmp_path)


def test_cores_follow_the_affinity() -> None:
    allowed = os.sched_getaffinity(0)
    assert cpu.num_usable_cores() <= len(psutil.Process().cpu_affinity())
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert cpu.num_usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(("quota", "expected"), [(0.5, 1), (1.9, 1), (1000.0, None), (None, None)])
def test_cores_follow_the_quota(monkeypatch, quota: float | None, expected: int | None) -> None:
    monkeypatch.setattr(cpu, "cpu_quota", lambda *, proc: quota)
    assert cpu.num_usable_cores() == (expected or len(os.sched_getaffinity(0)))
