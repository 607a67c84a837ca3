import dataclasses

import pytest
import torch
from transformers import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeSparseMoeBlock

from kernels.grouped_moe import cpu
from kernels.grouped_moe.api import grouped_moe, select
from kernels.grouped_moe.records import DenseBank, NvFp4Bank, Routing, touched_experts
from kernels.nvfp4.dequantize import dequantize
from kernels.nvfp4.quantize import quantize

SETS = ("torch-cpu/1", "torch-cpu-invariant/1")
CASES = [(4, 1), (4, 4), (7, 3), (16, 8), (64, 8)]
"""Experts and experts per row."""
# By the largest magnitude. float32: sums of up to 48 products in another order, three deep.
# bfloat16: four values rounded to 2^-9 one after the other, and sums of up to 8 such products.
BOUND = {torch.float32: 3e-6, torch.bfloat16: 2**-6}
HIDDEN, INTERMEDIATE = 48, 32


def dense_bank(
    experts: int, dtype: torch.dtype = torch.float32, intermediate: int = INTERMEDIATE
) -> DenseBank:
    return DenseBank(
        gate_up=(torch.randn(experts, 2 * intermediate, HIDDEN) * HIDDEN**-0.5).to(dtype),
        down=(torch.randn(experts, HIDDEN, intermediate) * intermediate**-0.5).to(dtype),
    )


def packed_bank(experts: int) -> tuple[NvFp4Bank, DenseBank]:
    """A packed bank, gate and up of other global scales, and the same values as plain weights."""
    plain = dense_bank(experts)
    scales = torch.cat([torch.full((INTERMEDIATE,), s) for s in (0.0004, 0.0007)])
    firsts = [quantize(weight, scales) for weight in plain.gate_up]
    seconds = [quantize(weight) for weight in plain.down]
    packed = NvFp4Bank(
        gate_up_codes=torch.stack([rows.codes for rows in firsts]),
        gate_up_block_scales=torch.stack([rows.block_scales for rows in firsts]),
        gate_up_row_scales=torch.stack([rows.row_scales for rows in firsts]),
        down_codes=torch.stack([rows.codes for rows in seconds]),
        down_block_scales=torch.stack([rows.block_scales for rows in seconds]),
        down_row_scales=torch.stack([rows.row_scales for rows in seconds]),
    )
    return packed, DenseBank(
        gate_up=torch.stack([dequantize(rows) for rows in firsts]),
        down=torch.stack([dequantize(rows) for rows in seconds]),
    )


def their_block(bank: DenseBank, top_k: int) -> Qwen3_5MoeSparseMoeBlock:
    """The block of the other implementation over a bank; router and shared expert are random."""
    block = Qwen3_5MoeSparseMoeBlock(
        Qwen3_5MoeTextConfig(
            hidden_size=HIDDEN,
            moe_intermediate_size=INTERMEDIATE,
            shared_expert_intermediate_size=INTERMEDIATE,
            num_experts=bank.num_experts,
            num_experts_per_tok=top_k,
        )
    )
    torch.nn.init.normal_(block.gate.weight, std=HIDDEN**-0.5)
    block.experts.gate_up_proj.data = bank.gate_up
    block.experts.down_proj.data = bank.down
    return block.to(bank.down.dtype).requires_grad_(False)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, bound: float) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=bound * float(expected.abs().max()))


@pytest.mark.parametrize("kernel_set", [*SETS, "torch-reference/1"])
@pytest.mark.parametrize("rows", [1, 3, 65])
@pytest.mark.parametrize(("experts", "top_k"), CASES)
def test_routing_equals_transformers(experts: int, top_k: int, rows: int, kernel_set: str) -> None:
    router = their_block(dense_bank(experts), top_k).gate
    logits, weights, ids = router(torch.randn(rows, HIDDEN))
    routing = select(kernel_set).route(logits, top_k)
    assert torch.equal(routing.expert_ids, ids)
    torch.testing.assert_close(routing.weights, weights)
    ordered = logits.softmax(dim=-1).sort(descending=True).values
    rejected = ordered[:, top_k] if top_k < experts else 0.0
    torch.testing.assert_close(routing.margins, ordered[:, top_k - 1] - rejected)


