"""The gated delta rule in Triton, row by row: one program per value head and block of columns.

R rows, K key heads, V value heads, Dk key size, Dv value size. A program carries the state
[Dk, BLOCK_VALUES] of its columns in registers, in float32, through all rows of the call; outputs
are rounded once to the dtype of v.

Bitwise: repeats; a row's bits, and the state's, depend on the rows before alone: a row is one pass
of one loop, the same for a prompt and for a decode step, and the float32 state between two calls
is the one between two passes. So a cut of the rows changes nothing. A program alone reads and
writes its part of the state.

The form in chunks of rows (`chunked_kernel.py`) does most of its work in matrix units and waits
for each chunk, where this one waits for each row. No kernel set takes it, for any number of rows:
a chunk's bits depend on where it begins, and a state between chunks on the raw rows of an
unfinished one.
"""

from collections.abc import Iterator

import torch
import triton.language as tl

from kernels.configurations import DELTA_RULE, padded
from kernels.delta_rule import chunked_kernel
from kernels.delta_rule.reference import L2_EPS
from kernels.device_code import (
    FLOATS,
    WIDE_BYTES,
    Variant,
    narrow,
    one_binary,
    placed_by_size,
    require_device,
    sigmoid,
    softplus,
    type_name,
    variant,
    widen,
)
from kernels.kernel_sets import require

OP = "delta_rule"
LARGEST = max(DELTA_RULE)


@one_binary
def delta_rule_kernel(
    q,
    k,
    v,
    a,
    b,
    a_log,
    dt_bias,
    state,
    out,
    eps,
    scale,
    num_rows,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    a_row,
    a_head,
    b_row,
    b_head,
    a_log_head,
    dt_bias_head,
    GROUP: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    KEY_ALIGN: tl.constexpr,
    VALUE_ALIGN: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_VALUES: tl.constexpr,
):
    """Per row ``S <- e^g S; d = beta (v - S^T k); S <- S + k d^T; out = S^T q``."""
    head = tl.program_id(1).to(tl.int64)
    key_head = head // GROUP
    place = tl.arange(0, BLOCK_KEYS)
    first_column = tl.program_id(0) * BLOCK_VALUES
    column = first_column + tl.arange(0, BLOCK_VALUES)
    has_key, has_value = place < KEY_SIZE, column < VALUE_SIZE
    own = state + (head * KEY_SIZE + place[:, None]) * VALUE_SIZE + column[None, :]
    has_both = has_key[:, None] & has_value[None, :]
    memory = tl.load(own, mask=has_both, other=0.0)
    rate = -tl.exp(tl.load(a_log + head * a_log_head))
    bias = tl.load(dt_bias + head * dt_bias_head)
    for row in range(0, num_rows):
        at = tl.cast(row, tl.int64)
        source = tl.multiple_of(q + at * q_row + key_head * q_head, KEY_ALIGN) + place
        query = widen(tl.load(source, mask=has_key, other=0.0))
        query *= tl.math.rsqrt(tl.sum(query * query, axis=0) + eps) * scale
        source = tl.multiple_of(k + at * k_row + key_head * k_head, KEY_ALIGN) + place
        key = widen(tl.load(source, mask=has_key, other=0.0))
        key *= tl.math.rsqrt(tl.sum(key * key, axis=0) + eps)
        source = tl.multiple_of(v + at * v_row + head * v_head, VALUE_ALIGN) + column
        value = widen(tl.load(source, mask=has_value, other=0.0))
        decay = tl.exp(rate * softplus(widen(tl.load(a + at * a_row + head * a_head)) + bias))
        beta = sigmoid(widen(tl.load(b + at * b_row + head * b_head)))

        memory *= decay
        delta = beta * (value - tl.sum(memory * key[:, None], axis=0))
        memory += key[:, None] * delta[None, :]
        read = tl.sum(memory * query[:, None], axis=0)
        target = out + (at * tl.num_programs(1) + head) * VALUE_SIZE + column
        tl.store(target, narrow(read, out.dtype.element_ty), mask=has_value)
    tl.store(own, memory, mask=has_both)


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    """Row by row, whatever the number of rows; see the reference for the arguments.

    q, k and v must be of one dtype.
    """
    key_size, value_size = state.shape[1:]
    require(key_size <= LARGEST, OP, f"a key size of at most {LARGEST}", key_size)
    out = _output(q, k, v, a, b, a_log, dt_bias, state)
    if out.numel() == 0:
        return out
    rows, heads, _ = v.shape
    (q, key_align), (k, _), (v, value_align) = map(placed_by_size, (q, k, v))
    configuration = DELTA_RULE[padded(key_size)]
    delta_rule_kernel[(-(-value_size // configuration.blocks["BLOCK_VALUES"]), heads)](
        q,
        k,
        v,
        a,
        b,
        a_log,
        dt_bias,
        state,
        out,
        L2_EPS,
        key_size**-0.5,
        rows,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        *a.stride(),
        *b.stride(),
        a_log.stride(0),
        dt_bias.stride(0),
        GROUP=heads // k.shape[1],
        KEY_SIZE=key_size,
        VALUE_SIZE=value_size,
        KEY_ALIGN=key_align,
        VALUE_ALIGN=value_align,
        BLOCK_KEYS=padded(key_size),
        **configuration.blocks,
        num_warps=configuration.num_warps,
        num_stages=configuration.num_stages,
    )
    return out


def delta_rule_chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    """In chunks of 32 rows from the first row on; the last one may be shorter.

    Bitwise: repeats; calls of a multiple of 32 rows each, but for the last one, give the bits of
    one call. Any other cut, and the form row by row, give other bits: outputs, before they are
    rounded, and state differ by less than 2e-6 of their largest magnitude.
    """
    out = _output(q, k, v, a, b, a_log, dt_bias, state)
    if out.numel():
        chunked_kernel.advance(q, k, v, a, b, a_log, dt_bias, state, out)
    return out


def _output(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: torch.Tensor
) -> torch.Tensor:
    require_device(OP, q, k, v, *others)
    dtypes = (q.dtype, k.dtype, v.dtype)
    require(len({*dtypes}) == 1, OP, "q, k and v of one dtype", dtypes)
    return torch.empty(v.shape, dtype=v.dtype, device=v.device)


def variants() -> Iterator[Variant]:
    """Every dtype and padded key size, as wide a value; a and b of the same dtype; and chunks."""
    for dtype in FLOATS:
        name = type_name(dtype)
        pointers = " ".join(f"{p}:{name}" for p in ("q", "k", "v", "a", "b", "out"))
        for size, configuration in DELTA_RULE.items():
            yield variant(
                f"{name} {size}",
                delta_rule_kernel,
                configuration,
                f"{pointers} a_log:fp32 dt_bias:fp32 state:fp32",
                GROUP=2,
                KEY_SIZE=size,
                VALUE_SIZE=size,
                KEY_ALIGN=WIDE_BYTES,
                VALUE_ALIGN=WIDE_BYTES,
                BLOCK_KEYS=size,
            )
    yield from chunked_kernel.variants()
