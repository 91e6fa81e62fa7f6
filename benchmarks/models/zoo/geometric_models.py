"""Models of PyTorch Geometric: random weights of a seed."""

from __future__ import annotations

import torch
from torch_geometric.nn import GCN, MLP

NODES, EDGES, FEATURES = 500, 2500, 64


def gcn(seed: int = 0) -> tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Three layers of graph convolution on a graph of 500 nodes."""
    torch.manual_seed(seed)
    model = GCN(in_channels=FEATURES, hidden_channels=64, num_layers=3, out_channels=8)
    return model.eval(), (torch.randn(NODES, FEATURES), torch.randint(0, NODES, (2, EDGES)))


def mlp(seed: int = 0) -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """A multilayer perceptron on eight rows: some fifty microseconds a call, most of them in Python."""
    torch.manual_seed(seed)
    return MLP([FEATURES, 256, 256, 256, 8], norm=None).eval(), (torch.randn(8, FEATURES),)
