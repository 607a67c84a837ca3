"""A gated mixture of experts on the CPU; an expert's weights are read where they lie.

Shapes: R rows, k experts per row, E experts, H hidden size, I intermediate size, r rows of one
expert. What a row gets does not depend on the other rows as far as the ops given in do not.
"""

import torch
from torch.nn import functional

from kernels.gated_activation.api import GatedActivation
from kernels.grouped_moe.records import Bank, Expert, NvFp4Bank, Routing
from kernels.linear.api import Linear
from kernels.nvfp4.api import NvFp4Linear
from kernels.row_by_row import each_row


def _probabilities(logits: torch.Tensor) -> torch.Tensor:
    return torch.softmax(logits.float(), dim=-1)


def route(logits: torch.Tensor, top_k: int) -> Routing:
    """The ``top_k`` most probable of [R, E], lowest id first among equal float32 probabilities."""
    return _choose(_probabilities(logits), top_k)


def route_invariant(logits: torch.Tensor, top_k: int) -> Routing:
    """As :func:`route`, the softmax of each row alone."""
    return _choose(each_row(_probabilities, logits), top_k)


def _choose(probabilities: torch.Tensor, top_k: int) -> Routing:
    values, ids = torch.sort(probabilities, dim=-1, descending=True, stable=True)
    chosen = values[:, :top_k]
    # A sum by rank, since the order inside a sum over few columns may change with the rows.
    total = chosen[:, 0].clone()
    for rank in range(1, top_k):
        total += chosen[:, rank]
    last = values[:, top_k - 1]
    return Routing(
        expert_ids=ids[:, :top_k].contiguous(),
        weights=chosen / total.unsqueeze(1),
        margins=last - values[:, top_k] if top_k < values.shape[1] else last.clone(),
    )


def expert(
    x: torch.Tensor,
    bank: Bank,
    index: int,
    *,
    linear: Linear,
    nvfp4_linear: NvFp4Linear,
    silu_gated: GatedActivation,
) -> torch.Tensor:
    """``down(silu(gate x) * up x)`` of rows [r, H]; float32 [r, H].

    A packed bank is computed in float32 throughout. A plain one rounds the outputs of both products
    and the activations to its dtype.
    """
    if isinstance(bank, NvFp4Bank):
        activated = silu_gated(nvfp4_linear(x, bank.gate_up(index)))
        return nvfp4_linear(activated, bank.down(index))
    activated = silu_gated(linear(x, bank.gate_up[index]))
    return linear(activated, bank.down[index]).float()


def routed(x: torch.Tensor, routing: Routing, bank: Bank, *, expert: Expert) -> torch.Tensor:
    """The weighted sum of each row's experts, added by ascending expert id; float32 [R, H].

    Only the experts that a row goes to are touched, each once.
    """
    out = torch.zeros(x.shape)
    top_k = routing.expert_ids.shape[1]
    pairs = routing.expert_ids.flatten()
    by_expert = pairs.argsort(stable=True)
    weights = routing.weights.flatten().unsqueeze(1)
    start = 0
    for index, count in enumerate(pairs.bincount().tolist()):
        if count == 0:
            continue
        group = by_expert[start : start + count]
        rows = group // top_k
        out.index_add_(0, rows, expert(x[rows], bank, index) * weights[group])
        start += count
    return out


def shared(
    x: torch.Tensor, bank: Bank, gate_weight: torch.Tensor, *, expert: Expert
) -> torch.Tensor:
    """``sigmoid(x gate_weight^T)`` times expert 0 of a bank; float32 [R, H]."""
    return expert(x, bank, 0) * _gate(x, gate_weight)


def shared_invariant(
    x: torch.Tensor, bank: Bank, gate_weight: torch.Tensor, *, expert: Expert
) -> torch.Tensor:
    """As :func:`shared`, the gate of each row alone."""
    return expert(x, bank, 0) * each_row(lambda row: _gate(row, gate_weight), x)


def _gate(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(functional.linear(x.float(), weight.float()))
