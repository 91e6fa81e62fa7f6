"""A decision network that plans in plain Python, and so breaks the graph of a compiler on purpose.

It has what keeps such code from being one graph: a branch on the values of a tensor, an `.item()` and a
`print`; and a Python list that grows, which a compiler can follow. Tuning it is about graph breaks.
"""

from __future__ import annotations

import torch
from torch import nn

from autotune.models import weights
from autotune.models.torch.filling import fill

__all__ = ["planner"]


def planner(
    *,
    features: int = 128,
    hidden: int = 512,
    horizon: int = 6,
    actions: int = 16,
    batch: int = 32,
    seed: int = 0,
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A planner that looks `horizon` steps ahead, and one input of observations of (batch, features).

    Negated observations take the other branch.
    """
    model = _Planner(features, hidden, horizon, actions).eval()
    fill(model, seed)
    return model, (torch.from_numpy(weights.normal_input((batch, features), seed)),)


class _Planner(nn.Module):
    """Observations of (batch, features) to action scores of (batch, horizon, actions)."""

    def __init__(self, features: int, hidden: int, horizon: int, actions: int) -> None:
        super().__init__()
        self.horizon = horizon
        # Without biases and with an odd activation, the score is an odd function of the observations:
        # negating them flips its sign, and with it the branch, whatever the weights are.
        self.encode = nn.Linear(features, hidden, bias=False)
        self.judge = nn.Linear(hidden, 1, bias=False)
        self.advance = nn.Linear(hidden, hidden)
        self.retreat = nn.Linear(hidden, hidden)
        self.step = nn.Linear(hidden, hidden)
        self.act = nn.Linear(hidden, actions)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        state = torch.tanh(self.encode(observations))
        score = self.judge(state)
        if score.mean() > 0:
            state = torch.tanh(self.advance(state))
        else:
            caution = torch.sigmoid(-score)
            state = caution * torch.tanh(self.retreat(state))
        certainty = score.abs().mean().item()
        print(f"planner: certainty {certainty:.3f}")
        plan = []
        for _ in range(self.horizon):
            state = state + certainty * torch.tanh(self.step(state))
            plan.append(self.act(state))
        return torch.stack(plan, dim=1)
