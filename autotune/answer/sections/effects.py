"""Effects of the knobs on the program that ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from autotune.answer.content import Fact, Section


class EffectsSection(Section):
    """Knobs without effect."""

    place = 60

    def facts(self) -> Iterator[Fact]:
        idle = [effect.knob for effect in self.answer.effects if effect.verdict == "no effect"]
        if idle:
            yield "no effect", f"here: {', '.join(idle)} (the same program ran with every value)"

    def document(self) -> dict[str, Any]:
        return {"effects": [{**asdict(effect), "verdict": effect.verdict} for effect in self.answer.effects]}
