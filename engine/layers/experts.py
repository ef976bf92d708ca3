"""Mixture of experts as DeepSeek and GLM have it: a router, chosen experts, one shared expert.

V2 (arXiv:2405.04434): softmax over all experts, the best are taken with their probability as it is.
V3 (arXiv:2412.19437, "noaux_tc"): sigmoid scores; a learnt bias steers the choice, first of groups
(by the sum of each group's two best), then of experts within them, and is no part of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels import Product
from engine.layers.rows import each_row, linear
from engine.layers.swiglu import swiglu

# added to the sum of the chosen weights before dividing by it, as the reference does
_TINY = 1e-20


@dataclass(frozen=True, slots=True)
class Routing:
    """How experts are chosen."""

    experts: int
    chosen: int
    groups: int
    chosen_groups: int
    # "sigmoid" with a bias on the choice, or "softmax"
    scoring: str
    # whether the chosen weights are divided by their sum
    normalised: bool
    scale: float


@dataclass(frozen=True, slots=True)
class Mlp:
    """A gated feed-forward block."""

    gate_up: Product  # [2 F, D]
    down: Product  # [D, F]

    @property
    def size_bytes(self) -> int:
        return self.gate_up.size_bytes + self.down.size_bytes

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, D] float32 -> [T, D] float32."""
        return self.down(swiglu(self.gate_up(x).float())).float()


@dataclass(frozen=True, slots=True)
class Experts:
    """A layer's router with its experts. Called as `Mlp` is."""

    routing: Routing
    router: Tensor  # [experts, D] float32
    bias: Tensor  # [experts] float32; zeros where the choice has none
    experts: Sequence[Mlp]
    shared: Mlp | None

    @property
    def size_bytes(self) -> int:
        """Bytes one token reads: the router, the chosen experts and the shared one."""
        shared = self.shared.size_bytes if self.shared else 0
        chosen = sum(e.size_bytes for e in self.experts) * self.routing.chosen // len(self.experts)
        return self.router.nbytes + chosen + shared

    def __call__(self, x: Tensor) -> Tensor:
        logits = linear(x, self.router)
        # apart even here: torch orders a sum of four numbers by how many rows there are
        weights = each_row(lambda rows: route(rows, self.bias, self.routing), logits)
        out = torch.zeros_like(x)
        # Ascending experts whatever the rows chose: a row's sum is ordered by its own choice alone.
        for expert in weights.any(0).nonzero().flatten().tolist():
            rows = weights[:, expert].nonzero().flatten()
            out[rows] += weights[rows, expert].unsqueeze(1) * self.experts[expert](x[rows])
        return out if self.shared is None else out.add_(self.shared(x))


def route(logits: Tensor, bias: Tensor, routing: Routing) -> Tensor:
    """Router logits [T, experts] float32 -> weights [T, experts], 0 for those not chosen."""
    scores = logits.softmax(-1) if routing.scoring == "softmax" else logits.sigmoid()
    choice = scores + bias
    if routing.groups > 1:
        choice = choice.masked_fill(~_in_chosen_groups(choice, routing), float("-inf"))
    best = choice.topk(routing.chosen, dim=-1).indices  # [T, chosen]
    # the choice is in order of score; a sum in that order would be another one with other ties
    best = best.sort(-1).values
    weights = scores.gather(1, best)
    if routing.normalised:
        weights = weights / (weights.sum(-1, keepdim=True) + _TINY)
    return torch.zeros_like(scores).scatter_(1, best, weights * routing.scale)


def _in_chosen_groups(choice: Tensor, routing: Routing) -> Tensor:
    """[T, experts] bool."""
    grouped = choice.view(len(choice), routing.groups, -1)  # [T, groups, experts / groups]
    if routing.scoring == "softmax":
        group_scores = grouped.max(-1).values
    else:
        group_scores = grouped.topk(2, dim=-1).values.sum(-1)
    groups = group_scores.topk(routing.chosen_groups, dim=-1).indices
    kept = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(1, groups, True)
    return kept.unsqueeze(-1).expand_as(grouped).flatten(1)
