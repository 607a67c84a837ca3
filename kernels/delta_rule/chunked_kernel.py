"""The gated delta rule in Triton, in chunks of rows. Knows nothing of the form row by row.

R rows, c rows of a chunk, K key heads, V value heads, Dk key size, Dv value size. In a chunk, G
sums the log decays from its start, and S is the state there. The deltas d of its rows solve
``(I + A) d = beta (v - e^G (k S))`` with ``A_ij = beta_i (k_i k_j) e^(G_i - G_j)`` for j < i. So

    factors kernel   all chunks at once, one program per chunk and value head:
                     solution = (I + A)^-1 beta and mixture_ij = (q_i k_j) e^(G_i - G_j), j <= i
    pass kernel      chunk after chunk, one program per value head and block of columns:
                     d = solution (v - e^G (k S)); out = e^G (q S) + mixture d
                     S <- e^G_c S + (e^(G_c - G) k)^T d

Keys and queries are taken as they are; that their length is 1 is a factor of each row. A program
of the pass alone reads and writes its part of the state.
"""

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.configurations import DELTA_RULE_FACTORS, DELTA_RULE_PASS
from kernels.delta_rule.reference import L2_EPS
from kernels.device_code import (
    FLOATS,
    INTERPRETED,
    WIDE_BYTES,
    Variant,
    dot,
    narrow,
    one_binary,
    placed_by_size,
    sigmoid,
    softplus,
    type_name,
    variant,
    widen,
)

CHUNK_ROWS = 32
_LAUNCH_CHUNKS = 128
"""Bounds what is held between the kernels: 8.5 KiB for each chunk and head."""


@triton.jit
def product(a, b):
    """``a b`` in matrix units; float32 factors as sums of two shortened ones each."""
    if INTERPRETED or a.dtype == tl.bfloat16:
        return dot(a, b)
    else:
        return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def load_tile(x, row, x_row, has_row, column, SIZE: tl.constexpr, ALIGN: tl.constexpr):
    """Some columns of rows; zeros for those that are not there."""
    source = tl.multiple_of(x + row[:, None] * x_row, [ALIGN, ALIGN]) + column[None, :]
    return tl.load(source, mask=has_row[:, None] & (column < SIZE)[None, :], other=0.0)


