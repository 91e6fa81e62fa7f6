"""A system that decides at an intersection: fixed rules, an understanding of the scene, and predicted trajectories.

Three parts that a compiler takes in three ways, as such systems have them:

* `rules`: who gives way to whom. Fixed arithmetic on tensors and a table, one graph.
* `scene`: what the agents near each other tell each other. Its middle is kept from the compiler on purpose
  (`torch.compiler.disable`): how many pairs are near each other depends on the positions, so that the tensors there
  have another shape at each call. A break stands before and after it.
* `predictor`: a GRU reads each agent's track and a GRU cell goes on from there. PyTorch's compiler does not look into
  `nn.GRU` by default (knob `allow_rnn`) and gives up the whole function around it. So the cell, unrolled over the
  horizon, is a module of its own: that is captured.

Tuning it is about what to compile: the whole in pieces, or parts of it by themselves, which its regions are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from autotune.models import weights
from autotune.models.torch.filling import fill

__all__ = ["intersection"]

_POSITION_X_Y, _VELOCITY_X_Y = slice(0, 2), slice(2, 4)
_NUM_FEATURES = 4
_NUM_RULES = 3
_ACTIONS = ("go", "creep", "yield", "stop")
_REACH = 1.5
_SOFTEST_SPEED = 0.1
_GIVES_WAY = (
    (False, True, False, False),
    (False, False, True, False),
    (False, False, False, True),
    (True,) + 3 * (False,),
)
"""Row: from which quarter an agent comes; column: the quarter to whose agents it gives way, the next one."""


def intersection(
    *, agents: int = 12, history: int = 8, horizon: int = 6, dim: int = 128, batch: int = 8, seed: int = 0
) -> dict[str, Any]:
    """The system, one input of tracks of (batch, agents, history, 4), and the parts that can be compiled alone.

    A track's features are the position and the velocity, x and y of each, seen from the middle of the intersection.
    """
    model = _Intersection(history, horizon, dim).eval()
    fill(model, seed)
    return {
        "model": model,
        "inputs": (torch.from_numpy(weights.normal_input((batch, agents, history, _NUM_FEATURES), seed)),),
        "regions": ["rules, scene.encode, scene.decode, predictor.roll_out", "whole but scene"],
    }


class _Rules(nn.Module):
    """Tracks to (batch, agents, 3): distance from the middle, speed towards it, and how much to give way.

    The quarters are told by signs of the input, which no rounding changes; all else is continuous. So a config that
    computes in another precision does not decide otherwise by itself.
    """

    gives_way: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("gives_way", torch.tensor(_GIVES_WAY))

    def forward(self, tracks: torch.Tensor) -> torch.Tensor:
        position, velocity = tracks[:, :, -1, _POSITION_X_Y], tracks[:, :, -1, _VELOCITY_X_Y]
        distance = position.norm(dim=-1)
        approach = -(position * velocity).sum(dim=-1) / (distance + _SOFTEST_SPEED)
        arrival = distance / (approach.clamp(min=0) + _SOFTEST_SPEED)
        east, north = (position > 0).long().unbind(dim=-1)
        quarter = 2 * north + (east ^ north)
        must = self.gives_way[quarter.unsqueeze(2), quarter.unsqueeze(1)]
        sooner = torch.sigmoid(arrival.unsqueeze(2) - arrival.unsqueeze(1))
        return torch.stack([distance, approach, (must * sooner).mean(dim=-1)], dim=-1)


class _TwoLayers(nn.Module):
    """(..., features) to (..., dim). No `nn.Sequential`, which PyTorch does not compile by itself."""

    def __init__(self, features: int, dim: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, dim)
        self.second = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(x))))


class _Scene(nn.Module):
    """Tracks and their rules to what each agent knows: (batch, agents, dim)."""

    def __init__(self, history: int, dim: int) -> None:
        super().__init__()
        self.encode = _TwoLayers(history * _NUM_FEATURES + _NUM_RULES, dim)
        self.speak = nn.Linear(dim, dim)
        self.decode = _TwoLayers(2 * dim, dim)

    def forward(self, tracks: torch.Tensor, rules: torch.Tensor) -> torch.Tensor:
        known = self.encode(torch.cat([tracks.flatten(2), rules], dim=-1))
        heard = self.hear(known, tracks[:, :, -1, _POSITION_X_Y])
        result: torch.Tensor = self.decode(torch.cat([known, heard], dim=-1))
        return result

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def hear(self, known: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The sum of what all within reach say, each the less the farther off: (batch, agents, dim).

        At the edge of reach that is nothing, so that rounding a distance does not change the result at a jump.
        """
        distance = (position.unsqueeze(2) - position.unsqueeze(1)).norm(dim=-1)
        scene, hearer, speaker = torch.nonzero(distance < _REACH, as_tuple=True)
        nearness = 1 - distance[scene, hearer, speaker] / _REACH
        said = nearness.unsqueeze(-1) * torch.tanh(self.speak(known[scene, speaker]))
        return torch.zeros_like(known).index_put_((scene, hearer), said.to(known.dtype), accumulate=True)


class _RollOut(nn.Module):
    """Agents' states (num, dim) and positions (num, 2) to where they go from there, (num, horizon, 2)."""

    def __init__(self, horizon: int, dim: int) -> None:
        super().__init__()
        self.horizon = horizon
        self.step = nn.GRUCell(2, dim)
        self.move = nn.Linear(dim, 2)

    def forward(self, state: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        trajectory = []
        for _ in range(self.horizon):
            move = self.move(state)
            position = position + move
            state = self.step(move, state)
            trajectory.append(position)
        return torch.stack(trajectory, dim=1)


class _Predictor(nn.Module):
    """Tracks to trajectories (batch, agents, horizon, 2), where each agent will be."""

    def __init__(self, horizon: int, dim: int) -> None:
        super().__init__()
        self.read = nn.GRU(_NUM_FEATURES, dim, batch_first=True)
        self.roll_out = _RollOut(horizon, dim)

    def forward(self, tracks: torch.Tensor) -> torch.Tensor:
        batch, agents = tracks.shape[:2]
        _, states = self.read(tracks.flatten(0, 1))
        trajectories: torch.Tensor = self.roll_out(states[-1], tracks[:, :, -1, _POSITION_X_Y].flatten(0, 1))
        return trajectories.view(batch, agents, -1, 2)


class _Intersection(nn.Module):
    """Tracks of (batch, agents, history, 4) to action scores (batch, 4) and trajectories (batch, agents, horizon,
    2)."""

    def __init__(self, history: int, horizon: int, dim: int) -> None:
        super().__init__()
        self.rules = _Rules()
        self.scene = _Scene(history, dim)
        self.predictor = _Predictor(horizon, dim)
        self.decide = nn.Linear(dim + 2 * horizon + _NUM_RULES, len(_ACTIONS))

    def forward(self, tracks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rules = self.rules(tracks)
        scene = self.scene(tracks, rules)
        trajectories = self.predictor(tracks)
        agents = torch.cat([scene, trajectories.flatten(2), rules], dim=-1)
        return self.decide(agents).mean(dim=1), trajectories
