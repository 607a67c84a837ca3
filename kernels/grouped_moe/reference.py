"""A gated mixture of experts, the oracle; every step in float64, rounded to float32 at its end.

Shapes: R rows, k experts per row, E experts, H hidden size, I intermediate size.
"""

import torch

from kernels.grouped_moe.records import Bank, NvFp4Bank, Routing
from kernels.nvfp4.reference import exact_values


def route(logits: torch.Tensor, top_k: int) -> Routing:
    """The ``top_k`` most probable of [R, E], by float32 probabilities; lowest id first if equal."""
    probabilities = torch.softmax(logits.float(), dim=-1)
    rows, num_experts = logits.shape
    ids = torch.empty((rows, top_k), dtype=torch.int64, device=logits.device)
    margins = torch.empty(rows, device=logits.device)
    for row, values in enumerate(probabilities.tolist()):
        order = sorted(range(num_experts), key=lambda index: (-values[index], index))
        ids[row] = torch.tensor(order[:top_k])
        rejected = values[order[top_k]] if top_k < num_experts else 0.0
        margins[row] = values[order[top_k - 1]] - rejected
    chosen = probabilities.gather(1, ids).double()
    weights = (chosen / chosen.sum(dim=-1, keepdim=True)).float()
    return Routing(expert_ids=ids, weights=weights, margins=margins)


def expert(x: torch.Tensor, bank: Bank, index: int) -> torch.Tensor:
    """``down(silu(gate x) * up x)`` of rows [R, H]; float32 [R, H]."""
    return _expert(x, bank, index).float()


def _expert(x: torch.Tensor, bank: Bank, index: int) -> torch.Tensor:
    if isinstance(bank, NvFp4Bank):
        gate_up, down = exact_values(bank.gate_up(index)), exact_values(bank.down(index))
    else:
        gate_up, down = bank.gate_up[index].double(), bank.down[index].double()
    gate, up = (x.double() @ gate_up.T).chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up) @ down.T


def routed(x: torch.Tensor, routing: Routing, bank: Bank) -> torch.Tensor:
    """The weighted sum of each row's experts, float32 [R, H]."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for row in range(x.shape[0]):
        for rank, index in enumerate(routing.expert_ids[row].tolist()):
            product = _expert(x[row : row + 1], bank, index)[0]
            out[row] += routing.weights[row, rank].double() * product
    return out.float()


def shared(x: torch.Tensor, bank: Bank, gate_weight: torch.Tensor) -> torch.Tensor:
    """``sigmoid(x gate_weight^T)`` times expert 0 of a bank, float32 [R, H]."""
    gate = torch.sigmoid(x.double() @ gate_weight.double().T)
    return (gate * _expert(x, bank, 0)).float()
