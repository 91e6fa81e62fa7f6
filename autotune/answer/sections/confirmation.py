"""The confirmation in fresh processes: what is to be known of it, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any

from autotune.answer.content import Curves, Fact, Figure, PlotAxis, Role, Section, Series, Table
from autotune.answer.format import as_budget, num_blocks
from autotune.answer.objectives import shown
from autotune.apply.config_parts import ConfigParts
from autotune.errors import marked
from autotune.job.launch import tip_of
from autotune.measure.early_look import EARLY_GAINS
from autotune.measure.objective import Objective
from autotune.measure.scatter import Cause
from autotune.measure.statistics import COMPILED, ERROR, Verdict
from autotune.study.budget import BlockPlan, Budget
from autotune.study.records import StopReason
from autotune.study.study import Study
from autotune.tuning.estimate import confirmation_times, trial_s

SAFETY = 1.25
"""The time that is named for further blocks is so many times what they took in the search."""

Column = tuple[str, Role, str, Sequence[float | None]]
"""A name, what it is, its mark, and the objective's value of its process in each block; None: it took no part."""


class ConfirmationSection(Section):
    """Each process of the comparison, notes on it, and the next step."""

    place = 95

    def facts(self) -> Iterator[Fact]:
        confirmation = self.answer.confirmation
        if confirmation is None:
            return
        if confirmation.note:
            yield "note", confirmation.note
        if not self.answer.manifest.is_of_this_schema:
            return
        if confirmation.cut_short and confirmation.verdict is not Verdict.UNDECIDED:
            yield "note", f"{confirmation.why or 'the time did not hold all blocks'}; `resume` goes on"
        elif self.answer.is_outdated:
            yield "note", "trials were added after this verdict; `resume` compares them too"

    def advice(self) -> Iterator[str]:
        answer, resume = self.answer, self.answer.command("resume")
        if not answer.manifest.is_of_this_schema and answer.verdict in (None, Verdict.UNDECIDED, Verdict.INFEASIBLE):
            return
        if answer.verdict is None:
            yield "wait: a process is tuning it" if answer.is_being_tuned else resume
        elif answer.verdict is Verdict.UNDECIDED:
            how = "on a quieter machine" if self._is_busy else "with more blocks"
            if answer.confirmation is not None and answer.confirmation.candidate is None and not self._was_cut:
                resume, how = answer.command("resume", trials="N"), "tries further configs"
            yield self._what_decides() or f"{resume}     ({how})"
            if answer.confirmation is not None and answer.confirmation.candidate is not None:
                chosen = answer.command("export", "-o", "best.yaml", trial=str(answer.confirmation.candidate))
                yield f"{chosen}     (unproven, as chosen)"
        elif answer.verdict is Verdict.INFEASIBLE:
            relax = f"relax a constraint in another study ({marked('study', 'NAME')})"
            more = f"{answer.command('resume', trials='N')}     (tries further configs), or "
            yield relax if answer.stop_reason is StopReason.EXHAUSTED else more + relax
        else:
            yield answer.command("export", "-o", "best.yaml")
            if answer.verdict in COMPILED:
                yield 'model = autotune.load("best.yaml").apply(model)'
                if answer.best is not None and ConfigParts.of(answer.best.config).start:
                    yield tip_of("best.yaml", answer.best.config)

    @property
    def _was_cut(self) -> bool:
        return self.answer.confirmation is not None and self.answer.confirmation.cut_short

    @property
    def _is_busy(self) -> bool:
        """Other programs, or other machines, were seen while something was timed."""
        scatter = self.answer.scatter
        is_cause = scatter is not None and scatter[1].cause in (Cause.OTHERS, Cause.STOLEN)
        return is_cause or any(record.disturbed for record in self.answer.measured)

    def _what_decides(self) -> str | None:
        """The command that has time for the blocks that are missing; None where time was not what was missing."""
        answer, confirmation = self.answer, self.answer.confirmation
        if confirmation is None or not self._was_cut:
            return None
        again = answer.command("resume")
        candidate = answer.candidate
        if candidate is None or answer.untuned is None:
            return f"{again}     (with more time)"
        budget = Study.budget.read(answer) or Budget()
        value = answer.objective.value
        gain = value(answer.untuned.measurement) / value(candidate.measurement)
        number = blocks_to_decide(len(confirmation.pairs), confirmation.confidence, gain, budget.confirmation)
        if number is None:
            return f"{again}     (with more time{', on a quieter machine' if self._is_busy else ''})"
        times = confirmation_times([answer.untuned, candidate], answer.noise_floor, answer.objective, budget)
        needed = as_budget(trial_s(answer.untuned) + SAFETY * times.of(number))
        return f"{answer.command('resume', budget=needed)}     ({num_blocks(number)} more may decide it)"

    def figures(self) -> Iterator[Figure]:
        if not self.answer.blocks:
            return
        columns = [
            self._column(number) for number in dict.fromkeys(n for row in self.answer.blocks for n in row.values)
        ]
        controls = [row.control for row in self.answer.blocks]
        if any(controls):
            columns.insert(1, ("untuned again", "muted", "d", controls))
        yield by_block(self.answer.objective, columns, "Blocks of live processes")

    def _column(self, number: int) -> Column:
        values = [row.values.get(number) for row in self.answer.blocks]
        if self.answer.untuned is not None and number == self.answer.untuned.number:
            return "untuned", "untuned", "s", values
        confirmation = self.answer.confirmation
        is_named = confirmation is not None and number == confirmation.candidate
        return f"trial {number}", "best" if is_named else "other", "D" if is_named else "o", values

    def document(self) -> dict[str, Any]:
        confirmation = self.answer.confirmation
        return {
            "confirmation": confirmation and confirmation.model_dump(mode="json"),
            "confirmation_outdated": self.answer.is_outdated,
            "blocks": [row.model_dump() for row in self.answer.blocks],
        }


