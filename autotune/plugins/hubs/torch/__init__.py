"""Builders of models that are written in PyTorch."""
