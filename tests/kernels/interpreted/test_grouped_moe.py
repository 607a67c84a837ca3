import dataclasses

import pytest
import torch

from kernels import configurations
from kernels.grouped_moe.api import grouped_moe, select
from kernels.grouped_moe.records import DenseBank, NvFp4Bank, Routing

TRITON, REFERENCE = "triton/1", "torch-reference/1"
HIDDEN, INTERMEDIATE = 48, 32
# By the largest magnitude. float32, and whatever is packed: sums of up to 2,048 products in another
# order, three deep. bfloat16: three values rounded to 2^-9 one after the other, and sums of up to 8
# such products.
BOUND = {torch.float32: 3e-6, torch.bfloat16: 2**-6}


def slow(*case: object) -> object:
    return pytest.param(*case, marks=pytest.mark.slow)


BANKS = [
    (False, torch.bfloat16),
    (True, torch.float32),
    slow(False, torch.float32),
    slow(True, torch.bfloat16),
]
"""Whether a bank is packed, and the dtype of rows."""


def dense_bank(experts: int, dtype: torch.dtype, hidden: int = HIDDEN) -> DenseBank:
    return DenseBank(
        gate_up=(torch.randn(experts, 2 * INTERMEDIATE, hidden) * hidden**-0.5).to(dtype),
        down=(torch.randn(experts, hidden, INTERMEDIATE) * INTERMEDIATE**-0.5).to(dtype),
    )


