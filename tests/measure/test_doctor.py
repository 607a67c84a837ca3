import importlib.machinery
import importlib.util
import json
import os
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.specifiers import SpecifierSet

from harness.cli import main
from harness.errors import NotEvaluableError
from harness.measure import doctor, extras, voids
from harness.measure.doctor import DoctorFinding, diagnose, version_satisfies


def finding(name: str, **arguments) -> DoctorFinding:
    (found,) = [each for each in diagnose(**arguments) if each.name == name]
    return found


def test_every_subject_is_found_here(tmp_path: Path) -> None:
    findings = diagnose(cache_folder=tmp_path)
    names = [each.name for each in findings]
    assert len(set(names)) == len(names)
    assert {
        "python",
        "package torch",
        "package pyarrow",
        "memory",
        "cores",
        "device simulated-accelerator",
        "device cuda-gpu",
        "environment variables",
        "determinism",
        "process memory",
        "cache folder",
        "import name kernels",
        "system",
        "extra remote",
        "extra ray",
    } <= set(names)
    bad = {each.name for each in findings if each.status == "unavailable"}
    assert {name for name in bad if not name.startswith("extra ")} == {"device cuda-gpu"}
    assert "not_executed" in finding("device cuda-gpu").message


@pytest.mark.parametrize("version", ["1.2.3", "2.11", "2.13.0+cpu", "3.11.7", "1.3.8", "1.30", "2"])
@pytest.mark.parametrize(
    "ranges",
    [
        "",
        ">=2.11",
        ">=3.11,<3.14",
        "==1.3.*",
        "!=1.3.*",
        "~=1.2",
        "~=1.2.1",
        ">1.2.3",
        "<=2.11",
        "==2.13.0",
        "!=2.11",
        "==2.11.0",
        "<2.0, >1",
    ],
)
def test_ranges_agree_with_packaging(version: str, ranges: str) -> None:
    assert version_satisfies(version, ranges) == SpecifierSet(ranges).contains(version)


def test_missing_and_wrong_package(monkeypatch) -> None:
    versions = {"torch": None, "numpy": "1.26.4"}
    real = doctor.installed_version
    monkeypatch.setattr(doctor, "installed_version", lambda name: versions.get(name, real(name)))
    assert finding("package torch").status == "unavailable"
    assert "not installed" in finding("package torch").message
    assert finding("package numpy").status == "warning"
    assert finding("package pyarrow").status == "ok"


def test_python_outside_the_range(monkeypatch) -> None:
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.10.2")
    assert finding("python").status == "unavailable"


def test_installed_metadata_comes_first(tmp_path: Path, monkeypatch) -> None:
    info = tmp_path / "inference_harness-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: inference-harness\nVersion: 9\nRequires-Python: >=99\n"
        "Requires-Dist: pyarrow (>=999)\nRequires-Dist: nowhere[x]>=1; extra == 'dev'\n"
        "Requires-Dist: nowhere-else[x]>=1,<2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert finding("python").status == "unavailable"
    assert finding("package pyarrow").status == "warning"
    assert finding("package nowhere-else").status == "unavailable"
    assert "package nowhere" not in [each.name for each in diagnose()]


