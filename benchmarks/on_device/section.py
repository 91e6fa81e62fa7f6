"""What the steps found, as goals and as text. A figure that was not measured is missing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from autotune.measure.statistics import Verdict
from benchmarks.delivered import Promise
from benchmarks.evidence import Goal, table
from benchmarks.on_device.records import (
    Done,
    Machine,
    PathSeen,
    PlainSeen,
    StudySeen,
    TruthSeen,
    Way,
)
from benchmarks.on_device.studies import TUNED, UNTUNED
from benchmarks.processes import Ratio

ABOUT = (
    "Steps of `benchmarks/device.py`, by worth; what was not run has no row. A path is a trial of a small model whose "
    "outputs are compared with the untuned model's. A knob is tried alone, in single processes. Promised is the "
    "speed-up of a study's export; delivered are medians of fresh processes of a plain script."
)


def judge(records: Sequence[Done]) -> list[Goal]:
    """Of each piece that was run."""
    paths = results(records, PathSeen)
    truths = [each for each in results(records, TruthSeen) if each.verdict is not None]
    plain = [each for each in results(records, PlainSeen) if delivered(each, TUNED)]
    promised = [each for each in plain if each.verdict == Verdict.FASTER]  # What is left untouched promises nothing.
    goals = []
    if paths:
        working = sum(each.tried.failure is None for each in paths)
        goals.append(Goal("every path gives right outputs", f"{working} of {len(paths)}", working == len(paths)))
    if truths:
        right = sum(each.verdict in each.right for each in truths)
        goals.append(Goal("the known answer is found", f"{right} of {len(truths)}", right == len(truths)))
    if promised:
        held = sum(is_kept(each) for each in promised)
        text = "the plain script gets what was promised"
        goals.append(Goal(text, f"{held} of {len(promised)}", held == len(promised)))
    if plain:
        best = sum((delivered(each, TUNED) or 0) >= 0.97 * (by_hand(each) or 0) for each in plain)
        text = "as fast as the best mode by hand, or within 3 %"
        goals.append(Goal(text, f"{best} of {len(plain)}", best == len(plain)))
    return goals


def section(records: Sequence[Done]) -> str:
    """A table for each piece that was run."""
    parts = [ABOUT, *_machine(records), *_paths(results(records, PathSeen)), *_truths(results(records, TruthSeen))]
    parts += [*_studies(records), *_problems(records)]
    return "\n\n".join(parts)


def results(records: Sequence[Done], kind: type) -> list:  # type: ignore[type-arg]
    """The results of one kind, in the order in which they came."""
    return [each.result for each in records if isinstance(each.result, kind)]


def delivered(plain: PlainSeen, way: str) -> float | None:
    """How many times as fast as the untuned model; None where one of the two has no figure."""
    untuned, other = plain.ways.get(UNTUNED, Way()).median_s, plain.ways.get(way, Way()).median_s
    return statistics.median(untuned) / statistics.median(other) if untuned and other else None


def by_hand(plain: PlainSeen) -> float | None:
    """Of the best mode."""
    found = [delivered(plain, way) for way in plain.ways if way not in (UNTUNED, TUNED)]
    return max((each for each in found if each is not None), default=None)


def is_kept(plain: PlainSeen) -> bool:
    """By the rule of `delivered.py`."""
    found = delivered(plain, TUNED)
    if plain.promised is None or found is None:
        return False
    return Promise(Verdict.FASTER, Ratio(*plain.promised)).is_kept_by(Ratio(found, found, found))


def _machine(records: Sequence[Done]) -> list[str]:
    return [
        "; ".join(f"{name} {value}" for name, value in each.facts.items()) + f". `doctor`: {_missing(each)}"
        for each in results(records, Machine)
    ]


def _missing(machine: Machine) -> str:
    missing = [line.removeprefix("missing: ") for line in machine.doctor if line.startswith("missing: ")]
    return f"missing: {'; '.join(missing)}." if missing else "nothing is missing."


def _paths(paths: list[PathSeen]) -> list[str]:
    right = [f"{each.path} {_times(_ratio(each))}".strip() for each in paths if each.tried.failure is None]
    failed = [[each.path, "**failed**", _cell(each.tried.failure)] for each in paths if each.tried.failure]
    told = f"Right outputs, times as fast as untuned: {'; '.join(right)}." if right else ""
    parts = [told, table(["path", "outputs", "why"], failed) if failed else ""]
    return ["### Paths", *filter(None, parts)] if paths else []


def _ratio(path: PathSeen) -> float | None:
    return path.untuned_s / path.tried.median_s if path.untuned_s and path.tried.median_s else None


def _truths(truths: list[TruthSeen]) -> list[str]:
    rows = [
        [each.what, each.verdict or "none", _times(each.speedup), "yes" if each.verdict in each.right else "**no**"]
        for each in truths
    ]
    return [f"### Known answers\n\n{table(['study', 'verdict', 'speed-up', 'right'], rows)}"] if rows else []


def _studies(records: Sequence[Done]) -> list[str]:
    plain = {each.model: each for each in results(records, PlainSeen)}
    studies: list[StudySeen] = results(records, StudySeen)
    modes = list(dict.fromkeys(way for each in plain.values() for way in each.ways if way not in (UNTUNED, TUNED)))
    rows = [_study(each, plain.get(each.model), modes) for each in studies]
    header = ["model", "trials", "minutes", "verdict", "promised", "delivered", *(f"`{each}`" for each in modes)]
    heading = "### Studies, and modes by hand\n\nTimes as fast as the untuned model, first-call seconds in brackets."
    return [f"{heading}\n\n{table(header, rows)}"] if rows else []


def _study(study: StudySeen, plain: PlainSeen | None, modes: list[str]) -> list[str]:
    trials = f"{study.num_trials}" + (f", {study.num_failed} failed" if study.num_failed else "")
    measured = [_way(plain, way) for way in (TUNED, *modes)]
    return [study.model, trials, f"{study.minutes:.1f}", study.verdict or "none", _promised(study), *measured]


def _promised(study: StudySeen) -> str:
    """Of the export: without a winner it leaves the model as it is."""
    if study.verdict is None:
        return ""
    return str(Ratio(*study.speedup)) if study.verdict == Verdict.FASTER and study.speedup else "left untouched"


def _way(plain: PlainSeen | None, way: str) -> str:
    if plain is None or way not in plain.ways:
        return ""
    found, seen = delivered(plain, way), plain.ways[way]
    if found is None:
        return _cell(seen.problem or "")
    return f"{found:.2f} ({statistics.median(seen.first_call_s):.0f} s)"


def _problems(records: Sequence[Done]) -> list[str]:
    lines = [f"* {each.step}: {_cell(each.problem)}" for each in records if each.problem]
    return ["Steps that were stopped:\n\n" + "\n".join(lines)] if lines else []


def _cell(text: str) -> str:
    """In one line of a table."""
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= 160 else f"{line[:157]}..."


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
