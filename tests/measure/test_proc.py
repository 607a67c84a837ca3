import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from harness.errors import NotEvaluableError
from harness.measure import proc

STATUS = b"""Name:\tpython\nUmask:\t0022\nState:\tS (sleeping)\nPid:\t4711
VmPeak:\t  123456 kB\nVmSize:\t  100000 kB\nVmHWM:\t   60000 kB\nVmRSS:\t   50000 kB
RssAnon:\t   30000 kB\nRssFile:\t   15000 kB\nRssShmem:\t    5000 kB\nVmSwap:\t      12 kB
Threads:\t7\nCpus_allowed_list:\t0-1
"""
STAT = (
    b"4711 (a) R (b c) S 4710 4711 3071 0 -1 4194304 1234 99 5 2 10 20 30 40 20 0 7 0 87248 "
    b"3133440 386 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0\n"
)
FIELDS = b"""Size:               1024 kB
KernelPageSize:        4 kB
Rss:                 512 kB
Pss:                 300 kB
Shared_Clean:        100 kB
Shared_Dirty:         12 kB
Private_Clean:       200 kB
Private_Dirty:       200 kB
Anonymous:           180 kB
Shared_Hugetlb:     2048 kB
Private_Hugetlb:    4096 kB
Swap:                 16 kB
THPeligible:           0
VmFlags: rd mr mw me
"""
ZERO = FIELDS.replace(b"512", b"0").replace(b"2048", b"0").replace(b"4096", b"0")
SMAPS = (
    b"555c2e6e2000-555c2e6e4000 r-xp 00002000 fe:0a 260386                     /opt/a b\\012c.so\n"
    + FIELDS
    + b"7fcf74d78000-7fcf74e78000 rw-s 00000000 00:01 1047      /dev/zero (deleted)\n"
    + ZERO
    + b"7fff1aff4000-7fff1b015000 rw-p 00000000 00:00 0 \n"
    + ZERO
)


@pytest.fixture
def idle() -> Iterator[psutil.Process]:
    """A process that has come to rest."""
    code = "import json, threading, sys; print(1, flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        found = psutil.Process(child.pid)
        while found.status() != psutil.STATUS_SLEEPING:
            time.sleep(0.01)
        yield found


def test_status_sample() -> None:
    assert proc.parse_status(STATUS) == proc.ProcessStatus(
        vm_rss_bytes=51_200_000,
        vm_hwm_bytes=61_440_000,
        rss_anon_bytes=30_720_000,
        rss_file_bytes=15_360_000,
        rss_shmem_bytes=5_120_000,
        vm_swap_bytes=12_288,
        num_threads=7,
    )


def test_stat_sample_with_parentheses_in_the_name() -> None:
    found = proc.parse_stat(STAT)
    assert found == proc.ProcessStat(
        state="S", minor_faults=1234, major_faults=5, start_ticks=87248
    )
    assert not found.has_ended
    assert proc.parse_stat(STAT.replace(b") S ", b") Z ")).has_ended


def test_smaps_sample() -> None:
    library, shared, anonymous = proc.parse_smaps(SMAPS)
    assert library == proc.MappingUsage(
        mapping=proc.MemoryMapping(
            start=0x555C2E6E2000,
            end=0x555C2E6E4000,
            permissions="r-xp",
            offset_bytes=0x2000,
            device=(0xFE, 0x0A),
            inode=260386,
            path="/opt/a b\nc.so",
        ),
        rss_bytes=524_288,
        anonymous_bytes=184_320,
        private_bytes=409_600,
        hugetlb_bytes=6_291_456,
        swap_bytes=16_384,
    )
    assert library.held_bytes == 524_288 + 6_291_456 + 16_384
    assert library.mapping.size_bytes == 8192
    assert library.mapping.identity == (0xFE, 0x0A, 260386)
    assert (shared.mapping.path, shared.rss_bytes) == ("/dev/zero (deleted)", 0)
    assert (anonymous.mapping.path, anonymous.mapping.inode) == ("", 0)


def test_maps_sample_equals_the_headers_of_smaps() -> None:
    headers = b"\n".join(line for line in SMAPS.split(b"\n") if b"-" in line.split(b" ")[0])
    assert proc.parse_maps(headers) == tuple(use.mapping for use in proc.parse_smaps(SMAPS))


def test_path_with_bytes_that_are_no_text_has_a_text_form() -> None:
    (mapping,) = proc.parse_maps(b"1000-2000 r--p 00000000 fe:00 5  /a\xff\xfe\n")
    assert mapping.path == "/a\\xff\\xfe"
    mapping.path.encode()


