"""The C++ kernels: against the oracle; alike for any instruction set, threads and neighbours."""

import contextlib
import math
import os
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import kernels.attention.api as attention
import kernels.fp8_linear.api as fp8_linear
import kernels.gated_activation.api as gated_activation
import kernels.grouped_moe.api as grouped_moe
import kernels.linear.api as linear
import kernels.nvfp4.api as nvfp4
import kernels.rms_norm.api as rms_norm
import kernels.rope.api as rope
import kernels.sampling.api as sampling
from kernels.grouped_moe.records import DenseBank, NvFp4Bank
from kernels.kernel_sets import choose
from kernels.native import library, sources
from kernels.nvfp4.records import NvFp4Rows

NATIVE, ORACLE = "native-cpu/1", "torch-reference/1"
# Of the largest magnitude. float32: sums of up to 1,100 products in another order. bfloat16: up to
# four values rounded to 2^-9, one after the other.
BOUND = {torch.float32: 3e-6, torch.bfloat16: 2**-7}
Rows = Callable[[str, slice], torch.Tensor]
"""The output rows of a slice of a case's rows, in a kernel set."""

built = pytest.mark.skipif(
    sources.built_digest() is None, reason="the native kernels are not built: no C++ compiler"
)


@pytest.fixture
def as_for() -> Iterator[Callable[[str], None]]:
    """Choose the code of an instruction set, until the test ends."""
    with pytest.MonkeyPatch.context() as patch:
        yield lambda isa: patch.setattr(library, "instruction_set", lambda: isa)


def test_a_compiler_leaves_a_library_of_todays_sources() -> None:
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    assert sources.built_digest() == sources.sources_digest()


def test_without_a_library_no_op_of_the_set_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LIBRARY", Path("nowhere.so"))
    library.library.cache_clear()
    for select in (linear.select, sampling.select, attention.select):
        with pytest.raises(library.MissingNativeError, match="pip install"):
            select(NATIVE)
    library.library.cache_clear()


@built
def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "sources_digest", lambda: "sha256:0")
    library.library.cache_clear()
    with pytest.raises(library.MissingNativeError, match="other sources"):
        choose("linear", NATIVE, {NATIVE: 0})
    library.library.cache_clear()


