"""Planted truth: studies in which the right answer is known, because it was put there.

One config is faster, equal, slower or wrong by design, and simulated studies count how often the verdict is right.
`device.py` has real ones. A record is kept as soon as it is there, so that a run goes on where it was stopped; what has
a record of this commit is not run again.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.evidence import Benchmark, Goal, by_commit, commit, is_of_this_code, percent, table
from benchmarks.simulated import ENDED, UNTUNED_S, Noise, Truth, simulate, space_of_variants

GOAL_SD, HARDER_SD = 0.015, 0.03
"""Scatter between processes: at the first one the goals hold, the second is reported."""
NUM_VARIANTS = 8
REGRESSION = -0.10
"""Speed-up of all configs that are not the planted one, so that it alone can win."""
ABOUT = (
    "Studies in which one config has a known effect and all others are 10 % slower. A true gain of 2 % is near the "
    "margin of 1 %: `tie` is a right answer, and no goal is set. *Wrong winner*: `faster`, but another config. "
    "*Interval held it*: comparisons of the planted config whose 98 % interval holds the true speed-up. A clock ends a "
    "study after three to fifteen blocks."
)


@dataclass(frozen=True)
class Planted:
    """What one config of a study is: its true speed-up over the untuned model, and whether its output is wrong."""

    name: str
    speedup: float
    """As a share: 0.05 means 1.05 times as fast."""
    wrong: bool = False

    @property
    def must_be_found(self) -> bool:
        return self.speedup >= 0.05 and not self.wrong

    @property
    def is_trap(self) -> bool:
        """Nothing is to be gained here: `faster` would be false."""
        return self.speedup <= 0 or self.wrong


TRUTHS = (
    Planted("2 % faster", 0.02),
    Planted("5 % faster", 0.05),
    Planted("20 % faster", 0.20),
    Planted("a tie", 0.0),
    Planted("10 % slower", REGRESSION),
    Planted("50 % faster and wrong", 0.50, wrong=True),
)


@dataclass(frozen=True)
class Case:
    """Studies of one truth, whose processes scatter so."""

    planted: Planted
    process_sd: float
    num_studies: int
    has_clock: bool = False
    """It ends them."""

    @property
    def kind(self) -> str:
        return kind_of(self.process_sd, has_clock=self.has_clock)

    @property
    def name(self) -> str:
        return f"{self.kind}: {self.planted.name}"


@dataclass
class Row:
    """Studies of one planted truth."""

    planted: Planted
    kind: str
    verdicts: Counter[str] = field(default_factory=Counter)
    num_wrong_winners: int = 0
    """`faster`, but another config than the planted one."""
    num_intervals: int = 0
    num_covering: int = 0
    """Intervals of the planted config's speed-up, and those of them that hold the truth."""
    commit: str = ""

    def add(self, verdict: str, is_planted: bool, interval: tuple[float, float] | None) -> None:
        self.verdicts[verdict] += 1
        self.num_wrong_winners += verdict == "faster" and not is_planted
        if is_planted and interval is not None:
            self.num_intervals += 1
            self.num_covering += interval[0] <= 1 + self.planted.speedup <= interval[1]

    @property
    def num_studies(self) -> int:
        return sum(self.verdicts.values())

    @property
    def num_faster(self) -> int:
        return self.verdicts["faster"]


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--simulated", type=int, default=50, help="studies for each effect (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """Studies at two spreads, and with a clock; for a smoke run three of each."""
    number = 3 if given.quick else given.simulated
    kinds = ((GOAL_SD, False), (HARDER_SD, False), (GOAL_SD, True))
    return [Case(planted, sd, number, has_clock) for sd, has_clock in kinds for planted in TRUTHS]


def run(case: Case) -> Row:
    """Studies of eight compiled configs, one of which is the planted one. The study's number is its seed."""
    row, planted, space = Row(case.planted, case.kind, commit=commit()), case.planted, space_of_variants(NUM_VARIANTS)
    untuned, *compiled = space.configs()
    for seed in range(case.num_studies):
        chosen = compiled[seed % len(compiled)]
        slower = dict.fromkeys(compiled, UNTUNED_S / (1 + REGRESSION))
        latency_s = {untuned: UNTUNED_S, **slower, chosen: UNTUNED_S / (1 + planted.speedup)}
        truth = Truth(latency_s, wrong=frozenset({chosen} if planted.wrong else ()))
        study = simulate(space, truth, Noise(process_sd=case.process_sd), seed=seed, has_clock=case.has_clock)
        speedup = study.confirmation.speedup
        interval = None if speedup is None else (speedup.low, speedup.high)
        row.add(study.confirmation.verdict.value, study.candidate == chosen, interval)
    return row


def holds(row: Row) -> bool:
    """It is a record of this very code."""
    return is_of_this_code(row.commit)


def judge(records: Sequence[Row]) -> list[Goal]:
    """About the studies that scatter as little as was promised. A clock may leave no time to find a gain."""
    whole, ended = (kind_of(GOAL_SD, has_clock=has_clock) for has_clock in (False, True))
    found, false = goals_of(whole, [row for row in records if row.kind == whole])
    at_end = [row for row in records if row.kind == ended]
    return [found, false, *(goals_of(ended, at_end)[1:] if at_end else [])]


def goals_of(kind: str, rows: Sequence[Row]) -> list[Goal]:
    """Gains of 5 % and more are always found, and nothing is called faster that is not."""
    counted = [row for row in rows if row.planted.must_be_found]
    found = sum(row.num_faster - row.num_wrong_winners for row in counted)
    wanted = sum(row.num_studies for row in counted)
    trapped = [row for row in rows if row.planted.is_trap]
    num_false, num_traps = sum(row.num_faster for row in trapped), sum(row.num_studies for row in trapped)
    return [
        Goal(f"a gain of 5 % or more is always found ({kind})", f"{found} of {wanted}", found == wanted),
        Goal(
            f"a tie, a regression or a wrong result is never `faster` ({kind})",
            f"{num_false} of {num_traps}",
            num_false == 0,
        ),
    ]


def section(records: Sequence[Row]) -> str:
    """A table for each kind."""
    verdicts = ["faster", *sorted({verdict for row in records for verdict in row.verdicts} - {"faster"})]
    header = ["planted", "studies", *(f"`{verdict}`" for verdict in verdicts), "wrong winner", "interval held it"]
    tables = [
        f"{kind}:\n\n{table(header, [_cells(row, verdicts) for row in records if row.kind == kind])}"
        for kind in dict.fromkeys(row.kind for row in records)
    ]
    return "\n\n".join(filter(None, [ABOUT, *tables, by_commit(row.commit for row in records)]))


def kind_of(process_sd: float, *, has_clock: bool) -> str:
    """What rows of studies that scatter so are called."""
    return f"simulated, processes scatter by {percent(process_sd)}{ENDED if has_clock else ''}"


def _cells(row: Row, verdicts: Sequence[str]) -> list[str]:
    counts = [str(row.verdicts[verdict]) for verdict in verdicts]
    held = f"{row.num_covering} of {row.num_intervals}" if row.num_intervals else "-"
    return [row.planted.name, str(row.num_studies), *counts, str(row.num_wrong_winners), held]


BENCHMARK = Benchmark("planted", "Planted truth", __doc__, Row, cases, run, judge, section, options, holds=holds)

if __name__ == "__main__":
    BENCHMARK.main()
