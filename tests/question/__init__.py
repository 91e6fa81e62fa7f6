"""The question."""
