from pathlib import Path

import pytest

from harness.measure.pages import ArenaRegistry, PageCount, count_pages, file_name, kind_of
from harness.measure.proc import Descriptor, MappingUsage, MemoryMapping
from harness.measure.readings import DeclaredArena
from harness.measure.words import BLIND_SPOTS

PAGE = 4096
ZERO = "/dev/zero (deleted)"


def use(
    start: int = 0x10000,
    pages: int = 16,
    *,
    path: str = "",
    inode: int = 0,
    permissions: str = "rw-p",
    rss: int = 0,
    anonymous: int = 0,
    hugetlb: int = 0,
    swap: int = 0,
) -> MappingUsage:
    """A mapping with its sizes given in pages."""
    mapping = MemoryMapping(
        start=start,
        end=start + pages * PAGE,
        permissions=permissions,
        offset_bytes=0,
        device=(0, 1) if inode else (0, 0),
        inode=inode,
        path=path,
    )
    return MappingUsage(
        mapping=mapping,
        rss_bytes=rss * PAGE,
        anonymous_bytes=anonymous * PAGE,
        private_bytes=rss * PAGE,
        hugetlb_bytes=hugetlb * PAGE,
        swap_bytes=swap * PAGE,
    )


def count(*usages: MappingUsage, descriptors: tuple[Descriptor, ...] = ()) -> PageCount:
    return count_pages(usages, descriptors, {})


def declared(name: str = "m", address: int = 0x10000, pages: int = 16) -> DeclaredArena:
    return DeclaredArena(
        materialization_id=name, memory_resource_id="r", address=address, length=pages * PAGE
    )


@pytest.mark.parametrize(
    ("path", "inode", "kind"),
    [
        ("", 0, "private_anonymous"),
        ("[heap]", 0, "private_anonymous"),
        ("[stack]", 0, "private_anonymous"),
        ("[anon:name]", 0, "private_anonymous"),
        (ZERO, 7, "shared_anonymous"),
        ("/SYSV00000000 (deleted)", 0, "shared_anonymous"),
        ("/SYSV00001234 (deleted)", 5, "shared_anonymous"),
        ("[anon_shmem:name]", 7, "shared_anonymous"),
        ("/anon_hugepage (deleted)", 7, "shared_anonymous"),
        ("/memfd:x (deleted)", 7, "memfd"),
        ("/usr/lib/libc.so.6", 7, "file"),
        ("/dev/zero", 7, "file"),
        ("/dev/shm/x (deleted)", 7, "file"),
        ("anon_inode:[x]", 7, "file"),
        ("[vdso]", 0, "kernel"),
        ("[vvar]", 0, "kernel"),
        ("[vvar_vclock]", 0, "kernel"),
        ("[vsyscall]", 0, "kernel"),
    ],
)
def test_kinds(path: str, inode: int, kind: str) -> None:
    assert kind_of(use(path=path, inode=inode).mapping) == kind


def test_file_names_show_no_folder() -> None:
    assert file_name("/home/someone/data.bin (deleted)") == "data.bin"
    assert file_name("anon_inode:[x]") == "anon_inode:[x]"


def test_resident_huge_and_swapped_pages_are_held() -> None:
    found = count(use(rss=2, swap=1), use(path=ZERO, inode=1, rss=4, hugetlb=8, swap=16))
    assert found.private_anonymous_bytes == 3 * PAGE
    assert found.shared_anonymous_bytes == 28 * PAGE
    assert count(use(path="[vdso]", rss=2)).unplanned_bytes(count()) == 0


KINDS = {
    "private_anonymous": lambda rss: use(rss=rss),
    "shared_anonymous": lambda rss: use(path=ZERO, inode=1, rss=rss),
    "memfd": lambda rss: use(path="/memfd:x (deleted)", inode=9, rss=rss),
    "file": lambda rss: use(path="/data", inode=2, rss=rss),
    "another file": lambda rss: use(path="/other", inode=3, rss=rss),
}


