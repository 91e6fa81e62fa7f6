"""The best config in the framework's own code: what the answer is without this package."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from autotune.answer.configs import as_plain_code
from autotune.answer.content import Fact, Section
from autotune.backends.protocol import PlainCode


class PlainCodeSection(Section):
    """One line of code, and what has to stand beside it."""

    place = 11

    @cached_property
    def _code(self) -> PlainCode | None:
        best = self.answer.best
        return None if best is None else as_plain_code(best.config, self.answer.manifest)

    def facts(self) -> Iterator[Fact]:
        if self._code is not None:
            yield "as code", self._code.line
            if self._code.beside:
                yield "beside it", "; ".join(self._code.beside)

    def document(self) -> dict[str, Any]:
        return {"plain_code": self._code and {"line": self._code.line, "beside": list(self._code.beside)}}