def packed_bank(
    experts: int,
    scale_dtype: torch.dtype = torch.float32,
    hidden: int = HIDDEN,
    intermediate: int = INTERMEDIATE,
) -> NvFp4Bank:
    """Any codes and any finite block scales; rows that differ in scale."""

    def part(outputs: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        codes = torch.randint(0, 256, (experts, outputs, columns // 2), dtype=torch.uint8)
        scales = torch.rand(experts, outputs, columns // 16).mul_(2).to(torch.float8_e4m3fn)
        factors = torch.rand(experts, outputs).add_(0.5) * columns**-0.5 / 4
        return codes, scales, factors.to(scale_dtype)

    first, second = part(2 * intermediate, hidden), part(hidden, intermediate)
    return NvFp4Bank(
        gate_up_codes=first[0],
        gate_up_block_scales=first[1],
        gate_up_row_scales=first[2],
        down_codes=second[0],
        down_block_scales=second[1],
        down_row_scales=second[2],
    )


def assert_close(actual: torch.Tensor, expected: torch.Tensor, bound: float) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=bound * float(expected.abs().max()))


def same_routing(actual: Routing, expected: Routing) -> None:
    assert torch.equal(actual.expert_ids, expected.expert_ids)
    # Quotients of a sum of exponentials: a few units in the last place each.
    torch.testing.assert_close(actual.weights, expected.weights, rtol=2e-6, atol=0)
    torch.testing.assert_close(actual.margins, expected.margins, rtol=2e-6, atol=3e-7)


def rows_of(routing: Routing, part: slice) -> Routing:
    return Routing(
        expert_ids=routing.expert_ids[part],
        weights=routing.weights[part],
        margins=routing.margins[part],
    )


@pytest.mark.parametrize(
    ("experts", "top_k", "rows"),
    [(1, 1, 1), (4, 4, 3), (7, 3, 3), (256, 8, 2), (300, 17, 1), slow(64, 8, 33)],
)
def test_routing_equals_reference(experts: int, top_k: int, rows: int, dtype: torch.dtype) -> None:
    logits = (torch.randn(rows, experts) * 3).to(dtype)
    expected = select(REFERENCE).route(logits, top_k)
    actual = select(TRITON).route(logits, top_k)
    same_routing(actual, expected)
    assert actual.expert_ids.dtype == torch.int64
    assert actual.weights.dtype == actual.margins.dtype == torch.float32


def test_equal_probabilities_go_to_the_lowest_id() -> None:
    logits = torch.zeros(3, 64)
    logits[1, [40, 7, 23]] = 1.0
    logits[2, 63] = 1.0
    routing = select(TRITON).route(logits, 4)
    assert routing.expert_ids.tolist() == [[0, 1, 2, 3], [7, 23, 40, 0], [63, 0, 1, 2]]
    assert routing.margins.tolist() == [0.0] * 3


def test_a_row_without_numbers_goes_somewhere_and_says_so() -> None:
    logits = torch.randn(3, 7)
    expected = select(TRITON).route(logits, 3)
    logits[1, 4] = torch.nan
    routing = select(TRITON).route(logits, 3)
    assert routing.expert_ids[1].tolist() == [0, 1, 2]
    assert bool(routing.weights[1].isnan().all())
    assert bool(routing.margins[1].isnan())
    for row in (0, 2):
        assert torch.equal(routing.expert_ids[row], expected.expert_ids[row])
        assert torch.equal(routing.weights[row], expected.weights[row])
    logits = torch.full((1, 7), -torch.inf)
    logits[0, [5, 2]] = 1.0
    assert select(TRITON).route(logits, 3).expert_ids.tolist() == [[2, 5, 0]]


def grouped(ids: torch.Tensor, num_experts: int) -> list[tuple[int, list[int]]]:
    """The tiles as they are: an expert and its pairs."""
    from kernels.grouped_moe.routing_kernel import group_pairs

    groups = group_pairs(ids, num_experts)
    count = int(groups.num_tiles)
    assert count <= groups.max_tiles
    tiles = groups.pairs.view(groups.max_tiles, -1)[:count].tolist()
    return list(zip(groups.experts[:count].tolist(), tiles, strict=True))


def grouped_plainly(ids: torch.Tensor, num_experts: int) -> list[tuple[int, list[int]]]:
    size = configurations.MOE_ROWS
    tiles = []
    for expert in range(num_experts):
        pairs = [pair for pair, chosen in enumerate(ids.flatten().tolist()) if chosen == expert]
        for start in range(0, len(pairs), size):
            part = pairs[start : start + size]
            tiles.append((expert, part + [-1] * (size - len(part))))
    return tiles


@pytest.mark.parametrize(
    ("rows", "top_k", "experts"), [(1, 1, 1), (1, 8, 20), (65, 2, 5), (200, 6, 7)]
)
def test_pairs_are_grouped_by_expert(rows: int, top_k: int, experts: int, program_order) -> None:
    ids = torch.rand(rows, experts).argsort(dim=1)[:, :top_k].contiguous()
    expected = grouped_plainly(ids, experts)
    assert grouped(ids, experts) == expected
    for name in ("reversed", "shuffled"):
        with program_order(name):
            assert grouped(ids, experts) == expected
    to_one = torch.full((rows, 1), experts - 1)
    assert grouped(to_one, experts) == grouped_plainly(to_one, experts)


@pytest.mark.parametrize("as_many", [1, 3, slow(65)])
@pytest.mark.parametrize(
    "packed", [False, torch.float32, slow(torch.float16)], ids=["plain", "float32", "float16"]
)
def test_routed_equals_reference(as_many: int, packed, dtype: torch.dtype) -> None:
    bank = packed_bank(5, packed) if packed else dense_bank(5, dtype)
    x, logits = torch.randn(as_many, HIDDEN).to(dtype), torch.randn(as_many, 5)
    routing = select(REFERENCE).route(logits, 2)
    actual = select(TRITON).routed(x, routing, bank)
    assert actual.dtype == torch.float32
    bound = BOUND[torch.float32 if packed else dtype]
    assert_close(actual, select(REFERENCE).routed(x, routing, bank), bound)


@pytest.mark.slow
@pytest.mark.parametrize(("hidden", "intermediate"), [(2048, 64), (64, 512), (80, 144)])
def test_routed_equals_reference_for_a_model_s_sizes(
    hidden: int, intermediate: int, dtype: torch.dtype
) -> None:
    bank = packed_bank(3, hidden=hidden, intermediate=intermediate)
    x, logits = torch.randn(2, hidden).to(dtype), torch.randn(2, 3)
    actual, routing = grouped_moe(x, logits, 2, bank, kernel_set=TRITON)
    assert_close(actual, select(REFERENCE).routed(x, routing, bank), BOUND[torch.float32])


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [577, 2048])
def test_plain_routed_equals_reference_for_long_rows(hidden: int, dtype: torch.dtype) -> None:
    bank = dense_bank(3, dtype, hidden)
    x, logits = torch.randn(5, hidden).to(dtype), torch.randn(5, 3)
    actual, routing = grouped_moe(x, logits, 2, bank, kernel_set=TRITON)
    assert_close(actual, select(REFERENCE).routed(x, routing, bank), BOUND[dtype])


def test_a_row_sums_its_experts_by_ascending_rank() -> None:
    bank, functions = packed_bank(7), select(TRITON)
    x = torch.randn(1, HIDDEN).bfloat16()
    routing = functions.route(torch.randn(1, 7), 4)
    expected = torch.zeros(1, HIDDEN)
    for rank, index in enumerate(routing.expert_ids[0].tolist()):
        expected += routing.weights[0, rank] * functions.expert(x, bank, index)
    assert torch.equal(functions.routed(x, routing, bank), expected)


def test_a_row_s_routing_depends_on_nothing_else(dtype: torch.dtype) -> None:
    logits, route = torch.randn(5, 70).to(dtype), select(TRITON).route
    together = route(logits, 4)
    for part in (slice(0, 1), slice(2, 5)):
        alone, expected = route(logits[part], 4), rows_of(together, part)
        for field in dataclasses.fields(Routing):
            assert torch.equal(getattr(alone, field.name), getattr(expected, field.name))


@pytest.mark.parametrize(("is_packed", "dtype"), BANKS)
def test_a_row_depends_on_nothing_else(is_packed: bool, dtype: torch.dtype, monkeypatch) -> None:
    rows, experts = 18, 2  # more rows of an expert than a tile has
    bank = packed_bank(experts) if is_packed else dense_bank(experts, dtype)
    x, gate = torch.randn(rows, HIDDEN).to(dtype), torch.randn(1, HIDDEN).to(dtype)
    logits = torch.tensor([[0.0, 1.0]]).repeat(rows, 1)
    logits[-1, 0] = 2.0
    routing, functions = select(REFERENCE).route(logits, 1), select(TRITON)
    together, shared = functions.routed(x, routing, bank), functions.shared(x, bank, gate)
    for part in (slice(0, 1), slice(5, 18)):
        alone = functions.routed(x[part], rows_of(routing, part), bank)
        assert torch.equal(alone, together[part])
        assert torch.equal(functions.shared(x[part], bank, gate), shared[part])
    monkeypatch.setattr(configurations, "MOE_WORKSPACE_BYTES", 13 * 4 * (3 * 32 + 48))
    assert torch.equal(functions.routed(x, routing, bank), together)


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "packed"])
def test_any_order_of_programs(is_packed: bool, same_in_any_order) -> None:
    bank = packed_bank(3) if is_packed else dense_bank(3, torch.float32)
    x, logits = torch.randn(3, HIDDEN), torch.randn(3, 3)
    functions = select(TRITON)

    def everything() -> tuple[torch.Tensor, ...]:
        out, routing = grouped_moe(x, logits, 2, bank, kernel_set=TRITON)
        return out, routing.weights, routing.margins, functions.shared(x, bank, x[:1])

    same_in_any_order(everything)