@one_binary
def chunk_factors_kernel(
    q,
    k,
    a,
    b,
    a_log,
    dt_bias,
    solutions,
    mixtures,
    factors,
    eps,
    scale,
    num_rows,
    q_row,
    q_head,
    k_row,
    k_head,
    a_row,
    a_head,
    b_row,
    b_head,
    a_log_head,
    dt_bias_head,
    GROUP: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    KEY_ALIGN: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """What a chunk of one head needs beside its values and the state."""
    head = tl.program_id(1).to(tl.int64)
    key_head = head // GROUP
    own = tl.arange(0, CHUNK)
    row = tl.program_id(0).to(tl.int64) * CHUNK + own
    has_row = row < num_rows
    queries_keys = tl.zeros([CHUNK, CHUNK], tl.float32)
    keys_keys = tl.zeros([CHUNK, CHUNK], tl.float32)
    queries_squared = tl.zeros([CHUNK], tl.float32)
    keys_squared = tl.zeros([CHUNK], tl.float32)
    for start in range(0, KEY_SIZE, BLOCK_KEYS):
        place = start + tl.arange(0, BLOCK_KEYS)
        query = load_tile(q + key_head * q_head, row, q_row, has_row, place, KEY_SIZE, KEY_ALIGN)
        key = load_tile(k + key_head * k_head, row, k_row, has_row, place, KEY_SIZE, KEY_ALIGN)
        queries_keys += product(query, tl.trans(key))
        keys_keys += product(key, tl.trans(key))
        queries_squared += tl.sum(widen(query) * widen(query), axis=1)
        keys_squared += tl.sum(widen(key) * widen(key), axis=1)
    of_query = tl.math.rsqrt(queries_squared + eps) * scale
    of_key = tl.math.rsqrt(keys_squared + eps)

    rate = -tl.exp(tl.load(a_log + head * a_log_head))
    bias = tl.load(dt_bias + head * dt_bias_head)
    step = widen(tl.load(a + row * a_row + head * a_head, mask=has_row, other=0.0))
    decay = tl.where(has_row, rate * softplus(step + bias), 0.0).to(tl.float64)
    beta = sigmoid(widen(tl.load(b + row * b_row + head * b_head, mask=has_row, other=0.0)))
    # Differences of sums that may reach thousands: in float32 they would lose what exp needs.
    total = tl.cumsum(decay, axis=0)
    earlier, later = own[None, :], own[:, None]
    between = (total[:, None] - total[None, :]).to(tl.float32)
    # Masked before exp: above the diagonal the difference is positive and may overflow.
    between = tl.exp(tl.where(earlier <= later, between, float("-inf"))) * of_key[None, :]
    mixture = queries_keys * between * of_query[:, None]
    among = keys_keys * between * (of_key * beta)[:, None]
    # Forward substitution: the rows of the inverse above the one to solve are known.
    inverse = tl.where(earlier == later, 1.0, 0.0)
    for solved in range(1, CHUNK):
        known = tl.where((later == solved) & (earlier < later), among, 0.0)
        known = tl.sum(tl.sum(known, axis=0)[:, None] * inverse, axis=0)
        inverse = tl.where(later == solved, inverse - known[None, :], inverse)

    chunk = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + head
    square = (chunk * CHUNK + later) * CHUNK + earlier
    tl.store(solutions + square, inverse * beta[None, :])
    tl.store(mixtures + square, mixture)
    since_start = tl.exp(total.to(tl.float32))
    to_end = tl.exp((tl.sum(decay, axis=0) - total).to(tl.float32))
    target = factors + chunk * 4 * CHUNK + own
    tl.store(target, since_start * of_query)
    tl.store(target + CHUNK, since_start * of_key)
    tl.store(target + 2 * CHUNK, to_end * of_key)
    tl.store(target + 3 * CHUNK, since_start)


@one_binary
def chunk_pass_kernel(
    q,
    k,
    v,
    solutions,
    mixtures,
    factors,
    state,
    out,
    num_rows,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    GROUP: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    KEY_ALIGN: tl.constexpr,
    VALUE_ALIGN: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_VALUES: tl.constexpr,
):
    """Carry the state of one head and some columns through the chunks."""
    head = tl.program_id(1).to(tl.int64)
    key_head = head // GROUP
    own = tl.arange(0, CHUNK)
    column = tl.program_id(0) * BLOCK_VALUES + tl.arange(0, BLOCK_VALUES)
    has_column = (column < VALUE_SIZE)[None, :]
    memory = state + head * KEY_SIZE * VALUE_SIZE + column[None, :]
    for first in range(0, num_rows, CHUNK):
        row = tl.cast(first, tl.int64) + own
        has_row = row < num_rows
        read = tl.zeros([CHUNK, BLOCK_VALUES], tl.float32)
        known = tl.zeros([CHUNK, BLOCK_VALUES], tl.float32)
        for start in range(0, KEY_SIZE, BLOCK_KEYS):
            place = start + tl.arange(0, BLOCK_KEYS)
            stored = (place < KEY_SIZE)[:, None] & has_column
            part = tl.load(memory + place[:, None] * VALUE_SIZE, mask=stored, other=0.0)
            tile = load_tile(q + key_head * q_head, row, q_row, has_row, place, KEY_SIZE, KEY_ALIGN)
            read += product(widen(tile), part)
            tile = load_tile(k + key_head * k_head, row, k_row, has_row, place, KEY_SIZE, KEY_ALIGN)
            known += product(widen(tile), part)
        chunk = tl.cast(first, tl.int64) // CHUNK * tl.num_programs(1) + head
        square = (chunk * CHUNK + own[:, None]) * CHUNK + own[None, :]
        factor = factors + chunk * 4 * CHUNK + own
        value = load_tile(v + head * v_head, row, v_row, has_row, column, VALUE_SIZE, VALUE_ALIGN)
        wanted = widen(value) - known * tl.load(factor + CHUNK)[:, None]
        delta = product(tl.load(solutions + square), wanted)
        read = read * tl.load(factor)[:, None] + product(tl.load(mixtures + square), delta)
        target = out + (row[:, None] * tl.num_programs(1) + head) * VALUE_SIZE + column[None, :]
        rounded = narrow(read, out.dtype.element_ty)
        tl.store(target, rounded, mask=has_row[:, None] & has_column)
        kept = delta * tl.load(factor + 2 * CHUNK)[:, None]
        whole = tl.load(factors + chunk * 4 * CHUNK + 4 * CHUNK - 1)
        # Every thread has read the state before one writes it, and the other way round below.
        tl.debug_barrier()
        for start in range(0, KEY_SIZE, BLOCK_KEYS):
            place = start + tl.arange(0, BLOCK_KEYS)
            stored = (place < KEY_SIZE)[:, None] & has_column
            source = memory + place[:, None] * VALUE_SIZE
            part = tl.load(source, mask=stored, other=0.0)
            tile = load_tile(k + key_head * k_head, row, k_row, has_row, place, KEY_SIZE, KEY_ALIGN)
            part = part * whole + product(tl.trans(widen(tile)), kept)
            tl.store(source, part, mask=stored)
        tl.debug_barrier()


def advance(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Write to out [R, V, Dv], contiguous; see the reference for the other arguments."""
    (q, key_align), (k, _), (v, value_align) = map(placed_by_size, (q, k, v))
    key_size, value_size = state.shape[1:]
    keys = {
        "GROUP": v.shape[1] // k.shape[1],
        "KEY_SIZE": key_size,
        "KEY_ALIGN": key_align,
        "CHUNK": CHUNK_ROWS,
    }
    values = {"VALUE_SIZE": value_size, "VALUE_ALIGN": value_align}
    rows = _LAUNCH_CHUNKS * CHUNK_ROWS
    for first in range(0, v.shape[0], rows):
        part = slice(first, first + rows)
        operands = (q[part], k[part], v[part], a[part], b[part])
        _launch(*operands, a_log, dt_bias, state, out[part], keys, values)


def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    out: torch.Tensor,
    keys: dict[str, Any],
    values: dict[str, Any],
) -> None:
    rows, heads, value_size = v.shape
    chunks = -(-rows // CHUNK_ROWS)
    squares = (2, chunks, heads, CHUNK_ROWS, CHUNK_ROWS)
    solutions, mixtures = torch.empty(squares, device=v.device).unbind(0)
    factors = torch.empty((chunks, heads, 4, CHUNK_ROWS), device=v.device)
    strides = (*q.stride()[:2], *k.stride()[:2])
    chunk_factors_kernel[(chunks, heads)](
        q,
        k,
        a,
        b,
        a_log,
        dt_bias,
        solutions,
        mixtures,
        factors,
        L2_EPS,
        q.shape[2] ** -0.5,
        rows,
        *strides,
        *a.stride(),
        *b.stride(),
        a_log.stride(0),
        dt_bias.stride(0),
        **keys,
        **DELTA_RULE_FACTORS.blocks,
        num_warps=DELTA_RULE_FACTORS.num_warps,
        num_stages=DELTA_RULE_FACTORS.num_stages,
    )
    chunk_pass_kernel[(-(-value_size // DELTA_RULE_PASS.blocks["BLOCK_VALUES"]), heads)](
        q,
        k,
        v,
        solutions,
        mixtures,
        factors,
        state,
        out,
        rows,
        *strides,
        *v.stride()[:2],
        **keys,
        **values,
        **DELTA_RULE_PASS.blocks,
        num_warps=DELTA_RULE_PASS.num_warps,
        num_stages=DELTA_RULE_PASS.num_stages,
    )


def variants() -> Iterator[Variant]:
    """Both dtypes; a and b of the same one. Sizes differ in the length of a loop alone."""
    floats = " ".join(
        f"{p}:fp32" for p in ("a_log", "dt_bias", "solutions", "mixtures", "factors", "state")
    )
    keys = {"GROUP": 2, "KEY_SIZE": 128, "KEY_ALIGN": WIDE_BYTES, "CHUNK": CHUNK_ROWS}
    values = {"VALUE_SIZE": 128, "VALUE_ALIGN": WIDE_BYTES}
    for dtype in FLOATS:
        name = type_name(dtype)
        pointers = " ".join(f"{p}:{name}" for p in ("q", "k", "v", "a", "b", "out")) + " " + floats
        label = f"{name} chunk"
        yield variant(
            f"{label} factors", chunk_factors_kernel, DELTA_RULE_FACTORS, pointers, **keys
        )
        yield variant(
            f"{label} pass", chunk_pass_kernel, DELTA_RULE_PASS, pointers, **keys, **values
        )
