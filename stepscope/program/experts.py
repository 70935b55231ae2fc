"""The module of a mixture of experts, as transformers 5 runs it (``experts_implementation="grouped_mm"``).

A router chooses K of E experts for each of T tokens. Each token is copied K times, the copies are sorted by expert,
and one grouped product multiplies each expert's rows by its own matrix. No row is dropped. The weights of all experts
are one parameter of three dimensions. ``grouped_mm`` is on no list of autocast's: it runs in the weights' dtype.

Source: ``grouped_mm_experts_forward`` and ``Qwen3MoeTopKRouter`` of transformers 5.23.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memkit.setup import TrainingSetup


class Experts(nn.Module):
    """What stands in the place of an MLP; P is the number of copies, T · K."""

    def __init__(self, setup: TrainingSetup, **where):
        super().__init__()
        config, hidden_size = setup.model, setup.model.hidden_size
        self.num_experts, self.num_chosen = config.num_experts, config.experts_per_token
        self.router = nn.Parameter(torch.empty(self.num_experts, hidden_size, **where))
        self.gate_up = nn.Parameter(torch.empty(self.num_experts, 2 * config.expert_size, hidden_size, **where))
        self.down = nn.Parameter(torch.empty(self.num_experts, hidden_size, config.expert_size, **where))

    def forward(self, x_BSD: Tensor) -> Tensor:
        x_TD = x_BSD.flatten(0, 1)
        return self.weighted_sum(x_TD, *self.route(x_TD)).to(x_BSD.dtype).view_as(x_BSD)

    def route(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Which experts a token goes to, and how much each of them counts."""
        scores_TE = torch.softmax(F.linear(x_TD, self.router), -1, dtype=torch.float32)
        weights_TK, experts_TK = scores_TE.topk(self.num_chosen)
        return (weights_TK / weights_TK.sum(-1, keepdim=True)).to(x_TD.dtype), experts_TK

    def weighted_sum(self, x_TD: Tensor, weights_TK: Tensor, experts_TK: Tensor) -> Tensor:
        experts_P, order_P = experts_TK.flatten().sort()
        rows_E = torch.histc(experts_P.float(), self.num_experts, 0, self.num_experts - 1)
        offsets_E = rows_E.cumsum(0, dtype=torch.int32)
        y_PD = self.mlp(x_TD[order_P // self.num_chosen], offsets_E)
        y_PD = y_PD * weights_TK.flatten()[order_P].unsqueeze(-1)
        place_P = torch.empty_like(order_P)
        place_P[order_P] = torch.arange(len(order_P), device=order_P.device)
        return y_PD[place_P].unflatten(0, weights_TK.shape).sum(1)

    def mlp(self, x_PD: Tensor, offsets_E: Tensor) -> Tensor:
        """Each row by its own expert."""
        gate_PF, up_PF = grouped_linear(x_PD, self.gate_up, offsets_E).chunk(2, -1)
        return grouped_linear(F.silu(gate_PF) * up_PF, self.down, offsets_E)


def grouped_linear(x: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """x Wᵀ, where rows up to the first offset have the first W, and so on."""
    return F.grouped_mm(x.to(weights.dtype), weights.transpose(-2, -1), offs=offsets)