@pytest.mark.parametrize("kernel_set", [*SETS, "torch-reference/1"])
def test_equal_probabilities_go_to_the_lowest_id(kernel_set: str) -> None:
    logits = torch.zeros(3, 64)
    logits[1, [40, 7, 23]] = 1.0
    logits[2, 63] = 1.0
    routing = select(kernel_set).route(logits, 4)
    assert routing.expert_ids.tolist() == [[0, 1, 2, 3], [7, 23, 40, 0], [63, 0, 1, 2]]
    assert routing.margins.tolist() == [0.0] * 3
    torch.testing.assert_close(routing.weights.sum(dim=1), torch.ones(3))


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("rows", [1, 3, 65])
@pytest.mark.parametrize(("experts", "top_k"), CASES)
def test_plain_bank_equals_transformers(
    experts: int, top_k: int, rows: int, kernel_set: str, dtype: torch.dtype
) -> None:
    bank = dense_bank(experts, dtype)
    theirs = their_block(bank, top_k)
    x = torch.randn(rows, HIDDEN).to(dtype)
    functions = select(kernel_set)
    routing = functions.route(theirs.gate(x)[0], top_k)
    shared = theirs.shared_expert
    # Logits in bfloat16 are often equal, and theirs then go to any of them: both get our routing.
    theirs.gate.forward = lambda rows: (None, routing.weights.to(dtype), routing.expert_ids)
    shared_bank = DenseBank(
        gate_up=torch.cat([shared.gate_proj.weight, shared.up_proj.weight])[None],
        down=shared.down_proj.weight[None],
    )
    actual = functions.routed(x, routing, bank)
    actual += functions.shared(x, shared_bank, theirs.shared_expert_gate.weight)
    assert actual.dtype == torch.float32
    assert_close(actual.to(dtype), theirs(x[None])[0], BOUND[dtype])


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize(("experts", "top_k"), CASES)
def test_packed_bank_equals_transformers_on_its_values(
    experts: int, top_k: int, kernel_set: str
) -> None:
    packed, plain = packed_bank(experts)
    theirs = their_block(plain, top_k)
    x = torch.randn(13, HIDDEN)
    logits, weights, ids = theirs.gate(x)
    actual, routing = grouped_moe(x, logits, top_k, packed, kernel_set=kernel_set)
    assert torch.equal(routing.expert_ids, ids)
    assert_close(actual, theirs.experts(x, ids, weights), BOUND[torch.float32])


