"""Noise and drift: how far the machine can be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune.answer.content import Fact, Section
from autotune.answer.format import percent, seconds
from autotune.errors import marked
from autotune.measure.scatter import LEAST_CORES, Cause, ProcessState, Scatter, given_back_s
from autotune.measure.statistics import TOO_WIDE, Verdict
from autotune.study.records import DRIFTING, UNRELIABLE_DRIFT
from autotune.tuning.events import (
    BlockMeasured,
    DriftChecked,
    Event,
    NoiseFloorMeasured,
    ScatterExplained,
    TrialDisturbed,
)

NEARLY_ALL = 0.95


class NoiseSection(Section):
    """The untuned model against itself, and how wide the verdict's interval is."""

    place = 40

    @classmethod
    def news(cls, event: Event) -> Iterator[str]:
        match event:
            case TrialDisturbed():
                what = f"trial {event.number}" if event.number else "the untuned model"
                yield f"disturbed   {what}: {event.why}; it is repeated once the machine is quiet"
            case BlockMeasured() if event.disturbed is not None:
                yield f"disturbed   the block: {event.disturbed}; further ones are measured"
            case ScatterExplained():
                yield f"scatter     {scatter_in_words(event.record.number, event.scatter)}"
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
        yield from self._given_back()
        is_wide = answer.speedup is not None and answer.speedup.high > TOO_WIDE * answer.speedup.low
        if answer.scatter is not None and (is_wide or answer.scatter[1].cause is not None):
            yield "scatter", scatter_in_words(*answer.scatter)
        if is_wide:
            scatter = None if answer.scatter is None else answer.scatter[1]
            cause = None if scatter is None else scatter.cause
            if scatter is not None and scatter.is_beside_others and cause in (None, Cause.MACHINE):
                cause = Cause.OTHERS
            again = "`resume`" if answer.verdict is Verdict.UNDECIDED else None
            todo = list(filter(None, [cause and remedy(cause), again]))
            what = "runs of the same config differ on this machine"
            yield "noisy", f"{what}; {' and '.join(todo)}" if todo else what

    def _given_back(self) -> Iterator[Fact]:
        """What each process of the candidate pays alike; what processes of one config differ by is told below."""
        answer, confirmation = self.answer, self.answer.confirmation
        told = answer.scatter is not None and answer.scatter[1].cause is Cause.FAULTS
        number = None if confirmation is None or told else confirmation.candidate
        states = [] if number is None else answer.states.get(number, [])
        if states:
            middle = sorted(states, key=lambda state: state.page_faults)[len(states) // 2]
            yield from given_back_in_words(f"trial {number}", middle)

    def document(self) -> dict[str, Any]:
        floor, scatter = self.answer.noise_floor, self.answer.scatter
        return {
            "noise_floor": floor and floor.model_dump(),
            "sentinels": [check.model_dump() for check in self.answer.drift_checks],
            "drift": self.answer.drift,
            "scatter": None if scatter is None else {"trial": scatter[0], **scatter[1].model_dump()},
        }


def scatter_in_words(trial: int, scatter: Scatter) -> str:
    """What processes of a config differ by, and why as far as that is known."""
    who = "the untuned model" if trial == 0 else f"trial {trial}"
    told = f"{who} takes {seconds(scatter.low_s)} to {seconds(scatter.high_s)} by process"
    most = scatter.most or 0.0
    seen = f", beside other programs that used up to {scatter.others:.2g} cores" if scatter.is_beside_others else ""
    match scatter.cause:
        case None:
            return f"{told}{seen}: nothing that is recorded explains it"
        case Cause.FAULTS:
            why = f"up to {most:,.0f} page faults a call, since the C library gives memory back to the system"
        case Cause.OTHERS:
            why = f"other programs used up to {most:.2g} cores"
        case Cause.STOLEN:
            why = f"a hypervisor or a CPU quota kept up to {most:.2g} cores from it"
        case Cause.MACHINE:
            together = "the machine was slower in some blocks, for all processes alike"
            why = f"{together}{seen}; ratios are not touched by it"
    is_part = scatter.share is not None and scatter.share < NEARLY_ALL
    explained = f" ({100 * (scatter.share or 0):.0f} % of the scatter; the rest is unexplained)" if is_part else ""
    return f"{told}: {why}{explained}"


def given_back_in_words(who: str, state: ProcessState) -> list[Fact]:
    """What the process pays for memory that it gives back in each call; nothing where that is little."""
    spent_s = given_back_s(state)
    if not spent_s:
        return []
    share = f"{seconds(spent_s)} of {seconds(state.latency_s)} or more"
    faults = f"{state.page_faults:,.0f} page faults a call, {share}"
    return [("memory", f"{who} gives it back to the system: {faults}; {remedy(Cause.FAULTS)}")]


def state_in_words(who: str, state: ProcessState) -> list[Fact]:
    """What a single process says of its own latency: memory that is given back in each call, others beside it."""
    facts = given_back_in_words(who, state)
    for cause, what in ((Cause.OTHERS, "other programs used"), (Cause.STOLEN, "a hypervisor or a CPU quota kept")):
        if (amount := state.amount(cause) or 0.0) >= LEAST_CORES:
            facts.append(("disturbed", f"{what} {amount:.2g} cores while {who} was timed; {remedy(cause)}"))
    return facts


def remedy(cause: Cause) -> str | None:
    """What to do about a cause: docs/timings-differ.md has the causes. None where no ratio is touched by it."""
    match cause:
        case Cause.FAULTS:
            return f"keep memory in the process (the knob `allocator`, with {marked('process_settings', True)})"
        case Cause.OTHERS:
            return "stop other programs"
        case Cause.STOLEN:
            return "take a machine, or a quota, of whole cores"
        case Cause.MACHINE:
            return None
