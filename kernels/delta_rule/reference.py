"""The gated delta rule row by row, the oracle.

Shapes: R rows, K key heads, V value heads, Dk key size, Dv value size. Value head h reads key head
h // (V / K).
"""

import torch
from torch.nn import functional

L2_EPS = 1e-6
"""Added to the squared length of a query or key before the inverse square root."""


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
    """``S <- e^g S; d = beta (v - S^T k); S <- S + k d^T; o = S^T q`` per row, in float64.

    With ``g = -exp(a_log) softplus(a + dt_bias)``, ``beta = sigmoid(b)``, q and k of length 1, q
    times ``Dk^-0.5`` (Yang et al., Gated Delta Networks, 2024).

    Args:
        q: [R, K, Dk].
        k: [R, K, Dk].
        v: [R, V, Dv].
        a: [R, V].
        b: [R, V].
        a_log: [V].
        dt_bias: [V].
        state: float32 [V, Dk, Dv]; updated in place, rounded once after the last row.

    Returns:
        [R, V, Dv] in the dtype of ``v``.
    """
    group = v.shape[1] // k.shape[1]
    queries = _unit(q).repeat_interleave(group, dim=1) * q.shape[2] ** -0.5
    keys = _unit(k).repeat_interleave(group, dim=1)
    decays = torch.exp(-a_log.double().exp() * functional.softplus(a.double() + dt_bias.double()))
    betas = torch.sigmoid(b.double())
    memory = state.double()
    out = torch.empty(v.shape, dtype=torch.float64, device=v.device)
    for row in range(v.shape[0]):
        memory = memory * decays[row, :, None, None]
        read = torch.einsum("hkv,hk->hv", memory, keys[row])
        delta = (v[row].double() - read) * betas[row, :, None]
        memory = memory + torch.einsum("hk,hv->hkv", keys[row], delta)
        out[row] = torch.einsum("hkv,hk->hv", memory, queries[row])
    state.copy_(memory)
    return out.to(v.dtype)


def _unit(x: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return wide * (wide.square().sum(dim=-1, keepdim=True) + L2_EPS).rsqrt()
