"""Builders of models that are written for MindSpore."""
