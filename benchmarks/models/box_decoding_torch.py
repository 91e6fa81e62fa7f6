"""Decoding of a detector's candidates, as a planner gets them: many small operators, over as many boxes as there are.

The number of candidates is another one in each frame, so that the shapes of the calls are a job's own traffic.
"""

from __future__ import annotations

import torch
from torch import nn

from autotune.models import weights

SIZES = 7
"""Numbers of a candidate before its class scores: centre, size, heading (as sine and cosine), objectness."""


class BoxDecoding(nn.Module):
    """(candidates, 7 + classes) to corners, distances, areas, and the score of the best class."""

    def __init__(self, num_classes: int, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.scale: torch.Tensor
        self.prior: torch.Tensor
        self.register_buffer("scale", torch.linspace(0.5, 2.0, 2))
        self.register_buffer("prior", torch.linspace(-1.0, 1.0, num_classes))

    def forward(self, candidates: torch.Tensor) -> tuple[torch.Tensor, ...]:
        centre = torch.tanh(candidates[:, 0:2]) * 60.0
        size = torch.exp(candidates[:, 2:4].clamp(-3.0, 3.0)) * self.scale
        sine, cosine = candidates[:, 4], candidates[:, 5]
        norm = torch.sqrt(sine * sine + cosine * cosine + 1e-6)
        sine, cosine = sine / norm, cosine / norm
        scores = torch.sigmoid(candidates[:, SIZES:] + self.prior) * torch.sigmoid(candidates[:, 6:7])
        for _ in range(self.rounds):
            # Neighbouring scores damp each other, as in soft suppression.
            damped = scores * torch.exp(-0.5 * (scores - scores.mean(dim=1, keepdim=True)) ** 2)
            scores = torch.where(damped > 0.01, damped, scores * 0.5)
        half_length, half_width = size[:, 0] * 0.5, size[:, 1] * 0.5
        corners = [
            torch.stack(
                [
                    centre[:, 0] + side * half_length * cosine - edge * half_width * sine,
                    centre[:, 1] + side * half_length * sine + edge * half_width * cosine,
                ],
                dim=1,
            )
            for side in (-1.0, 1.0)
            for edge in (-1.0, 1.0)
        ]
        distance = torch.sqrt((centre * centre).sum(dim=1))
        return torch.stack(corners, dim=1), distance, size[:, 0] * size[:, 1], scores.amax(dim=1)


def box_decoding(
    *, candidates: int = 256, num_classes: int = 32, rounds: int = 6, seed: int = 0
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The decoding, and one input of (candidates, 7 + classes)."""
    model = BoxDecoding(num_classes, rounds).eval()
    return model, (torch.from_numpy(weights.normal_input((candidates, SIZES + num_classes), seed)),)