def blocks_to_decide(num_done: int, confidence: float | None, gain: float, plan: BlockPlan) -> int | None:
    """Further blocks after which a config is likely to be proven that showed such a gain in its trial, if they are like
    those that were measured; None: more than there may be."""
    early = [look for look, least in EARLY_GAINS.items() if gain >= least and look > num_done]
    if early:
        return early[0] - num_done
    needed: float = num_done + 1
    if confidence is not None:
        normal = NormalDist()
        shown = normal.inv_cdf(min(confidence, 0.999))
        if shown <= 0:
            return None
        needed = max(needed, num_done * (normal.inv_cdf(1 - ERROR / 2) / shown) ** 2)
    return next((look - num_done for look in plan.looks if look >= needed), None)


def by_block(objective: Objective, columns: Sequence[Column], caption: str) -> Figure:
    """What each process measured, block by block. A line passes over the blocks in which its config took no part."""
    rows = list(zip(*(values for *_, values in columns), strict=True))
    words = (
        f"The {objective.name} of each fresh process. The processes of a block run in the same minutes and take "
        "turns; the verdict compares within blocks."
    )
    table = Table(
        caption,
        ("block", *(name for name, *_ in columns)),
        [
            (str(number), *("-" if value is None else shown(objective, value) for value in row))
            for number, row in enumerate(rows, 1)
        ],
    )
    most = max(value for row in rows for value in row if value is not None)
    plot = Curves(
        PlotAxis("block", lambda value: f"{value:g}", is_whole=True),
        PlotAxis("", lambda value: shown(objective, value) if value > 0 else "0", limits=(0, 1.1 * most)),
        [_line(*column) for column in columns],
        3.2,
        "lower left",
    )
    return Figure("processes", "Process by process", words, plot, table)


def _line(name: str, role: Role, marker: str, values: Sequence[float | None]) -> Series:
    known = {number: value for number, value in enumerate(values, 1) if value is not None}
    return Series(list(known), list(known.values()), role, name, "-", marker)