def test_experts_that_no_row_goes_to_change_nothing() -> None:
    bank, x = packed_bank(5), torch.randn(1, HIDDEN)
    routing = select(TRITON).route(torch.randn(1, 5), 2)
    expected = select(TRITON).routed(x, routing, bank)
    for index in set(range(5)) - set(routing.expert_ids.flatten().tolist()):
        bank.gate_up_block_scales[index].view(torch.uint8).fill_(0x7F)
        bank.down_row_scales[index] = torch.nan
    assert torch.equal(select(TRITON).routed(x, routing, bank), expected)
    bank.down_block_scales.view(torch.uint8)[routing.expert_ids[0, 1], 5, 1] = 0xFF
    is_nan = select(TRITON).routed(x, routing, bank).isnan()
    assert is_nan.nonzero().tolist() == [[0, 5]]


@pytest.mark.parametrize(("is_packed", "dtype"), BANKS)
def test_shared_equals_reference(is_packed: bool, dtype: torch.dtype) -> None:
    bank = packed_bank(1) if is_packed else dense_bank(1, dtype)
    x, gate = torch.randn(5, HIDDEN).to(dtype), torch.randn(1, HIDDEN).to(dtype) * 0.1
    actual = select(TRITON).shared(x, bank, gate)
    assert actual.dtype == torch.float32
    bound = BOUND[torch.float32 if is_packed else dtype]
    assert_close(actual, select(REFERENCE).shared(x, bank, gate), bound)


def test_the_gate_of_long_rows(dtype: torch.dtype) -> None:
    from kernels.grouped_moe import kernel

    x, gate = torch.randn(2, 2050).to(dtype), (torch.randn(1, 2050) / 32).to(dtype)
    gates = kernel.shared(
        x, packed_bank(1), gate, expert=lambda x, bank, index: torch.ones(x.shape)
    )
    expected = torch.sigmoid(x.double() @ gate.double().T).float().expand(2, 2050)
    torch.testing.assert_close(gates, expected, rtol=3e-6, atol=0)


@pytest.mark.parametrize(
    ("is_packed", "dtype"), [BANKS[0], slow(True, torch.float32), slow(True, torch.bfloat16)]
)
def test_views_and_nothing(is_packed: bool, dtype: torch.dtype) -> None:
    bank = packed_bank(3) if is_packed else dense_bank(3, dtype)
    x, logits = torch.randn(2, HIDDEN).to(dtype), torch.randn(2, 3)
    gate = torch.randn(1, HIDDEN).to(dtype)
    expected, _ = grouped_moe(x, logits, 2, bank, kernel_set=TRITON)
    shared = select(TRITON).shared(x, bank, gate)
    wide, spread = torch.zeros(4, 60, dtype=dtype), torch.zeros(3, 2)
    wide[::2, 5:53], spread[:] = x, logits.T
    actual, _ = grouped_moe(wide[::2, 5:53], spread.T, 2, bank, kernel_set=TRITON)
    assert torch.equal(actual, expected)
    assert torch.equal(select(TRITON).shared(wide[::2, 5:53], bank, gate), shared)
    nothing, none = grouped_moe(x[:0], logits[:0], 2, bank, kernel_set=TRITON)
    assert nothing.shape == (0, HIDDEN)
    assert none.expert_ids.shape == none.weights.shape == (0, 2)
    assert none.margins.shape == (0,)
    assert select(TRITON).shared(x[:0], bank, gate).shape == (0, HIDDEN)


def test_refuses_more_experts_than_one_program_reads() -> None:
    with pytest.raises(ValueError, match="at most 1024 experts"):
        select(TRITON).route(torch.zeros(1, 1025), 2)