@pytest.mark.parametrize("shrinking", sorted(KINDS))
@pytest.mark.parametrize("growing", sorted(KINDS))
def test_a_kind_or_file_that_shrank_hides_no_other(shrinking: str, growing: str) -> None:
    sizes = dict.fromkeys(KINDS, 8)
    before = count(*(KINDS[name](rss) for name, rss in sizes.items()))
    sizes[shrinking] = 1
    sizes[growing] = 11
    after = count(*(KINDS[name](rss) for name, rss in sizes.items()))
    assert after.unplanned_bytes(before) == 3 * PAGE
    assert after.new_files(before) == ()


def test_new_file_is_named_and_counted() -> None:
    before = count(use(path="/data", inode=2, rss=8))
    after = count(use(path="/data", inode=2, rss=1), use(path="/dir/more", inode=3, rss=5))
    assert after.new_file_bytes(before) == after.unplanned_bytes(before) == 5 * PAGE
    assert after.new_files(before) == ("more",)


def test_data_file_counts_whole_and_by_growth() -> None:
    before = count(use(path="/data", inode=2, rss=1))
    after = count(
        use(path="/data", inode=2, rss=1), use(0x90000, path="/data", inode=2, rss=4, anonymous=2)
    )
    assert after.new_file_bytes(count()) == 5 * PAGE
    assert after.new_file_bytes(before) == 4 * PAGE
    assert after.new_files(before) == ()


@pytest.mark.parametrize(("magic", "expected"), [(b"\x7fELF", 3), (b"data", 11), (None, 11)])
def test_library_counts_by_its_private_pages(
    tmp_path: Path, magic: bytes | None, expected: int
) -> None:
    path = tmp_path / "lib.so"
    if magic is not None:
        path.write_bytes(magic + bytes(60))
    code = use(path=str(path), inode=5, permissions="r-xp", rss=8)
    data = use(0x90000, path=str(path), inode=5, rss=3, anonymous=2, swap=0)
    swapped = use(0xA0000, path=str(path), inode=5, rss=0, swap=1 if magic == b"\x7fELF" else 0)
    found = count(code, data, swapped)
    assert found.new_file_bytes(count()) == expected * PAGE
    assert found.new_file_bytes(found) == 0