def test_unknown_requirements_are_said(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGE_ROOT", tmp_path)
    monkeypatch.setattr(doctor, "DISTRIBUTION", "not-installed-anywhere")
    assert finding("packages").status == "warning"


def test_little_memory_and_unreadable_memory(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "memory_limit_bytes", lambda: 1 << 30)
    assert finding("memory").status == "warning"
    assert str(1 << 30) in finding("memory").message

    def unreadable() -> int:
        raise NotEvaluableError("cannot read memory")

    monkeypatch.setattr(doctor, "physical_memory_bytes", unreadable)
    assert finding("memory") == DoctorFinding(
        name="memory", status="unavailable", message="cannot read memory"
    )


def test_unreadable_process_memory(monkeypatch, tmp_path: Path) -> None:
    real = doctor.proc.read_smaps
    monkeypatch.setattr(doctor.proc, "read_smaps", lambda pid: real(pid, proc=tmp_path))
    assert finding("process memory").status == "unavailable"


def test_variables_are_listed(monkeypatch) -> None:
    for name in doctor.allowed_variables(os.environ):
        monkeypatch.delenv(name)
    assert finding("environment variables").status == "ok"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert finding("environment variables").status == "warning"
    assert "OMP_NUM_THREADS=3" in finding("environment variables").message


@pytest.mark.parametrize(
    ("text", "status"),
    [("[always] madvise never", "warning"), ("always [madvise] never", "ok"), (None, "ok")],
)
def test_huge_pages(tmp_path: Path, monkeypatch, text: str | None, status: str) -> None:
    path = tmp_path / "enabled"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(doctor, "_HUGE_PAGES", path)
    assert finding("transparent huge pages").status == status


def test_cache_folder(tmp_path: Path) -> None:
    wanted = tmp_path / "not" / "yet"
    assert finding("cache folder", cache_folder=wanted).status == "ok"
    assert list(tmp_path.iterdir()) == []
    assert finding("cache folder", cache_folder=Path("/proc/nothing")).status == "unavailable"
    (tmp_path / "file").write_text("")
    blocked = finding("cache folder", cache_folder=tmp_path / "file" / "below")
    assert blocked.status == "unavailable"
    assert finding("cache folder").status == "warning"


def test_kernels_of_another_project(tmp_path: Path, monkeypatch) -> None:
    assert finding("import name kernels").status == "ok"
    real = doctor.installed_version
    monkeypatch.setattr(
        doctor, "installed_version", lambda name: "0.1" if name == "kernels" else real(name)
    )
    both = finding("import name kernels")
    assert (both.status, "0.1" in both.message) == ("warning", True)
    other = tmp_path / "kernels" / "__init__.py"
    spec = importlib.machinery.ModuleSpec("kernels", None, origin=str(other))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    wrong = finding("import name kernels")
    assert (wrong.status, str(other.parent) in wrong.message) == ("unavailable", True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert finding("import name kernels").status == "unavailable"


@pytest.fixture
def sound_machine(tmp_path: Path, monkeypatch) -> Path:
    """A folder that stands for the machine's, on which nothing voids a claim."""
    monkeypatch.setattr(voids, "PRELOADED", tmp_path / "ld.so.preload")
    monkeypatch.setattr(voids, "CPUINFO", tmp_path / "cpuinfo")
    for name in VOIDING:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


VOIDING = {
    "NVIDIA_TF32_OVERRIDE": ("1", "0"),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": ("1", "0"),
    "OMP_DYNAMIC": ("TRUE", "FALSE"),
    "TRITON_INTERPRET": ("1", ""),
    "LD_PRELOAD": ("/private/folder/lib.so", ""),
    "ONEDNN_DEFAULT_FPMATH_MODE": ("BF16", "STRICT"),
    "ONEDNN_MAX_CPU_ISA": ("AVX2", "ALL"),
    "MKL_ENABLE_INSTRUCTIONS": ("SSE4_2", ""),
    "MKL_CBWR": ("COMPATIBLE", "OFF"),
    "OPENBLAS_CORETYPE": ("Haswell", ""),
}


@pytest.mark.parametrize("name", VOIDING)
def test_a_variable_voids_determinism_unless_it_is_off(
    sound_machine: Path, monkeypatch, name: str
) -> None:
    bad, harmless = VOIDING[name]
    assert finding("determinism").status == "ok"
    monkeypatch.setenv(name, harmless)
    assert finding("determinism").status == "ok"
    monkeypatch.setenv(name, bad)
    found = finding("determinism")
    assert (found.status, name in found.message) == ("warning", True)
    assert "/private" not in found.message


def test_foreign_code_in_every_process_voids_determinism(sound_machine: Path, monkeypatch) -> None:
    (sound_machine / "ld.so.preload").write_text("\n")
    assert finding("determinism").status == "ok"
    (sound_machine / "ld.so.preload").write_text("/usr/lib/spy.so\n")
    monkeypatch.setenv("OMP_DYNAMIC", "true")
    found = finding("determinism")
    assert found.status == "unavailable"
    assert "OMP_DYNAMIC" in found.message


def test_cores_of_different_kinds_void_determinism(sound_machine: Path) -> None:
    alike = "processor : 0\nflags : sse avx\n\nprocessor : 1\nflags : avx sse\n"
    (sound_machine / "cpuinfo").write_text(alike)
    assert finding("determinism").status == "ok"
    (sound_machine / "cpuinfo").write_text(alike + "\nprocessor : 2\nflags : sse\n")
    assert "2 different instruction sets" in finding("determinism").message


def test_the_command_refuses_where_determinism_is_void(
    sound_machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["doctor", "--json", "--cache", str(sound_machine)]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["can_claim_determinism"] is True
    (sound_machine / "ld.so.preload").write_text("/usr/lib/spy.so\n")
    assert main(arguments) == 3
    assert json.loads(capsys.readouterr().out)["can_claim_determinism"] is False


def test_an_extra_that_is_not_here_is_said_with_what_it_is_for_and_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"fsspec": "1.0", "s3fs": None}
    monkeypatch.setattr(extras, "installed_version", lambda name: versions.get(name, "1.0"))
    found = finding("extra remote")
    assert found.status == "unavailable"
    assert "not here: s3fs;" in found.message
    assert "S3" in found.message
    assert "inference-harness[remote]" in found.message
    assert finding("extra submitit").status == "ok"


def test_every_extra_of_the_project_has_a_purpose(repo_root: Path) -> None:
    project = tomllib.loads((repo_root / "pyproject.toml").read_text())["project"]
    assert {*extras.PURPOSES} == {*project["optional-dependencies"]} - {"dev"}


def test_extras_are_those_of_the_installed_project_where_there_is_no_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = ["numpy>=2", 's3fs>=1; extra == "remote"', "ray ; extra == 'ray'"]
    monkeypatch.setattr(extras.importlib.metadata, "requires", lambda name: listed)
    found = {each.name: each for each in extras.find_extras("x", tmp_path)}
    assert {*found["remote"].missing, *(p.split()[0] for p in found["remote"].installed)} == {
        "s3fs"
    }
    assert found["joblib"].missing == found["joblib"].installed == ()


def test_little_disk_is_a_caveat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    found = finding("cache folder", cache_folder=tmp_path)
    assert found.status == "warning"
    assert "1048576 bytes are free" in found.message


def test_another_system_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.platform, "system", lambda: "Darwin")
    assert finding("system").status == "unavailable"
    assert "running needs Linux" in finding("system").message
    assert main(["doctor"]) == 3
