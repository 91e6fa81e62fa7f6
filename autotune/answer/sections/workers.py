"""The workers of a study that ran on several: what each did, and whether those of one machine disturb each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune.answer.content import Section, Table
from autotune.answer.format import count, percent, seconds
from autotune.bench.workers import LOST_TRIALS, NEIGHBOURS, Neighbours, NeighboursFound, WorkerChanged
from autotune.study.records import TrialRecord
from autotune.tuning.events import Event, SearchStarted, TrialLost

_COLUMNS = ("worker", "host", "device", "trials", "lost", "time", "untuned")


class WorkersSection(Section):
    """A row for each worker; nothing for a study of one worker, or of this machine alone."""

    place = 63
    name, title = "workers", "Workers"

    @classmethod
    def news(cls, event: Event) -> Iterator[str]:
        match event:
            case SearchStarted() if event.given_back:
                yield f"trials left running by a run that died are tried again: {event.given_back}"
            case NeighboursFound():
                yield f"neighbours  {about_neighbours(event.found)}"
            case TrialLost():
                yield f"trial {event.number:>3}  lost: {event.why}; its config is tried again"
            case WorkerChanged() if event.stays:
                yield f"worker {event.worker}: {event.what}"

    def words(self) -> str:
        return "The blocks ran on one of them."

    def tables(self) -> list[Table]:
        """Which worker a failed trial ran on is not recorded."""
        by_name: dict[str, list[TrialRecord]] = {}
        for record in self.answer.measured:
            if record.measurement.worker is not None:
                by_name.setdefault(record.measurement.worker.name, []).append(record)
        if len(by_name) < 2:
            return []
        lost = LOST_TRIALS.read(self.answer)
        rows = [_row(name, by_name.get(name, []), lost.count(name)) for name in sorted({*by_name, *lost})]
        num_lost = sum(record.state == "lost" for record in self.answer.records)
        tried = f"; {count(num_lost)} trials were lost, their configs tried again" if num_lost else ""
        caption = f"trials measured by {len(rows)} workers, and the untuned model's latency there{tried}"
        # The last finding about each machine.
        found = {neighbours.host: neighbours for neighbours in NEIGHBOURS.read(self.answer)}
        notes = [about_neighbours(neighbours) for neighbours in found.values()]
        return [Table(caption, _COLUMNS, rows, frozenset(_COLUMNS[:3]), notes)]

    def document(self) -> dict[str, Any]:
        home = self.answer.home
        return {} if home is None else {"home": home.model_dump()}


def _row(name: str, records: list[TrialRecord], num_lost: int) -> tuple[str, ...]:
    """The seconds are those of its measured trials, by their processes' own count."""
    first = records[0].measurement if records else None
    worker = None if first is None else first.worker
    return (
        name,
        "" if worker is None else worker.host,
        "" if first is None else first.environment.device,
        count(len(records)),
        count(num_lost),
        seconds(sum(record.child_s or 0.0 for record in records)),
        seconds(None if worker is None else worker.untuned_s),
    )


def about_neighbours(found: Neighbours) -> str:
    """Whether the workers of a machine were timed side by side, and why."""
    how = "take turns at being timed" if found.disturb else "are timed side by side"
    why = f"running together changes its untuned latency by {100 * found.moved:+.1f} %"
    return f"the {len(found.workers)} workers of {found.host} {how}: {why}, chance explains {percent(found.allowed)}"