def test_library_needs_an_executable_mapping(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(b"\x7fELF")
    assert count(use(path=str(path), inode=5, rss=8)).new_file_bytes(count()) == 8 * PAGE


def memory_file(inode: int, pages: int, path: str = "/memfd:x (deleted)") -> Descriptor:
    return Descriptor(number=3, path=path, device=(0, 1), inode=inode, allocated_bytes=pages * PAGE)


def test_memory_file_counts_once_mapped_or_open() -> None:
    mapped = use(path="/memfd:x (deleted)", inode=9, rss=4)
    assert count(mapped).memfd_bytes == 4 * PAGE
    assert count(descriptors=(memory_file(9, 6),)).memfd_bytes == 6 * PAGE
    both = count(mapped, descriptors=(memory_file(9, 6), memory_file(9, 6)))
    assert both.memfd_bytes == 6 * PAGE
    others = count(mapped, descriptors=(memory_file(8, 1), memory_file(7, 5, "/tmp/file")))
    assert others.memfd_bytes == 5 * PAGE


def test_private_copy_of_a_memory_file_counts_beside_it() -> None:
    mapped = use(path="/memfd:x (deleted)", inode=9, rss=4, anonymous=3, swap=1)
    assert count(mapped, descriptors=(memory_file(9, 6),)).memfd_bytes == (6 + 4) * PAGE


def test_arena_is_read_and_left_out() -> None:
    registry = ArenaRegistry()
    usages = [use(path=ZERO, inode=1, rss=5), use(0x90000, path=ZERO, inode=2, rss=3)]
    (reading,), outside = registry.locate([declared()], usages)
    assert (reading.materialization_id, reading.mapped_bytes) == ("m", 16 * PAGE)
    assert reading.resident_bytes == 5 * PAGE
    assert count_pages(usages, (), outside).shared_anonymous_bytes == 3 * PAGE


def test_arena_split_in_two_is_read_whole() -> None:
    usages = [
        use(pages=4, path=ZERO, inode=1, rss=1, permissions="r--s"),
        use(0x10000 + 4 * PAGE, pages=12, path=ZERO, inode=1, rss=2),
    ]
    (reading,), outside = ArenaRegistry().locate([declared()], usages)
    assert (reading.mapped_bytes, reading.resident_bytes) == (16 * PAGE, 3 * PAGE)
    assert sum(outside.values()) == 0


@pytest.mark.parametrize("path", ["", "/memfd:x (deleted)", "/data"])
def test_only_a_shared_anonymous_mapping_is_an_arena(path: str) -> None:
    usages = [use(path=path, inode=1 if path else 0, rss=5)]
    (reading,), outside = ArenaRegistry().locate([declared()], usages)
    assert (reading.mapped_bytes, reading.resident_bytes) == (0, 0)
    assert count_pages(usages, (), outside).unplanned_bytes(count()) == 5 * PAGE


def test_another_mapping_at_the_address_is_not_the_arena() -> None:
    registry = ArenaRegistry()
    registry.locate([declared()], [use(path=ZERO, inode=1, rss=5)])
    (gone,), _ = registry.locate([declared()], [])
    assert gone.mapped_bytes == 0
    usages = [use(path=ZERO, inode=2, rss=5)]
    (reading,), outside = registry.locate([declared()], usages)
    assert reading.mapped_bytes == 0
    assert count_pages(usages, (), outside).shared_anonymous_bytes == 5 * PAGE


def test_released_arena_and_its_successor_at_the_address() -> None:
    registry = ArenaRegistry()
    registry.locate([declared("old")], [use(path=ZERO, inode=1, rss=5)])
    usages = [use(path=ZERO, inode=2, rss=6)]
    for order in (["old", "new"], ["new", "old"]):
        readings, outside = registry.locate([declared(name) for name in order], usages)
        found = {reading.materialization_id: reading.mapped_bytes for reading in readings}
        assert found == {"old": 0, "new": 16 * PAGE}
        assert count_pages(usages, (), outside).shared_anonymous_bytes == 0


def test_one_mapping_serves_one_declaration() -> None:
    usages = [use(path=ZERO, inode=1, rss=5)]
    readings, _ = ArenaRegistry().locate([declared("a"), declared("b")], usages)
    assert [reading.mapped_bytes for reading in readings] == [16 * PAGE, 0]


def test_second_mapping_of_an_arena_elsewhere_counts() -> None:
    usages = [use(path=ZERO, inode=1, rss=5), use(0x90000, path=ZERO, inode=1, rss=5)]
    _, outside = ArenaRegistry().locate([declared()], usages)
    assert count_pages(usages, (), outside).shared_anonymous_bytes == 5 * PAGE


def test_pages_beyond_the_declared_range_count_as_many_as_they_can_be() -> None:
    usages = [use(path=ZERO, inode=1, rss=13)]
    (reading,), outside = ArenaRegistry().locate([declared(pages=4)], usages)
    assert (reading.mapped_bytes, reading.resident_bytes) == (4 * PAGE, 1 * PAGE)
    assert count_pages(usages, (), outside).shared_anonymous_bytes == 12 * PAGE


def test_declared_length_beyond_the_mapping_is_not_mapped() -> None:
    (reading,), _ = ArenaRegistry().locate(
        [declared(pages=32)], [use(path=ZERO, inode=1, rss=5), use(0x10000 + 16 * PAGE, rss=9)]
    )
    assert (reading.mapped_bytes, reading.resident_bytes) == (16 * PAGE, 5 * PAGE)


def test_blind_spots_are_stated() -> None:
    assert len(set(BLIND_SPOTS)) == len(BLIND_SPOTS) >= 5
