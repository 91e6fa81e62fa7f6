"""Variants: other implementations of parts of a model that compute the same, as its author declares them."""

from __future__ import annotations

PREFIX = "variant."
"""Of the knobs: `variant.attention` is the knob of the variant `attention`."""
