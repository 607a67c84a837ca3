from fake_family import plan

from harness.plan.records import Materialization, Plan
from harness.realize.seal import watch


def test_a_watched_plan_reads_like_the_plan() -> None:
    original = plan()
    watched, _ = watch(original)
    assert isinstance(watched, Plan)
    assert isinstance(watched.materializations[0], Materialization)
    assert [m.id for m in watched.materializations] == [m.id for m in original.materializations]
    assert watched == watch(original)[0] or watched.schema == original.schema


def test_accesses_count_only_while_sealed() -> None:
    watched, seal = watch(plan())
    assert watched.schema == "test"
    assert seal.num_accesses == 0
    seal.close()
    assert watched.schema == "test"
    assert seal.num_accesses == 1
    seal.open()
    assert watched.schema == "test"
    assert seal.num_accesses == 1


def test_a_record_kept_from_before_still_counts() -> None:
    watched, seal = watch(plan())
    kept = watched.materializations[1]
    nested = watched.workload
    seal.close()
    assert kept.id == "resident"
    assert nested is not None
    assert nested.decode_steps == 3
    assert seal.num_accesses == 2


def test_two_watched_plans_do_not_share_a_seal() -> None:
    (first, seal), (second, other) = watch(plan()), watch(plan())
    seal.close()
    assert second.schema
    assert first.schema
    assert (seal.num_accesses, other.num_accesses) == (1, 0)