@pytest.mark.parametrize("packed", [False, True])
def test_equals_reference(packed: bool, rows: int) -> None:
    bank = packed_bank(7)[packed ^ 1]
    x, logits = torch.randn(rows, HIDDEN), torch.randn(rows, 7)
    expected, _ = grouped_moe(x, logits, 3, bank, kernel_set="torch-reference/1")
    actual, _ = grouped_moe(x, logits, 3, bank)
    assert_close(actual, expected, BOUND[torch.float32])
    assert torch.equal(actual, grouped_moe(x, logits, 3, bank)[0])
    gate = torch.randn(1, HIDDEN)
    assert_close(
        select(SETS[0]).shared(x, bank, gate),
        select("torch-reference/1").shared(x, bank, gate),
        BOUND[torch.float32],
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kernel_set", SETS)
def test_only_the_chosen_experts_are_read(packed: bool, kernel_set: str) -> None:
    """All others are NaN: whoever decodes or multiplies a whole bank shows it."""
    bank = packed_bank(6)[packed ^ 1]
    x, logits = torch.randn(1, HIDDEN), torch.tensor([[0.0, 3.0, 1.0, 0.0, 2.0, 0.0]])
    expected, routing = grouped_moe(x, logits, 3, bank, kernel_set=kernel_set)
    assert touched_experts(routing) == (1, 2, 4)
    others = [0, 3, 5]
    if isinstance(bank, NvFp4Bank):
        bank.gate_up_block_scales.view(torch.uint8)[others] = 0x7F
        bank.down_row_scales[others] = torch.nan
    else:
        bank.gate_up[others] = torch.nan
        bank.down[others] = torch.nan
    assert torch.equal(grouped_moe(x, logits, 3, bank, kernel_set=kernel_set)[0], expected)


def test_each_chosen_expert_is_asked_once_and_no_other() -> None:
    asked = []

    def expert(x: torch.Tensor, bank: object, index: int) -> torch.Tensor:
        asked.append((index, x[:, 0].tolist()))
        return torch.zeros(x.shape)

    x = torch.arange(3.0).unsqueeze(1)
    ids = torch.tensor([[4, 1], [1, 9], [4, 0]])
    routing = Routing(expert_ids=ids, weights=torch.ones(3, 2), margins=torch.zeros(3))
    cpu.routed(x, routing, dense_bank(10), expert=expert)
    assert asked == [(0, [2]), (1, [0, 1]), (4, [0, 2]), (9, [1])]


@pytest.mark.parametrize("kernel_set", SETS)
def test_sums_run_by_expert_and_not_by_rank(kernel_set: str) -> None:
    bank, x = packed_bank(16)[0], torch.randn(5, HIDDEN)
    functions = select(kernel_set)
    routing = functions.route(torch.randn(5, 16), 8)
    order = torch.randperm(8)
    shuffled = Routing(
        expert_ids=routing.expert_ids[:, order],
        weights=routing.weights[:, order],
        margins=routing.margins,
    )
    assert torch.equal(functions.routed(x, routing, bank), functions.routed(x, shuffled, bank))


@pytest.mark.parametrize("packed", [False, True])
def test_invariant_set_computes_each_row_alone(packed: bool, dtype: torch.dtype) -> None:
    # Ten is no multiple of a vector: the end of a row then falls elsewhere among more rows.
    bank = packed_bank(16)[0] if packed else dense_bank(16, dtype, intermediate=10)
    x, logits = torch.randn(65, HIDDEN).to(dtype), torch.randn(65, 16)
    gate = torch.randn(1, HIDDEN).to(dtype)
    whole, routing = grouped_moe(x, logits, 4, bank, kernel_set=SETS[1])
    shared = select(SETS[1]).shared(x, bank, gate)
    for row in range(65):
        alone = x[row : row + 1].clone()
        out, its_routing = grouped_moe(alone, logits[row : row + 1].clone(), 4, bank)
        assert torch.equal(whole[row : row + 1], out)
        for field in dataclasses.fields(Routing):
            ours = getattr(routing, field.name)[row : row + 1]
            assert torch.equal(ours, getattr(its_routing, field.name))
        assert torch.equal(shared[row : row + 1], select(SETS[0]).shared(alone, bank, gate))


def test_bytes_per_expert_are_those_of_its_parts() -> None:
    packed, plain = packed_bank(4)
    parts = sum(getattr(packed, field.name).nbytes for field in dataclasses.fields(packed))
    assert packed.bytes_per_expert * 4 == parts
    assert plain.bytes_per_expert == 4 * 3 * HIDDEN * INTERMEDIATE
    assert (packed.num_experts, packed.hidden_size, packed.intermediate_size) == (4, 48, 32)
    assert (plain.num_experts, plain.hidden_size, plain.intermediate_size) == (4, 48, 32)


def test_refuses_what_does_not_fit() -> None:
    (packed, plain), x, logits = packed_bank(4), torch.zeros(2, HIDDEN), torch.zeros(2, 4)
    with pytest.raises(ValueError, match=r"top_k in \[1, 4\]"):
        grouped_moe(x, logits, 5, packed)
    with pytest.raises(ValueError, match=r"logits \[2, 4\]"):
        grouped_moe(x, logits[:, :3], 2, packed)
    with pytest.raises(ValueError, match=r"x \[rows, 48\]"):
        grouped_moe(x[:, :32], logits, 2, packed)
    with pytest.raises(ValueError, match=r"x of torch\.float32"):
        grouped_moe(x.bfloat16(), logits, 2, plain)
    with pytest.raises(ValueError, match=r"down \[4, 48, 32\]"):
        grouped_moe(x, logits, 2, dataclasses.replace(plain, down=plain.down[:3]))
    with pytest.raises(ValueError, match="one number of experts"):
        grouped_moe(x, logits, 2, dataclasses.replace(packed, down_codes=packed.down_codes[:3]))
    swapped = dataclasses.replace(
        packed,
        down_codes=packed.gate_up_codes,
        down_block_scales=packed.gate_up_block_scales,
        down_row_scales=packed.gate_up_row_scales,
    )
    with pytest.raises(ValueError, match=r"down \[48, 32\]"):
        grouped_moe(x, logits, 2, swapped)
