import getpass
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from harness.errors import ExitCode, InvalidInputError, NotEvaluableError, ResourceError
from harness.measure.environment import (
    WITHHELD,
    DeviceRequest,
    allowed_variables,
    physical_memory_bytes,
    probe_environment,
)
from harness.plan.environment import environment_document, parse_environment

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine of 4 GiB whose control group allows 3."""
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text(f"MemTotal:       {4 * GIB // 1024} kB\nMemFree: 1 kB\n")
    (tmp_path / "cpuinfo").write_text("model name : A CPU\nflags : sse2 avx2 fma\n")
    (tmp_path / "self" / "cgroup").write_text("0::/\n")
    (tmp_path / "self" / "mountinfo").write_text(
        f"30 1 0:30 / {tmp_path}/cg rw shared:9 - cgroup2 cgroup2 rw\n"
    )
    (tmp_path / "cg").mkdir()
    (tmp_path / "cg" / "memory.max").write_text(f"{3 * GIB}\n")
    return tmp_path


def simulated(vram: int | None = GIB, limit: int | None = None) -> DeviceRequest:
    return DeviceRequest(kind="simulated", simulated_vram_bytes=vram, system_ram_limit_bytes=limit)


def capacities(request: DeviceRequest, machine: Path) -> dict[str, tuple[str, int]]:
    environment = probe_environment(request, proc=machine, variables={})
    (node,) = environment.resources.nodes
    return {memory.id: (memory.kind, memory.capacity_bytes) for memory in node.memory_resources}


def test_physical_memory_agrees_with_psutil() -> None:
    assert physical_memory_bytes() == psutil.virtual_memory().total


def test_simulated_accelerator(machine: Path) -> None:
    environment = probe_environment(simulated(), proc=machine, variables={})
    (node,) = environment.resources.nodes
    (unit,) = node.compute_units
    assert node.id == "node0"
    assert (unit.id, unit.kind, unit.device_uuid) == (
        "accelerator0",
        "simulated-accelerator",
        None,
    )
    assert unit.memory_resources == ("node0.ram", "accelerator0.vram")
    assert capacities(simulated(), machine) == {
        "node0.ram": ("system-ram", 3 * GIB),
        "accelerator0.vram": ("simulated-vram", GIB),
    }


def test_plain_cpu(machine: Path) -> None:
    environment = probe_environment(DeviceRequest(kind="cpu"), proc=machine, variables={})
    (unit,) = environment.resources.nodes[0].compute_units
    assert (unit.id, unit.kind, unit.memory_resources) == ("cpu0", "cpu", ("node0.ram",))
    assert capacities(DeviceRequest(kind="cpu"), machine) == {"node0.ram": ("system-ram", 3 * GIB)}


def test_capacity_is_the_least_of_three(machine: Path) -> None:
    def ram(limit: int | None) -> int:
        return capacities(simulated(limit=limit), machine)["node0.ram"][1]

    assert ram(None) == 3 * GIB
    assert ram(2 * GIB) == 2 * GIB
    assert ram(5 * GIB) == 3 * GIB
    (machine / "cg" / "memory.max").write_text("max\n")
    assert ram(None) == 4 * GIB
    (machine / "cg" / "memory.max").write_text(f"{8 * GIB}\n")
    assert ram(None) == 4 * GIB


def test_simulated_memory_must_fit(machine: Path) -> None:
    assert capacities(simulated(3 * GIB), machine)["accelerator0.vram"][1] == 3 * GIB
    with pytest.raises(ResourceError, match="does not fit") as caught:
        capacities(simulated(3 * GIB + 1), machine)
    assert caught.value.exit_code == ExitCode.NOT_EVALUABLE
    assert str(3 * GIB) in str(caught.value)


@pytest.mark.parametrize(
    ("request_", "error", "said"),
    [
        (DeviceRequest(kind="cuda"), NotEvaluableError, "cannot be looked for"),
        (simulated(None), InvalidInputError, "needs a capacity"),
        (simulated(0), InvalidInputError, "not positive"),
        (simulated(limit=-1), InvalidInputError, "not positive"),
        (DeviceRequest(kind="tpu"), InvalidInputError, "unknown kind"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_probed(machine: Path, request_: DeviceRequest, error, said: str) -> None:
    with pytest.raises(error, match=said):
        probe_environment(request_, proc=machine, variables={})


def test_unreadable_memory(tmp_path: Path) -> None:
    with pytest.raises(NotEvaluableError, match="cannot read memory"):
        probe_environment(simulated(), proc=tmp_path)
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\n")
    with pytest.raises(NotEvaluableError, match="MemTotal"):
        probe_environment(simulated(), proc=tmp_path)


def test_facts(machine: Path) -> None:
    facts = probe_environment(
        simulated(), proc=machine, variables={"OMP_NUM_THREADS": "2", "SECRET": "x"}
    ).facts
    assert facts["cpu_model"] == "A CPU"
    assert facts["instruction_set"] == "AVX2"
    assert facts["physical_memory_bytes"] == 4 * GIB
    assert facts["cgroup_memory_limit_bytes"] == 3 * GIB
    assert facts["python_version"] == platform.python_version()
    assert os.uname().release.startswith(facts["kernel_release"])
    assert set(facts["kernel_release"]) <= set("0123456789.")
    assert facts["machine"] == os.uname().machine
    assert facts["env.OMP_NUM_THREADS"] == "2"
    assert not any("SECRET" in name for name in facts)
    assert 1 <= int(facts["num_cores"] or 0) <= (os.cpu_count() or 1)


def test_library_versions_are_those_that_an_import_shows() -> None:
    facts = probe_environment(simulated()).facts
    code = (
        "import json, numpy, pyarrow; print(json.dumps([numpy.__version__, pyarrow.__version__]))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout) == [facts["numpy_version"], facts["pyarrow_version"]]
    assert "torch_version" in facts


def test_document_is_valid_and_comes_back_without_names_of_host_or_user() -> None:
    environment = probe_environment(simulated())
    document = json.loads(json.dumps(environment_document(environment)))
    assert parse_environment(document, where="here") == environment
    text = json.dumps(document["facts"])
    # A very short name could stand for something else.
    for name in (platform.node(), getpass.getuser(), str(Path.home())):
        assert len(name) < 4 or f'"{name}"' not in text


def test_only_listed_variables_with_plain_values() -> None:
    found = allowed_variables(
        {
            "OMP_NUM_THREADS": "4",
            "KMP_AFFINITY": "granularity=fine,compact,1,0",
            "OMP_PLACES": "{0:4},{4:4}",
            "MKL_CBWR": "/home/someone/x",
            "PYTHONHASHSEED": "0\n",
            "MKL_DYNAMIC": "x" * 101,
            "HF_TOKEN": "hf_x",
            "HOSTNAME": "x",
        }
    )
    assert found == {
        "OMP_NUM_THREADS": "4",
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "OMP_PLACES": "{0:4},{4:4}",
        "MKL_CBWR": WITHHELD,
        "PYTHONHASHSEED": WITHHELD,
        "MKL_DYNAMIC": WITHHELD,
    }
