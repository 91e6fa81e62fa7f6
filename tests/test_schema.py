"""Records: immutable, and exact about their keys."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from autotune.trial.request import Limits


def test_an_unknown_key_is_an_error() -> None:
    """A misspelt key of a file is refused, and so is one of a copy, which pydantic alone would add unasked."""
    with pytest.raises(ValidationError):
        Limits.model_validate({"compiled": 5})
    with pytest.raises(TypeError, match="Limits has no field compiled"):
        Limits().model_copy(update={"compiled": 5})
    assert Limits().model_copy(update={"compile": 5}).compile == 5