@pytest.mark.parametrize("content", [b"", b"\x7fELF of another machine"])
def test_what_cannot_be_loaded_is_refused(
    content: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (library, sources):
        monkeypatch.setattr(module, "LIBRARY", tmp_path / "library.so")
    (tmp_path / "library.so").write_bytes(content)
    library.library.cache_clear()
    with pytest.raises(library.MissingNativeError, match=r"cannot be loaded.*pip install"):
        choose("linear", NATIVE, {NATIVE: 0})
    library.library.cache_clear()
    library.library_digest.cache_clear()


@built
def test_the_digest_is_that_of_the_file_that_was_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library.library()
    before = library.library_digest()
    copy = tmp_path / "library"
    copy.write_bytes(sources.LIBRARY.read_bytes() + b"\0")
    monkeypatch.setattr(library, "LIBRARY", copy)
    assert library.library_digest() == before  # as where another one is built meanwhile
    library.library_digest.cache_clear()
    assert library.library_digest() != before
    library.library_digest.cache_clear()


def test_other_flags_make_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sources.sources_digest()
    monkeypatch.setattr(sources, "FLAGS", (*sources.FLAGS, "-ffast-math"))
    assert sources.sources_digest() != before


@dataclass(frozen=True, kw_only=True)
class Case:
    """One op over a number of rows."""

    rows: int
    run: Rows


def linear_case(rows: int, columns: int, outputs: int, dtype: torch.dtype) -> Case:
    x = torch.randn(rows, columns).to(dtype)
    weight = (torch.randn(outputs, columns) * columns**-0.5).to(dtype)
    bias = torch.randn(outputs).to(dtype) if outputs % 2 else None
    return Case(rows=rows, run=lambda s, r: linear.linear(x[r], weight, bias, kernel_set=s))


def fp8_case(rows: int, columns: int, outputs: int, dtype: torch.dtype) -> Case:
    x = torch.randn(rows, columns).to(dtype)
    weight = torch.randn(outputs, columns).mul_(20).to(torch.float8_e4m3fn)
    scale = torch.rand(outputs if outputs % 2 else 1).add_(0.5) * columns**-0.5 / 20
    return Case(
        rows=rows, run=lambda s, r: fp8_linear.fp8_linear(x[r], weight, scale, kernel_set=s)
    )


def packed(*shape: int, half: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Any codes and any finite block scales; rows that differ in scale."""
    *outer, columns = shape
    scales = torch.rand(*outer).add_(0.5) * columns**-0.5 / 4
    return (
        torch.randint(0, 256, (*outer, columns // 2), dtype=torch.uint8),
        torch.rand(*outer, columns // 16).mul_(2).to(torch.float8_e4m3fn),
        scales.half() if half else scales,
    )


def nvfp4_case(rows: int, columns: int, outputs: int, dtype: torch.dtype) -> Case:
    x = torch.randn(rows, columns).to(dtype)
    codes, blocks, scales = packed(outputs, columns, half=outputs % 2 == 0)
    weight = NvFp4Rows(codes=codes, block_scales=blocks, row_scales=scales)
    return Case(rows=rows, run=lambda s, r: nvfp4.nvfp4_linear(x[r], weight, kernel_set=s))


def experts_case(rows: int, hidden: int, inner: int, is_packed: bool, dtype: torch.dtype) -> Case:
    num_experts, top_k = 7, 3
    x, logits = torch.randn(rows, hidden).to(dtype), torch.randn(rows, num_experts)
    bank: DenseBank | NvFp4Bank
    if is_packed:
        up, down = packed(num_experts, 2 * inner, hidden), packed(num_experts, hidden, inner)
        bank = NvFp4Bank(
            gate_up_codes=up[0],
            gate_up_block_scales=up[1],
            gate_up_row_scales=up[2],
            down_codes=down[0],
            down_block_scales=down[1],
            down_row_scales=down[2],
        )
    else:
        bank = DenseBank(
            gate_up=(torch.randn(num_experts, 2 * inner, hidden) * hidden**-0.5).to(dtype),
            down=(torch.randn(num_experts, hidden, inner) * inner**-0.5).to(dtype),
        )

    def run(kernel_set: str, r: slice) -> torch.Tensor:
        return grouped_moe.grouped_moe(x[r], logits[r], top_k, bank, kernel_set=kernel_set)[0]

    return Case(rows=rows, run=run)


def attention_case(
    rows: int,
    start: int,
    shape: tuple[int, int, int],
    window: int | None,
    cap: float | None,
    dtype: torch.dtype,
) -> Case:
    heads, kv_heads, size = shape
    q = torch.randn(rows, heads, size).to(dtype)
    k, v = torch.randn(2, start + rows, kv_heads, size).to(dtype).unbind(0)

    def run(kernel_set: str, r: slice) -> torch.Tensor:
        begin, end, _ = r.indices(rows)
        # Keys before the window may be gone, as where pages are evicted.
        first = 0 if window is None else max(0, start + begin - window + 1)
        context = attention.select(kernel_set).prepare(
            end - begin,
            start + begin,
            dtype=dtype,
            device=q.device,
            first_position=first,
            window=window,
        )
        held = slice(first, start + end)
        scale = size**-0.5
        return attention.attend(q[r], k[held], v[held], context, scale, cap, kernel_set=kernel_set)

    return Case(rows=rows, run=run)


def norm_case(rows: int, size: int, dtype: torch.dtype) -> Case:
    x, added = torch.randn(2, rows, size).to(dtype).unbind(0)
    weight = torch.randn(size).to(dtype)

    def run(kernel_set: str, r: slice) -> torch.Tensor:
        one = rms_norm.rms_norm(x[r], weight, 1e-6, kernel_set=kernel_set)
        two = rms_norm.add_rms_norm(x[r], added[r], weight, 1e-6, True, kernel_set=kernel_set)
        return torch.cat((one, *two), dim=1)

    return Case(rows=rows, run=run)


def rope_case(rows: int, heads: int, half: int, dtype: torch.dtype) -> Case:
    x = torch.randn(rows, heads + 2, 2 * half).to(dtype)
    angle = torch.rand(rows, half) * 7
    cos, sin = rope.angles(angle.cos(), angle.sin())
    return Case(
        rows=rows, run=lambda s, r: rope.rope(x[r, :heads], cos[r], sin[r], kernel_set=s).flatten(1)
    )


def silu_case(rows: int, size: int, dtype: torch.dtype) -> Case:
    x = (torch.randn(rows, 2 * size) * 4).to(dtype)
    return Case(rows=rows, run=lambda s, r: gated_activation.silu_gated(x[r], kernel_set=s))


CASES: dict[str, Callable[[torch.dtype], Case]] = {
    "linear-1": lambda dtype: linear_case(1, 577, 65, dtype),
    "linear-5": lambda dtype: linear_case(5, 64, 131, dtype),
    "linear-70": lambda dtype: linear_case(70, 193, 200, dtype),
    "linear-deep": lambda dtype: linear_case(10, 2900, 50, dtype),
    "linear-narrow": lambda dtype: linear_case(3, 1, 1, dtype),
    "fp8": lambda dtype: fp8_case(7, 194, 65, dtype),
    "fp8-one-scale": lambda dtype: fp8_case(2, 1024, 6, dtype),
    "nvfp4": lambda dtype: nvfp4_case(6, 208, 33, dtype),
    "nvfp4-deep": lambda dtype: nvfp4_case(2, 4112, 3, dtype),
    "nvfp4-half": lambda dtype: nvfp4_case(1, 1024, 20, dtype),
    "experts": lambda dtype: experts_case(9, 50, 37, False, dtype),
    "experts-packed": lambda dtype: experts_case(9, 80, 48, True, dtype),
    "attention": lambda dtype: attention_case(11, 250, (9, 3, 64), None, None, dtype),
    "attention-odd": lambda dtype: attention_case(5, 600, (10, 2, 10), None, 5.0, dtype),
    "attention-window": lambda dtype: attention_case(70, 300, (4, 1, 80), 260, None, dtype),
    "norm": lambda dtype: norm_case(5, 577, dtype),
    "rope": lambda dtype: rope_case(6, 4, 29, dtype),
    "silu": lambda dtype: silu_case(5, 1154, dtype),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, dtype: torch.dtype) -> Case:
    return CASES[request.param](dtype)


@built
def test_equals_the_oracle(case: Case, dtype: torch.dtype) -> None:
    actual, expected = case.run(NATIVE, slice(None)), case.run(ORACLE, slice(None))
    assert actual.dtype == expected.dtype
    bound = BOUND[dtype] * float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=bound)


@built
def test_a_row_has_the_bits_that_it_has_alone(case: Case) -> None:
    whole = case.run(NATIVE, slice(None))
    for size in (1, 2, 4, 7):
        pieces = [case.run(NATIVE, slice(b, b + size)) for b in range(0, case.rows, size)]
        assert torch.equal(torch.cat(pieces), whole), size


@built
@pytest.mark.parametrize("num_threads", [2, 3, 8])
def test_threads_change_no_bit(case: Case, num_threads: int) -> None:
    whole = case.run(NATIVE, slice(None))
    torch.set_num_threads(num_threads)  # conftest restores it
    for _ in range(5):
        assert torch.equal(case.run(NATIVE, slice(None)), whole)


@built
def test_portable_code_has_the_bits_of_eight_lanes(
    case: Case, as_for: Callable[[str], None]
) -> None:
    if not library.library().native_supports(b"avx2"):
        pytest.skip("this processor has no AVX2")
    as_for("avx2")
    whole = case.run(NATIVE, slice(None))
    as_for("portable")
    assert torch.equal(case.run(NATIVE, slice(None)), whole)


@built
@pytest.mark.slow
@pytest.mark.long
def test_wide_lanes_equal_the_oracle(
    case: Case, dtype: torch.dtype, as_for: Callable[[str], None]
) -> None:
    if not library.library().native_supports(b"avx512"):
        pytest.skip("this processor has no AVX-512")
    as_for("avx512")
    whole, expected = case.run(NATIVE, slice(None)), case.run(ORACLE, slice(None))
    bound = BOUND[dtype] * float(expected.abs().max())
    torch.testing.assert_close(whole, expected, rtol=0, atol=bound)
    alone = [case.run(NATIVE, slice(row, row + 1)) for row in range(case.rows)]
    assert torch.equal(torch.cat(alone), whole)


@built
def test_many_short_calls_from_many_threads() -> None:
    """Helpers come and go between pieces of work; none is lost and none is done twice."""
    x, weight = torch.randn(3, 40), torch.randn(500, 40)
    expected = linear.linear(x, weight, kernel_set=NATIVE)
    for num_threads in (4, 2, 5):
        torch.set_num_threads(num_threads)
        for _ in range(100):
            assert torch.equal(linear.linear(x, weight, kernel_set=NATIVE), expected)


@built
def test_a_forked_process_computes_with_helpers_of_its_own() -> None:
    x, weight = torch.randn(3, 40), torch.randn(500, 40)
    torch.set_num_threads(4)
    expected = linear.linear(x, weight, kernel_set=NATIVE)
    time.sleep(0.05)  # the helpers fall asleep
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        with contextlib.suppress(BaseException):
            for num_threads in (4, 4, 2):
                torch.set_num_threads(num_threads)
                for _ in range(20):
                    assert torch.equal(linear.linear(x, weight, kernel_set=NATIVE), expected)
                time.sleep(0.02)
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(linear.linear(x, weight, kernel_set=NATIVE), expected)


@built
def test_silu_from_the_smallest_to_the_largest_number() -> None:
    gate = torch.cat([torch.linspace(-110, 110, 4001), torch.tensor([1e-38, -1e-30, 3e38, -3e38])])
    exact = (gate.double() / (1 + torch.exp(-gate.double()))).float()
    actual = gated_activation.silu_gated(
        torch.cat([gate, torch.ones_like(gate)])[None], kernel_set=NATIVE
    )[0]
    # Where exp(-gate) is beyond float32, a product below 3e-37 is 0.
    torch.testing.assert_close(actual, exact, rtol=1e-6, atol=3e-37)
    odd = torch.tensor([[math.inf, math.nan, 1.0, 1.0]])
    assert gated_activation.silu_gated(odd, kernel_set=NATIVE)[0].isfinite().tolist() == [
        False,
        False,
    ]


@built
@pytest.mark.parametrize(
    "weight", [torch.tensor([[1.0, math.nan]]), torch.tensor([[math.inf, -math.inf]])]
)
def test_what_is_not_finite_stays_so(weight: torch.Tensor, dtype: torch.dtype) -> None:
    out = linear.linear(torch.ones(1, 2, dtype=dtype), weight.to(dtype), kernel_set=NATIVE)
    assert out.isnan().all()


@built
@pytest.mark.parametrize("size", [1, 2, 4096, 4097, 49152])
def test_greedy_equals_the_oracle(size: int) -> None:
    for _ in range(3):
        logits = torch.randn(size).bfloat16().float()  # many are equal
        assert sampling.greedy(logits, kernel_set=NATIVE) == sampling.greedy(
            logits, kernel_set=ORACLE
        )
    logits[size // 2] = math.nan
    token, margin = sampling.greedy(logits, kernel_set=NATIVE)
    assert token == size // 2
    assert math.isnan(margin)
    flat = torch.full((size,), -math.inf)
    assert sampling.greedy(flat, kernel_set=NATIVE)[0] == 0


@built
def test_slots_in_any_order_give_the_bits_of_positions(dtype: torch.dtype) -> None:
    q, cache = torch.randn(3, 6, 16).to(dtype), torch.randn(2, 400, 2, 16).to(dtype)
    slots = torch.randperm(400)[:303]
    context = attention.select(NATIVE).prepare(3, 300, dtype=dtype, device=q.device)
    paged = attention.paged_attention(
        q, cache[0], cache[1], slots, context, 0.25, kernel_set=NATIVE
    )
    k, v = cache[0, slots], cache[1, slots]
    assert torch.equal(attention.attend(q, k, v, context, 0.25, kernel_set=NATIVE), paged)


@built
def test_other_numbers_than_float32_and_bfloat16_are_refused() -> None:
    with pytest.raises(ValueError, match="float16"):
        linear.linear(torch.ones(1, 2).half(), torch.ones(1, 2).half(), kernel_set=NATIVE)


@built
def test_what_an_address_would_misread_is_refused() -> None:
    x, dense = torch.randn(2, 16), torch.randn(3, 16, 16)
    with pytest.raises(ValueError, match="meta"):
        linear.linear(x.to("meta"), dense[0].to("meta"), kernel_set=NATIVE)
    experts, up, down = grouped_moe.select(NATIVE), packed(3, 32, 16), packed(3, 16, 16, half=True)
    mixed = NvFp4Bank(
        gate_up_codes=up[0],
        gate_up_block_scales=up[1],
        gate_up_row_scales=up[2],
        down_codes=down[0],
        down_block_scales=down[1],
        down_row_scales=down[2],
    )
    plain = DenseBank(gate_up=torch.randn(3, 32, 16), down=dense)
    for bank, what, index in (
        (mixed, "one dtype", 0),
        (DenseBank(gate_up=plain.gate_up, down=dense.mT), "contiguous", 0),
        (DenseBank(gate_up=plain.gate_up, down=dense.bfloat16()), "float32", 0),
        (plain, "below 3", 3),
        (plain, "below 3", -1),
    ):
        with pytest.raises(ValueError, match=what):
            experts.expert(x, bank, index)
    assert experts.expert(x, plain, 2).shape == (2, 16)


@built
def test_a_sum_of_no_columns_is_the_bias(dtype: torch.dtype) -> None:
    x, weight, bias = torch.ones(2, 0).to(dtype), torch.ones(3, 0).to(dtype), torch.randn(3)
    out = linear.linear(x, weight, bias.to(dtype), kernel_set=NATIVE)
    assert torch.equal(out, bias.to(dtype).expand(2, 3))
