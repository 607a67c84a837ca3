from pathlib import Path

import pytest

from harness.measure.cgroup import cpu_quota, memory_limit_bytes

UNLIMITED_V1 = "9223372036854771712"


class Fake:
    """A process file system and control group mounts below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proc = folder / "proc"
        (self.proc / "self").mkdir(parents=True)

    def write(self, *, groups: str, mounts: list[tuple[str, str, str, str]]) -> None:
        """``mounts``: (mount name, root, type, super options)."""
        (self.proc / "self" / "cgroup").write_text(groups)
        lines = [
            f"{number} 1 0:{number} {root} {self.folder}/{name} rw,relatime shared:9 - "
            f"{kind} {kind} {options}\n"
            for number, (name, root, kind, options) in enumerate(mounts, start=30)
        ]
        (self.proc / "self" / "mountinfo").write_text(
            "1 0 0:1 / / rw - ext4 /dev/x rw\n" + "".join(lines)
        )

    def limit(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


V2 = [("cg", "/", "cgroup2", "rw,nsdelegate")]
V1 = [("mem", "/", "cgroup", "rw,memory"), ("cpu", "/", "cgroup", "rw,cpu,cpuacct")]


def test_no_groups_no_limit(fake: Fake) -> None:
    assert memory_limit_bytes(proc=fake.proc) is None
    assert cpu_quota(proc=fake.proc) is None


def test_version_2_least_limit_on_the_way_up(fake: Fake) -> None:
    fake.write(groups="0::/a/b\n", mounts=V2)
    fake.limit("cg/a/b/memory.max", "max")
    assert memory_limit_bytes(proc=fake.proc) is None
    fake.limit("cg/a/memory.max", "1000000")
    assert memory_limit_bytes(proc=fake.proc) == 1_000_000
    fake.limit("cg/a/b/memory.max", "2000000")
    assert memory_limit_bytes(proc=fake.proc) == 1_000_000
    fake.limit("cg/memory.max", "900000")
    assert memory_limit_bytes(proc=fake.proc) == 900_000
    fake.limit("cg/other/memory.max", "1")
    assert memory_limit_bytes(proc=fake.proc) == 900_000


def test_version_2_quota(fake: Fake) -> None:
    fake.write(groups="0::/a/b\n", mounts=V2)
    fake.limit("cg/a/b/cpu.max", "max 100000")
    assert cpu_quota(proc=fake.proc) is None
    fake.limit("cg/a/cpu.max", "250000 100000")
    assert cpu_quota(proc=fake.proc) == 2.5
    fake.limit("cg/a/b/cpu.max", "50000 100000")
    assert cpu_quota(proc=fake.proc) == 0.5


def test_version_1(fake: Fake) -> None:
    fake.write(groups="4:memory:/job/x\n3:cpu,cpuacct:/job\n0::/elsewhere\n", mounts=V1)
    fake.limit("mem/job/x/memory.limit_in_bytes", UNLIMITED_V1)
    fake.limit("cpu/job/cpu.cfs_quota_us", "-1")
    fake.limit("cpu/job/cpu.cfs_period_us", "100000")
    assert memory_limit_bytes(proc=fake.proc) is None
    assert cpu_quota(proc=fake.proc) is None
    fake.limit("mem/job/memory.limit_in_bytes", "4096000")
    fake.limit("cpu/job/cpu.cfs_quota_us", "150000")
    assert memory_limit_bytes(proc=fake.proc) == 4_096_000
    assert cpu_quota(proc=fake.proc) == 1.5


def test_both_versions_at_once(fake: Fake) -> None:
    fake.write(groups="4:memory:/x\n0::/y\n", mounts=[*V1, *V2])
    fake.limit("mem/x/memory.limit_in_bytes", "5000")
    fake.limit("cg/y/memory.max", "6000")
    assert memory_limit_bytes(proc=fake.proc) == 5000
    fake.limit("cg/y/memory.max", "4000")
    assert memory_limit_bytes(proc=fake.proc) == 4000


@pytest.mark.parametrize(
    ("root", "group", "folder"),
    [
        ("/docker/abc", "/docker/abc/inner", "cg/inner"),  # the mount shows the container's part
        ("/docker/abc", "/docker/abc", "cg"),
        ("/docker/abc", "/", "cg"),  # the group as seen from inside, the root from outside
        ("/", "/../../outside", "cg"),
    ],
)
def test_group_of_a_container(fake: Fake, root: str, group: str, folder: str) -> None:
    fake.write(groups=f"0::{group}\n", mounts=[("cg", root, "cgroup2", "rw")])
    fake.limit(f"{folder}/memory.max", "7000")
    assert memory_limit_bytes(proc=fake.proc) == 7000


def test_mount_point_with_a_space(fake: Fake) -> None:
    fake.write(groups="0::/\n", mounts=[(r"my\040groups", "/", "cgroup2", "rw")])
    fake.limit("my groups/memory.max", "8000")
    assert memory_limit_bytes(proc=fake.proc) == 8000


@pytest.mark.parametrize("text", ["", "many", "-5", "1 2", "9" * 30])
def test_nonsense_is_no_limit(fake: Fake, text: str) -> None:
    fake.write(groups="0::/\nnonsense\n", mounts=V2)
    fake.limit("cg/memory.max", text)
    fake.limit("cg/cpu.max", f"{text} 0")
    assert memory_limit_bytes(proc=fake.proc) is None
    assert cpu_quota(proc=fake.proc) is None


def test_this_machine_can_be_read() -> None:
    limit, quota = memory_limit_bytes(), cpu_quota()
    assert limit is None or limit > 0
    assert quota is None or quota > 0
