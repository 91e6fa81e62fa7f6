"""Noise and drift: how far the machine can be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune.answer.content import Fact, Section
from autotune.answer.format import percent, seconds
from autotune.measure.statistics import TOO_WIDE, Verdict
from autotune.study.records import DRIFTING, UNRELIABLE_DRIFT
from autotune.tuning.events import DriftChecked, Event, NoiseFloorMeasured, TrialDisturbed


class NoiseSection(Section):
    """The untuned model against itself, and how wide the verdict's interval is."""

    place = 40

    @classmethod
    def news(cls, event: Event) -> Iterator[str]:
        match event:
            case TrialDisturbed():
                what = f"trial {event.number}" if event.number else "the untuned model"
                yield f"disturbed   {what}: {event.why}; it is repeated once the machine is quiet"
            case NoiseFloorMeasured():
                spread = percent(event.noise_floor.spread)
                yield f"noise floor {spread}: two runs of the unchanged model differ by this much on this machine"
            case DriftChecked():
                now_s, ratio = event.sentinel.latency_s, event.sentinel.latency_s / event.first_s
                change = (
                    f"{ratio:.3g} times what it took at first" if ratio > 2 else f"{ratio - 1:+.1%} since the start"
                )
                if abs(ratio - 1) > DRIFTING:
                    yield f"drift       the untuned model takes {seconds(now_s)} now, {change}"

    def facts(self) -> Iterator[Fact]:
        answer = self.answer
        if answer.noise_floor is not None:
            yield "noise", f"two processes of the untuned model differ by {percent(answer.noise_floor.spread)}"
        if answer.drift is not None and answer.drift > DRIFTING:
            trust = "blocks compare side by side and are not affected"
            if answer.drift > UNRELIABLE_DRIFT:
                trust = "figures of single trials cannot be compared; blocks compare side by side"
            changed = f"the untuned model's own latency changed by {percent(answer.drift)} during the search"
            yield "drift", f"{changed}: {trust}"
        if answer.speedup is not None and answer.speedup.high > TOO_WIDE * answer.speedup.low:
            again = " and `resume`" if answer.verdict is Verdict.UNDECIDED else ""
            yield "noisy", f"runs of the same config differ on this machine; stop other programs{again}"

    def document(self) -> dict[str, Any]:
        floor = self.answer.noise_floor
        return {
            "noise_floor": floor and floor.model_dump(),
            "sentinels": [check.model_dump() for check in self.answer.drift_checks],
            "drift": self.answer.drift,
        }
