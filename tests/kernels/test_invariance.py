"""In torch-cpu-invariant/1 a row's bits depend neither on its neighbours nor on the chunking."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

import kernels.attention.api as attention
import kernels.embedding.api as embedding
import kernels.gated_activation.api as gated_activation
import kernels.linear.api as linear
import kernels.rms_norm.api as rms_norm
import kernels.rope.api as rope
import kernels.softcap.api as softcap
from kernels.row_by_row import aligned, each_row

CPU = torch.device("cpu")
INVARIANT = "torch-cpu-invariant/1"
CHUNKS = (1, 7, 13, 64, 100)
LENGTHS = [
    257,
    pytest.param(600, marks=pytest.mark.slow),
    pytest.param(1000, marks=pytest.mark.slow),
]


def chunked(op: Callable[..., torch.Tensor], rows: int, size: int, *tensors: torch.Tensor):
    pieces = [op(*(x[start : start + size] for x in tensors)) for start in range(0, rows, size)]
    return torch.cat(pieces)


def same_attention_in_chunks(
    rows: int, heads: int, kv_heads: int, size: int, window, cap, dtype: torch.dtype
) -> None:
    q = torch.randn(rows, heads, size).to(dtype)
    k, v = torch.randn(2, rows, kv_heads, size).to(dtype).unbind(0)
    op = attention.select(INVARIANT)

    def prefill(chunk: int, evict: bool) -> torch.Tensor:
        out = []
        for start in range(0, rows, chunk):
            end = min(rows, start + chunk)
            first = max(0, start - window + 1) if evict else 0
            context = op.prepare(
                end - start, start, dtype=dtype, device=CPU, first_position=first, window=window
            )
            keys, values = k[first:end], v[first:end]
            if evict:  # the same keys elsewhere in memory
                keys, values = torch.cat((keys[:1], keys))[1:], values.clone()
            out.append(op.attend(q[start:end], keys, values, context, size**-0.5, cap))
        return torch.cat(out)

    one_shot = prefill(rows, evict=False)
    for chunk in CHUNKS:
        assert torch.equal(prefill(chunk, evict=False), one_shot), chunk
        if window is not None:
            assert torch.equal(prefill(chunk, evict=True), one_shot), chunk


@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "window", "cap"),
    [
        (9, 3, 64, None, None),
        (9, 3, 64, 64, None),
        (4, 1, 256, 100, None),
        (2, 1, 512, None, None),
        (4, 2, 10, 7, None),
        (4, 2, 64, 65, 5.0),
    ],
)
def test_attention(
    rows: int, heads: int, kv_heads: int, size: int, window, cap, dtype: torch.dtype
) -> None:
    same_attention_in_chunks(rows, heads, kv_heads, size, window, cap, dtype)


def same_linear_in_chunks(
    rows: int, columns: int, outputs: int, with_bias: bool, dtype: torch.dtype
) -> None:
    op = linear.select(INVARIANT)
    x = torch.randn(rows, columns).to(dtype)
    weight = (torch.randn(outputs, columns) * columns**-0.5).to(dtype)
    bias = torch.randn(outputs).to(dtype) if with_bias else None
    one_shot = op(x, weight, bias)
    for chunk in CHUNKS:
        assert torch.equal(chunked(lambda x: op(x, weight, bias), rows, chunk, x), one_shot), chunk
    order = torch.randperm(rows)
    assert torch.equal(op(x[order], weight, bias), one_shot[order])


@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    ("columns", "outputs"), [(64, 192), (577, 65), (1536, 130), (4096, 3), (193, 1)]
)
def test_linear(rows: int, columns: int, outputs: int, with_bias: bool, dtype: torch.dtype) -> None:
    same_linear_in_chunks(rows, columns, outputs, with_bias, dtype)


@pytest.mark.slow
def test_two_threads(dtype: torch.dtype) -> None:
    torch.set_num_threads(2)  # conftest restores it
    same_linear_in_chunks(130, 577, 192, False, dtype)
    same_attention_in_chunks(130, 9, 3, 64, 50, None, dtype)
    for op, tensors in _cases(dtype).values():
        one_shot = op(*tensors)
        assert torch.equal(chunked(op, 257, 64, *tensors), one_shot)


def _cases(dtype: torch.dtype) -> dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]]:
    # Odd sizes and more elements than one thread takes: where vectors and threads cut a row.
    weight = torch.randn(577).to(dtype)
    norm = rms_norm.select(INVARIANT)
    table = torch.randn(50, 33).to(dtype)
    turn, embed = rope.select(INVARIANT), embedding.select(INVARIANT)
    cap = softcap.select(INVARIANT)
    angle = torch.rand(257, 29) * 7
    heads = torch.randn(257, 11, 58).to(dtype)
    wide = torch.randn(257, 577).to(dtype)
    return {
        "rms_norm": (lambda x: norm(x, weight, 1e-6), [wide]),
        "rms_norm with offset": (lambda x: norm(x, weight, 1e-6, True), [wide]),
        "rms_norm of heads": (lambda x: norm(x, weight[:58], 1e-6), [heads]),
        "rms_norm without weight": (lambda x: norm(x, None, 1e-6), [heads]),
        "rope": (lambda x, c, s: turn(x, *rope.angles(c, s)), [heads, angle.cos(), angle.sin()]),
        "silu": (gated_activation.select_silu(INVARIANT), [torch.randn(257, 1154).to(dtype) * 3]),
        "gelu": (
            gated_activation.select_gelu_tanh(INVARIANT),
            [torch.randn(257, 1154).to(dtype) * 3],
        ),
        "softcap": (lambda x: cap(x.clone(), 3.0), [wide * 5]),
        "embedding": (lambda ids: embed(ids, table, 5.7), [torch.randint(0, 50, (257,))]),
    }


@pytest.mark.parametrize("name", list(_cases(torch.float32)))
def test_row_wise_ops(name: str, dtype: torch.dtype) -> None:
    op, tensors = _cases(dtype)[name]
    one_shot = op(*tensors)
    for chunk in CHUNKS:
        assert torch.equal(chunked(op, 257, chunk, *tensors), one_shot), chunk


@pytest.mark.parametrize("columns", [3, 577])
def test_softcap_of_rows_in_place(columns: int, dtype: torch.dtype) -> None:
    x = torch.randn(5, columns).to(dtype) * 9
    expected = torch.stack([torch.tanh(row.clone() / 3.0) * 3.0 for row in x])
    assert softcap.softcap_(x, 3.0, kernel_set=INVARIANT) is x
    assert torch.equal(x, expected)


def test_a_step_of_one_row_equals_the_fast_set(dtype: torch.dtype) -> None:
    x, weight = torch.randn(1, 576).to(dtype), torch.randn(960, 576).to(dtype)
    assert torch.equal(linear.select(INVARIANT)(x, weight), linear.select("torch-cpu/1")(x, weight))
    q, k, v = (torch.randn(n, 3, 64).to(dtype) for n in (1, 40, 40))
    mixed = []
    for name in (INVARIANT, "torch-cpu/1"):
        op = attention.select(name)
        context = op.prepare(1, 39, dtype=dtype, device=CPU, window=20)
        mixed.append(op.attend(q, k, v, context, 0.125))
    assert torch.equal(*mixed)


ROW_WISE = [
    (gated_activation.cpu, "silu_gated", lambda: gated_activation.select_silu(INVARIANT)(ROWS)),
    (
        gated_activation.cpu,
        "gelu_tanh_gated",
        lambda: gated_activation.select_gelu_tanh(INVARIANT)(ROWS),
    ),
    (linear.cpu, "linear", lambda: linear.select(INVARIANT)(ROWS, torch.zeros(3, 14))),
    (rms_norm.cpu, "rms_norm", lambda: rms_norm.select(INVARIANT)(ROWS, None, 1e-6)),
    (
        rope.cpu,
        "rope",
        lambda: rope.select(INVARIANT)(ROWS.view(5, 1, 14), *rope.angles(ANGLES, ANGLES)),
    ),
    (attention.cpu, "one_row", lambda: _attend_five_rows()),
    (softcap.cpu, "softcap_", lambda: softcap.select(INVARIANT)(ROWS.clone(), 3.0)),
]
ROWS, ANGLES = torch.ones(5, 14), torch.ones(5, 7)


def _attend_five_rows() -> torch.Tensor:
    op = attention.select(INVARIANT)
    context = op.prepare(5, 4, dtype=torch.float32, device=CPU, window=3)
    return op.attend(torch.randn(5, 2, 10), *torch.randn(2, 9, 1, 10).unbind(0), context, 1.0)


@pytest.mark.parametrize(("cpu", "name", "call"), ROW_WISE, ids=[case[1] for case in ROW_WISE])
def test_every_op_computes_one_aligned_row_at_a_time(
    cpu: ModuleType, name: str, call: Callable[[], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether rows differ when computed together depends on the machine; this does not.
    original, seen = getattr(cpu, name), []

    def spy(x: torch.Tensor, *more: object) -> torch.Tensor:
        tensors = [y for y in (x, *more) if isinstance(y, torch.Tensor)]
        num_rows = 1 if x.ndim == 1 else x.shape[0]
        seen.append((num_rows, all(y.data_ptr() % 64 == 0 for y in tensors)))
        return original(x, *more)

    monkeypatch.setattr(cpu, name, spy)
    assert call().shape[0] == 5
    assert seen == [(1, True)] * 5


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_each_row_is_one_aligned_call_of_one_shape(rows: int) -> None:
    x, y = torch.randn(rows + 1, 3, 7)[1:], torch.randn(rows, 5)
    seen = []

    def op(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        seen.append((a.clone(), b.clone()))
        assert a.data_ptr() % 64 == 0
        assert b.data_ptr() % 64 == 0
        return a[:, :, 0] + b[:, :3]

    actual = each_row(op, x, y)
    assert torch.equal(actual, x[:, :, 0] + y[:, :3])
    assert [(a.shape, b.shape) for a, b in seen] == [((1, 3, 7), (1, 5))] * rows
    assert torch.equal(torch.cat([a for a, _ in seen]), x)


def test_aligned_copies_only_what_is_not() -> None:
    x = torch.randn(33)
    assert aligned(x) is x
    assert aligned(x[16:]).data_ptr() == x[16:].data_ptr()
    moved = aligned(x[1:])
    assert moved.data_ptr() != x[1:].data_ptr()
    assert torch.equal(moved, x[1:])