@pytest.mark.parametrize(
    ("parse", "data"),
    [
        (proc.parse_status, STATUS.replace(b"RssShmem", b"Other")),
        (proc.parse_stat, b"4711 (a) S 1 2"),
        (proc.parse_stat, b""),
        (proc.parse_maps, b"not a mapping\n"),
        (proc.parse_smaps, b"Rss: many kB\n"),
        (proc.parse_smaps, FIELDS),
        (proc.parse_smaps, SMAPS.replace(b"180 kB", b"many kB")),
        (proc.parse_smaps, SMAPS.replace(b"Anonymous", b"Something")),
    ],
)
def test_malformed_file_is_a_clear_error(parse, data: bytes) -> None:
    with pytest.raises(NotEvaluableError, match="cannot understand"):
        parse(data, where="here")


def test_kernel_thread_or_zombie_has_ended() -> None:
    with pytest.raises(NotEvaluableError, match="has ended"):
        proc.parse_status(b"Name:\tkthreadd\nThreads:\t1\n")


def test_idle_process_agrees_with_psutil(idle: psutil.Process) -> None:
    usages = proc.read_smaps(idle.pid)
    info = idle.memory_full_info()
    assert sum(usage.private_bytes for usage in usages) == info.uss
    expected: dict[str, list[int]] = {}
    for row in idle.memory_maps(grouped=False):
        expected.setdefault(row.addr, []).extend([row.rss, row.anonymous, row.swap])
    found = {
        f"{usage.mapping.start:08x}-{usage.mapping.end:08x}": [
            usage.rss_bytes,
            usage.anonymous_bytes,
            usage.swap_bytes,
        ]
        for usage in usages
    }
    assert found == expected
    assert tuple(usage.mapping for usage in usages) == proc.read_maps(idle.pid)
    status = proc.read_status(idle.pid)
    # The kernel keeps the counters of status per processor, so they may lag behind smaps.
    assert abs(status.vm_rss_bytes - sum(usage.rss_bytes for usage in usages)) < 1 << 20
    assert status.vm_rss_bytes == (
        status.rss_anon_bytes + status.rss_file_bytes + status.rss_shmem_bytes
    )
    assert status.vm_hwm_bytes >= status.vm_rss_bytes
    assert status.num_threads == idle.num_threads()
    assert len(proc.read_descriptors(idle.pid)) == idle.num_fds()
    assert proc.read_stat(idle.pid).state == "S"


def test_own_faults_and_start() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    found = proc.read_stat(os.getpid())
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert before.ru_minflt <= found.minor_faults <= after.ru_minflt
    assert before.ru_majflt <= found.major_faults <= after.ru_majflt
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    started = psutil.boot_time() + found.start_ticks / ticks_per_s
    assert abs(started - psutil.Process().create_time()) < 2


def test_own_descriptors(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    with path.open("rb") as file:
        (found,) = [
            each for each in proc.read_descriptors(os.getpid()) if each.number == file.fileno()
        ]
        status = os.fstat(file.fileno())
    assert found.path == str(path)
    assert found.inode == status.st_ino
    assert found.device == (os.major(status.st_dev), os.minor(status.st_dev))
    assert found.allocated_bytes == status.st_blocks * 512 >= 100_000
    reader, writer = os.pipe()
    pipes = [each for each in proc.read_descriptors(os.getpid()) if each.path.startswith("pipe:")]
    assert {reader, writer} <= {each.number for each in pipes}
    assert all(each.allocated_bytes == 0 for each in pipes)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    "read", [proc.read_status, proc.read_smaps, proc.read_maps, proc.read_descriptors]
)
@pytest.mark.parametrize("reaped", [True, False])
def test_ended_process_is_a_clear_error(read, reaped: bool) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    if reaped:
        child.wait()
    else:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert proc.read_stat(child.pid).has_ended
    if not reaped and read is proc.read_descriptors:
        assert read(child.pid) == ()  # a zombie still has the folder
    else:
        with pytest.raises(NotEvaluableError, match="has ended"):
            read(child.pid)
    child.wait()


def test_file_that_may_not_be_read_is_a_clear_error(tmp_path) -> None:
    (tmp_path / "1" / "smaps").mkdir(parents=True)
    with pytest.raises(NotEvaluableError, match="cannot read a process's memory map"):
        proc.read_smaps(1, proc=tmp_path)


def test_swap_counters(tmp_path) -> None:
    assert proc.read_swap_counters(proc=tmp_path) == (0, 0)
    (tmp_path / "vmstat").write_text("nr_free_pages 5\npswpin 12\npswpout 34\n")
    assert proc.read_swap_counters(proc=tmp_path) == (12, 34)
    swapped_in, swapped_out = proc.read_swap_counters()
    assert swapped_in >= 0
    assert swapped_out >= 0
