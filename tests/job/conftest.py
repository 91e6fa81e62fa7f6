"""What tests of jobs share."""

from __future__ import annotations

import pytest


@pytest.fixture
def compiler():
    """`compiler(function)` registers one for dynamo, and returns a config that uses it."""
    registry = pytest.importorskip("torch._dynamo.backends.registry")

    def register(function):
        registry.register_backend(function, name="of_the_test")
        return {"execution": "compile", "backend": "of_the_test"}

    yield register
    for table in ("_BACKENDS", "_COMPILER_FNS"):
        getattr(registry, table, {}).pop("of_the_test", None)
