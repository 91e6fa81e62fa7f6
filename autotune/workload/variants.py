"""Variants: alternative implementations of parts of a model that compute the same, declared by its author."""

from __future__ import annotations

PREFIX = "variant."
"""Prefix of their knobs: `variant.attention` is the knob of the variant `attention`."""
