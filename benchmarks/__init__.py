"""Benchmarks of the tool itself: each is a command, `python benchmarks/NAME.py` (see README.md)."""
