"""The kernel set of Triton kernels, in a process that does not interpret them."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import kernels.attention.api as attention
import kernels.rms_norm.api as rms_norm
from kernels.kernel_sets import MissingTritonError, UnknownKernelSetError

OPS = sorted(path.parent.name for path in Path(rms_norm.__file__).parents[1].glob("*/kernel.py"))
TARGETS = (80, 86, 89, 90, 100, 120)


@pytest.fixture
def triton() -> object:
    return pytest.importorskip("triton")


def test_no_other_set_imports_triton(repo_root: Path) -> None:
    code = (
        "import sys, importlib, torch\n"
        f"for op in {OPS}: importlib.import_module(f'kernels.{{op}}.api')\n"
        "import kernels.attention.api as a, kernels.rms_norm.api as n\n"
        "a.select('torch-cpu/1'); n.rms_norm(torch.ones(1, 4), None, 1e-5)\n"
        "assert 'triton' not in sys.modules and 'kernels.rms_norm.kernel' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=repo_root, check=True)


def test_says_what_is_missing_and_takes_no_other_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for select in (rms_norm.select, rms_norm.select_add, attention.select):
        with pytest.raises(MissingTritonError, match=r"triton/1.*not installed"):
            select("triton/1")


def test_an_unknown_set_names_those_that_are_built() -> None:
    with pytest.raises(UnknownKernelSetError, match=r"torch-cpu/1, .*triton/1"):
        rms_norm.select("triton/2")


def test_refuses_tensors_that_no_gpu_can_reach(triton: object) -> None:
    with pytest.raises(ValueError, match="CUDA device"):
        rms_norm.rms_norm(torch.ones(1, 4), None, 1e-5, kernel_set="triton/1")


@pytest.mark.parametrize("op", OPS)
def test_no_kernel_is_specialized_to_what_a_step_decides(op: str, triton: object) -> None:
    module = importlib.import_module(f"kernels.{op}.kernel")
    kernels = {id(variant.kernel): variant.kernel for variant in module.variants()}
    for kernel in kernels.values():
        for parameter in kernel.params:
            if not parameter.is_constexpr:
                assert parameter.do_not_specialize, (kernel, parameter.name)
                assert parameter.do_not_specialize_on_alignment, (kernel, parameter.name)


@pytest.mark.parametrize("op", OPS)
def test_every_kernel_of_an_op_is_in_the_report(op: str, triton: object) -> None:
    module = importlib.import_module(f"kernels.{op}.kernel")
    reported = {variant.kernel for variant in module.variants()}
    files = sorted(Path(str(module.__file__)).parent.glob("*kernel.py"))
    defined = {
        value
        for file in files
        for name, value in vars(importlib.import_module(f"kernels.{op}.{file.stem}")).items()
        if name.endswith("_kernel") and not isinstance(value, ModuleType)
    }
    assert reported == defined
    for variant in module.variants():
        named = {*variant.types, *variant.constants}
        assert named == {parameter.name for parameter in variant.kernel.params}, variant.name


def test_a_quick_report_leaves_out_no_variant_and_no_target(triton: object) -> None:
    report = importlib.import_module("tools.kernels_report")
    everything = report.jobs(OPS, list(TARGETS), quick=False)
    assert len(everything) == len(set(everything))
    quick = report.jobs(OPS, list(TARGETS), quick=True)
    assert len(quick) * 2 == len(everything)
    for target in (80, 120):
        assert [job for job in quick if job[2] == target] == [
            job for job in everything if job[2] == target
        ]
    for target in TARGETS:
        assert {job[0] for job in quick if job[2] == target} >= {"attention", "grouped_moe"}


@pytest.mark.slow
def test_processes_report_in_the_same_order(triton: object) -> None:
    report = importlib.import_module("tools.kernels_report")
    listed = report.jobs(["softcap"], [80, 90], quick=False)[:2]
    assert list(report.lines(listed, 2)) == list(report.lines(listed))


def test_the_report_fails_on_spills_and_on_too_much_shared_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = importlib.import_module("tools.kernels_report")

    def line(**changed: int) -> object:
        fields = {"target": 86, "registers": 40, "stack_bytes": 0}
        fields |= {"shared_bytes": 0, "spill_bytes": 0} | changed
        return report.Line(op="softcap", variant="planted", **fields)

    def exit_code(*lines: object) -> int:
        monkeypatch.setattr(report, "jobs", lambda ops, targets, quick: [])
        monkeypatch.setattr(report, "lines", lambda listed, workers: iter(lines))
        return report.main([])

    assert exit_code(line(shared_bytes=101_376)) == 0
    assert exit_code(line(), line(spill_bytes=4)) == 1
    assert exit_code(line(shared_bytes=101_377)) == 1
    assert exit_code(line(shared_bytes=101_377, target=90)) == 0
    assert "1 at fault" in capsys.readouterr().out
    monkeypatch.setitem(report.REASONS, ("softcap", "planted", 86), "because")
    assert exit_code(line(spill_bytes=4)) == 0
    assert "because" in capsys.readouterr().out
