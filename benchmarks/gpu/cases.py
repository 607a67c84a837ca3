"""One case per kernel, in the shapes of the published models. Measures nothing.

A case calls the op through its public function, and gives the unchecked one that adapters choose
beside it; what an ideal kernel reads and writes, and its multiplications, follow from the shapes.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch

import kernels.attention.api as attention
import kernels.causal_conv.api as causal_conv
import kernels.delta_rule.api as delta_rule
import kernels.embedding.api as embedding
import kernels.fingerprint.api as fingerprint
import kernels.fp8_linear.api as fp8_linear
import kernels.gated_activation.api as gated_activation
import kernels.gated_norm.api as gated_norm
import kernels.grouped_moe.api as grouped_moe
import kernels.kv_cache.api as kv_cache
import kernels.linear.api as linear
import kernels.nvfp4.api as nvfp4
import kernels.rms_norm.api as rms_norm
import kernels.rope.api as rope
import kernels.sampling.api as sampling
import kernels.sigmoid_gate.api as sigmoid_gate
import kernels.softcap.api as softcap
from benchmarks.gpu.case import EXACT, Case, Outputs, Sizes
from kernels.grouped_moe.records import NvFp4Bank
from kernels.nvfp4.records import BLOCK_COLUMNS, NvFp4Rows


def cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """Every op once for one row (decode) and, where it makes a difference, for many."""
    torch.manual_seed(0)
    small = (2 * sizes.intermediate, sizes.hidden)
    bank = _bank(sizes, device)
    for rows in (1, sizes.rows):
        yield from _row_wise(sizes, rows, device)
        yield from _products(small, rows, device, "")
        yield _experts(sizes, rows, bank, device)
        yield _attention(sizes, rows, device)
        yield from _mixers(sizes, rows, device)
    for rows in (1, sizes.many_rows):
        yield from _products(sizes.wide, rows, device, " wide")
    yield from _one_row(sizes, device)


def _random(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, device=device).bfloat16()


def _nbytes(*tensors: torch.Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _row_wise(sizes: Sizes, rows: int, device: torch.device) -> Iterator[Case]:
    x, weight = _random(rows, sizes.hidden, device=device), _random(sizes.hidden, device=device)
    gate_up = _random(rows, 2 * sizes.intermediate, device=device)
    heads = _random(rows, sizes.heads, sizes.head_dim, device=device)
    angle = torch.rand(rows, sizes.head_dim // 2, device=device)
    cos, sin = rope.angles(angle.cos(), angle.sin())

    def one(
        name: str,
        public: Callable[..., torch.Tensor],
        select: Callable[[str], Callable[..., object]],
        *arguments: object,
    ) -> Case:
        read = [each for each in arguments if isinstance(each, torch.Tensor)]
        return Case(
            name=f"{name}, {rows} rows",
            run=lambda s: (public(*arguments, kernel_set=s),),
            launch=lambda s: partial(select(s), *arguments),
            num_bytes=_nbytes(public(*arguments, kernel_set="torch-reference/1"), *read),
        )

    yield one("rms_norm", rms_norm.rms_norm, rms_norm.select, x, weight, 1e-6)
    yield Case(
        name=f"add_rms_norm, {rows} rows",
        run=lambda s: rms_norm.add_rms_norm(x, x, weight, 1e-6, True, kernel_set=s),
        launch=lambda s: partial(rms_norm.select_add(s), x, x, weight, 1e-6, True),
        num_bytes=4 * x.nbytes,
    )
    yield one("rope", rope.rope, rope.select, heads, cos, sin)
    gated = gated_activation
    yield one("silu_gated", gated.silu_gated, gated.select_silu, gate_up)
    yield one("gelu_tanh_gated", gated.gelu_tanh_gated, gated.select_gelu_tanh, gate_up)
    yield one("sigmoid_gate", sigmoid_gate.sigmoid_gate, sigmoid_gate.select, x, x)
    capped = x.clone()
    yield Case(
        name=f"softcap, {rows} rows",
        run=lambda s: (softcap.softcap_(x.clone(), 30.0, kernel_set=s),),
        launch=lambda s: partial(softcap.select(s), capped, 30.0),
        num_bytes=2 * x.nbytes,
    )


def _products(shape: tuple[int, int], rows: int, device: torch.device, kind: str) -> Iterator[Case]:
    outputs, columns = shape
    x = _random(rows, columns, device=device)
    weight = _random(outputs, columns, device=device) * columns**-0.5
    other_bytes = x.nbytes + 2 * rows * outputs

    def one(
        name: str,
        public: Callable[..., torch.Tensor],
        select: Callable[[str], Callable[..., object]],
        num_bytes: int,
        *weights: object,
    ) -> Case:
        return Case(
            name=f"{name}{kind}, {rows} rows",
            run=lambda s: (public(x, *weights, kernel_set=s),),
            launch=lambda s: partial(select(s), x, *weights),
            num_bytes=num_bytes + other_bytes,
            num_flop=2 * rows * outputs * columns,
        )

    yield one("linear", linear.linear, linear.select, weight.nbytes, weight)
    fp8, scale = weight.to(torch.float8_e4m3fn), torch.ones(outputs, device=device)
    yield one("fp8_linear", fp8_linear.fp8_linear, fp8_linear.select, fp8.nbytes, fp8, scale)
    packed = _packed(outputs, columns, device)
    yield one("nvfp4_linear", nvfp4.nvfp4_linear, nvfp4.select, packed.num_bytes, packed)


def _packed(outputs: int, columns: int, device: torch.device) -> NvFp4Rows:
    """Every code; no scale is 0 or no number."""
    scales = torch.rand(outputs, columns // BLOCK_COLUMNS, device=device) + 0.5
    return NvFp4Rows(
        codes=torch.randint(256, (outputs, columns // 2), dtype=torch.uint8, device=device),
        block_scales=scales.to(torch.float8_e4m3fn),
        row_scales=torch.full((outputs,), columns**-0.5, device=device),
    )


def _bank(sizes: Sizes, device: torch.device) -> NvFp4Bank:
    def stacked(outputs: int, columns: int) -> list[torch.Tensor]:
        parts = [_packed(outputs, columns, device) for _ in range(sizes.experts)]
        scales = torch.stack([part.block_scales.view(torch.uint8) for part in parts])
        return [
            torch.stack([part.codes for part in parts]),
            scales.view(torch.float8_e4m3fn),
            torch.stack([part.row_scales for part in parts]),
        ]

    up, down = (
        stacked(2 * sizes.intermediate, sizes.hidden),
        stacked(sizes.hidden, sizes.intermediate),
    )
    return NvFp4Bank(
        gate_up_codes=up[0],
        gate_up_block_scales=up[1],
        gate_up_row_scales=up[2],
        down_codes=down[0],
        down_block_scales=down[1],
        down_row_scales=down[2],
    )


def _experts(sizes: Sizes, rows: int, bank: NvFp4Bank, device: torch.device) -> Case:
    x = _random(rows, sizes.hidden, device=device)
    logits = torch.randn(rows, sizes.experts, device=device)
    top_k = min(8, sizes.experts)
    touched = min(sizes.experts, rows * top_k)

    def launch(kernel_set: str) -> Callable[[], object]:
        op = grouped_moe.select(kernel_set)
        return lambda: op.routed(x, op.route(logits, top_k), bank)

    return Case(
        name=f"grouped_moe, {rows} rows",
        run=lambda s: (grouped_moe.grouped_moe(x, logits, top_k, bank, kernel_set=s)[0],),
        launch=launch,
        num_bytes=touched * bank.bytes_per_expert + 2 * x.nbytes,
        num_flop=6 * rows * top_k * sizes.hidden * sizes.intermediate,
    )


def _attention(sizes: Sizes, rows: int, device: torch.device) -> Case:
    slots = torch.randperm(sizes.context, device=device)
    cache = (sizes.context, sizes.kv_heads, sizes.head_dim)
    k, v = _random(*cache, device=device), _random(*cache, device=device)
    q = _random(rows, sizes.heads, sizes.head_dim, device=device)

    scale = sizes.head_dim**-0.5

    def prepared(kernel_set: str) -> attention.AttentionContext:
        op, start = attention.select(kernel_set), sizes.context - rows
        return op.prepare(rows, start, dtype=q.dtype, device=device)

    def run(kernel_set: str) -> Outputs:
        step = prepared(kernel_set)
        return (attention.paged_attention(q, k, v, slots, step, scale, kernel_set=kernel_set),)

    def launch(kernel_set: str) -> Callable[[], object]:
        op, step = attention.select(kernel_set), prepared(kernel_set)
        return partial(op.paged, q, k, v, slots, step, scale)

    flop = 4 * rows * sizes.heads * sizes.context * sizes.head_dim
    return Case(
        name=f"paged_attention, {rows} rows",
        run=run,
        launch=launch,
        num_bytes=_nbytes(q, q, k, v, slots),
        num_flop=flop,
    )


def _mixers(sizes: Sizes, rows: int, device: torch.device) -> Iterator[Case]:
    channels, taps = sizes.hidden, 4
    x = _random(rows, channels, device=device)
    weight, inputs = (
        _random(channels, taps, device=device),
        _random(channels, taps - 1, device=device),
    )

    def convolve(kernel_set: str) -> Outputs:
        state = inputs.clone()
        return causal_conv.causal_conv(x, weight, state, kernel_set=kernel_set), state

    carried = inputs.clone()
    yield Case(
        name=f"causal_conv, {rows} rows",
        run=convolve,
        launch=lambda s: partial(causal_conv.select(s), x, weight, carried),
        num_bytes=2 * _nbytes(x, inputs),
    )
    heads, size = sizes.heads, 128 if sizes.hidden >= 2048 else 16
    q, k = (_random(rows, heads // 2, size, device=device) for _ in range(2))
    v, gate = (_random(rows, heads, size, device=device) for _ in range(2))
    a, b = (_random(rows, heads, device=device) for _ in range(2))
    a_log, dt_bias = -torch.rand(heads, device=device), torch.rand(heads, device=device)
    held = torch.randn(heads, size, size, device=device)

    def advance(kernel_set: str) -> Outputs:
        state = held.clone()
        read = delta_rule.delta_rule(q, k, v, a, b, a_log, dt_bias, state, kernel_set=kernel_set)
        return read, state

    advanced = held.clone()
    yield Case(
        name=f"delta_rule, {rows} rows",
        run=advance,
        launch=lambda s: partial(delta_rule.select(s), q, k, v, a, b, a_log, dt_bias, advanced),
        num_bytes=_nbytes(q, k, v, v, held, held),
    )
    norm = _random(size, device=device)
    yield Case(
        name=f"gated_norm, {rows} rows",
        run=lambda s: (gated_norm.gated_norm(v, gate, norm, 1e-6, kernel_set=s),),
        launch=lambda s: partial(gated_norm.select(s), v, gate, norm, 1e-6),
        num_bytes=3 * v.nbytes,
    )


def _one_row(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    ids = torch.randint(0, sizes.vocabulary, (sizes.rows,), device=device)
    table = _random(sizes.vocabulary, sizes.hidden, device=device)
    yield Case(
        name="embedding",
        run=lambda s: (embedding.embedding(ids, table, kernel_set=s),),
        launch=lambda s: partial(embedding.select(s), ids, table),
        num_bytes=2 * sizes.rows * sizes.hidden * 2,
        tolerance=EXACT,
    )

    def digest(kernel_set: str) -> Outputs:
        # The oracle counts with whole numbers of Python; the host's set stands in for it here.
        is_oracle = kernel_set == "torch-reference/1"
        x, chosen = (table.cpu(), "torch-cpu/1") if is_oracle else (table, kernel_set)
        lanes = fingerprint.fingerprint(x, kernel_set=chosen)
        return (torch.tensor([int(lanes[at : at + 8], 16) for at in range(0, len(lanes), 8)]),)

    yield Case(
        name="fingerprint",
        run=digest,
        launch=lambda s: partial(fingerprint.select(s), table),
        num_bytes=table.nbytes,
        tolerance=EXACT,
    )
    logits = torch.randn(sizes.vocabulary, device=device)

    def choose(kernel_set: str) -> Outputs:
        token, margin = sampling.greedy(logits, kernel_set=kernel_set)
        return (torch.tensor([float(token), margin]),)

    yield Case(name="greedy", run=choose, num_bytes=logits.nbytes, tolerance=EXACT)
    rows = (sizes.rows, sizes.kv_heads, sizes.head_dim)
    k, v = _random(*rows, device=device), _random(*rows, device=device)
    slots = torch.randperm(2 * sizes.rows, device=device)[: sizes.rows]

    def store(kernel_set: str) -> Outputs:
        caches = [
            torch.zeros(2 * sizes.rows, *rows[1:], device=device).bfloat16() for _ in range(2)
        ]
        kv_cache.store(k, v, caches[0], caches[1], slots, kernel_set=kernel_set)
        return (*caches, kv_cache.load(caches[0], slots, kernel_set=kernel_set))

    held = [torch.zeros(2 * sizes.rows, *rows[1:], device=device).bfloat16() for _ in range(2)]

    def launch(kernel_set: str) -> Callable[[], object]:
        op = kv_cache.select(kernel_set)

        def both() -> torch.Tensor:
            op.store(k, v, held[0], held[1], slots)
            return op.load(held[0], slots)

        return both

    yield Case(name="kv_cache", run=store, launch=launch, num_bytes=6 * k.nbytes, tolerance=EXACT)
