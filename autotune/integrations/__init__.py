"""Tuned configs in trainers that keep a loop of their own, in one line each (docs/training.md).

A module imports its library when it is used. None of them changes what the library does but for the model that it
calls. Where the library compiles that model by itself, the config is not used, and one warning says so.
"""
