"""What tests of jobs share."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.dynamo_backends import registered


@pytest.fixture
def compiler():
    """`compiler(function)` registers one for dynamo, and returns a config that uses it."""
    pytest.importorskip("torch")
    with ExitStack() as stack:

        def register(function):
            stack.enter_context(registered(function, "of_the_test"))
            return {"execution": "compile", "backend": "of_the_test"}

        yield register
