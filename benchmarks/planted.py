"""Planted truth: studies in which the right answer is known, because it was put there.

One config is faster, equal, slower or wrong by design. Simulated studies count how often the verdict is right; real
processes, which sleep for the planted time, show that the whole way of a trial gives the same answer.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from benchmarks.product import Document, Product
from benchmarks.record import Conditions, Goal, Report, percent, publish, table
from benchmarks.simulated import UNTUNED_S, Noise, Truth, simulate, space_of_variants

SLEEPER = Path(__file__).with_name("models") / "sleeper.py"
GOAL_SD, HARDER_SD = 0.015, 0.03
"""Scatter between processes: at the first one the goals hold, the second is reported."""
NUM_VARIANTS = 8
REGRESSION = -0.10
"""Speed-up of all configs that are not the planted one, so that it alone can win."""
UNTUNED_MS = 10.0
"""That the untuned model of a real study sleeps a call."""


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


def simulated_row(planted: Planted, process_sd: float, num_studies: int) -> Row:
    """Studies of eight compiled configs, one of which is the planted one; the study's number is its seed."""
    row = Row(planted, simulated_kind(process_sd))
    space = space_of_variants(NUM_VARIANTS)
    untuned, *compiled = space.configs()
    for seed in range(num_studies):
        chosen = compiled[seed % len(compiled)]
        slower = dict.fromkeys(compiled, UNTUNED_S / (1 + REGRESSION))
        latency_s = {untuned: UNTUNED_S, **slower, chosen: UNTUNED_S / (1 + planted.speedup)}
        truth = Truth(latency_s, wrong=frozenset({chosen} if planted.wrong else ()))
        study = simulate(space, truth, Noise(process_sd=process_sd), seed=seed)
        speedup = study.confirmation.speedup
        interval = None if speedup is None else (speedup.low, speedup.high)
        row.add(study.confirmation.verdict.value, study.candidate == chosen, interval)
    print(f"{row.kind}, {planted.name}: {dict(row.verdicts)}", flush=True)
    return row


def real_row(product: Product, planted: Planted, num_studies: int) -> Row:
    """Studies of processes that sleep, through the command line."""
    row = Row(planted, "real processes that sleep")
    space = product.folder / f"{_slug(planted)}.yaml"
    space.write_text(yaml.safe_dump(space_of(planted), sort_keys=False))
    for seed in range(num_studies):
        document = product.tune(
            f"{SLEEPER}:sleeper", "fake", study=f"{_slug(planted)}-{seed}", trials=4, seed=seed, space=space
        )
        # A sleep lasts a little longer than it was asked to, so the planted figure is not held against the interval.
        row.add(str(document["verdict"]), _is_planted(document, planted), interval=None)
    print(f"{row.kind}, {planted.name}: {dict(row.verdicts)}", flush=True)
    return row


def space_of(planted: Planted) -> dict[str, Any]:
    """A space of the fake framework: the untuned model, the planted config, and a slower default."""
    planted_ms, slower_ms = _latency_ms(planted.speedup), _latency_ms(REGRESSION)
    behaviour = "wrong" if planted.wrong else "right"
    doc = "https://example.org/planted"
    compiled_ms = sorted({planted_ms, slower_ms})
    others_ms = [each for each in compiled_ms if each != UNTUNED_MS]
    forbid = [
        {"if": {"execution": "eager", "latency_ms": others_ms}, "because": "the untuned model takes its own time"}
    ]
    if UNTUNED_MS not in compiled_ms:
        forbid.append({"if": {"execution": "compile", "latency_ms": UNTUNED_MS}, "because": "no tie was planted"})
    return {
        "schema": 1,
        "framework": "fake",
        "knobs": {
            "execution": {"doc": doc, "values": ["eager", "compile"], "untuned": "eager", "default": "compile"},
            "latency_ms": {
                "doc": doc, "values": [UNTUNED_MS, *others_ms], "untuned": UNTUNED_MS, "default": slower_ms,
            },
            "behaviour": {
                "doc": doc,
                "when": {"execution": "compile", "latency_ms": planted_ms},
                "values": [behaviour],
                "default": behaviour,
            },
        },
        "forbid": forbid,
    }  # fmt: skip


def goals_of(rows: Sequence[Row]) -> list[Goal]:
    """Gains of 5 % and more are always found, and nothing is called faster that is not."""
    counted = [row for row in rows if row.planted.must_be_found]
    found = sum(row.num_faster - row.num_wrong_winners for row in counted)
    wanted = sum(row.num_studies for row in counted)
    trapped = [row for row in rows if row.planted.is_trap]
    num_false, num_traps = sum(row.num_faster for row in trapped), sum(row.num_studies for row in trapped)
    kind = rows[0].kind
    return [
        Goal(f"a gain of 5 % or more is always found ({kind})", f"{found} of {wanted}", found == wanted),
        Goal(
            f"a tie, a regression or a wrong result is never `faster` ({kind})",
            f"{num_false} of {num_traps}",
            num_false == 0,
        ),
    ]


def report_of(kinds: Sequence[Sequence[Row]]) -> Report:
    """Rows by kind; goals are held against all kinds but the one that is noisier than promised."""
    rows = [row for kind in kinds for row in kind]
    harder = simulated_kind(HARDER_SD)
    verdicts = ["faster", *sorted({verdict for row in rows for verdict in row.verdicts} - {"faster"})]
    counted = [f"`{verdict}`" for verdict in verdicts]
    header = ["planted", "studies", *counted, "wrong winner", "interval held it"]
    bodies = [f"{kind[0].kind}:\n\n{table(header, [_cells(row, verdicts) for row in kind])}" for kind in kinds]
    return Report(
        name="planted",
        title="Planted truth",
        about=(
            "Studies in which one config has a known effect and all others are 10 % slower. A true gain of 2 % is near "
            "the margin of 1 % below which no setting is worth it: `tie` is a right answer, and no goal is set. "
            "*Wrong winner*: `faster`, but another config than the planted one. *Interval held it*: comparisons of the "
            "planted config whose 98 % interval holds the true speed-up; real sleeps last longer than planted, so it "
            "is counted in simulated studies only."
        ),
        goals=[goal for kind in kinds if kind[0].kind != harder for goal in goals_of(kind)],
        body="\n\n".join(bodies),
        results={"rows": [{**vars(row), "planted": vars(row.planted)} for row in rows]},
    )


def main() -> None:
    """Simulated studies at two spreads, then the real processes, and the section."""
    parser = argparse.ArgumentParser(description="Planted truth: is the verdict right where the answer is known?")
    parser.add_argument("--simulated", type=int, default=50, help="studies for each effect (default: %(default)s)")
    parser.add_argument("--real", type=int, default=2, help="real studies for each effect (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="three simulated studies and one real one for each effect")
    given = parser.parse_args()
    if given.quick:
        given.simulated, given.real = 3, 1

    conditions = Conditions.now()
    kinds = [[simulated_row(each, sd, given.simulated) for each in TRUTHS] for sd in (GOAL_SD, HARDER_SD)]
    with Product() as product:
        kinds.append([real_row(product, each, given.real) for each in TRUTHS])
    publish(report_of(kinds), conditions, write=not given.quick)


def simulated_kind(process_sd: float) -> str:
    """What rows of simulated studies are called."""
    return f"simulated, processes scatter by {percent(process_sd)}"


def _candidate(document: Document) -> dict[str, Any]:
    """The config that was compared with the untuned model; empty if none was."""
    confirmation = document["confirmation"] or {}
    number = confirmation.get("candidate")
    return next((dict(each["config"]) for each in document["trials"] if each["number"] == number), {})


def _is_planted(document: Document, planted: Planted) -> bool:
    config = _candidate(document)
    return config.get("execution") == "compile" and config["latency_ms"] == _latency_ms(planted.speedup)


def _latency_ms(speedup: float) -> float:
    return UNTUNED_MS / (1 + speedup)


def _slug(planted: Planted) -> str:
    return planted.name.replace(" %", "").replace(" ", "-")


def _cells(row: Row, verdicts: Sequence[str]) -> list[str]:
    counts = [str(row.verdicts[verdict]) for verdict in verdicts]
    held = f"{row.num_covering} of {row.num_intervals}" if row.num_intervals else "-"
    return [row.planted.name, str(row.num_studies), *counts, str(row.num_wrong_winners), held]


if __name__ == "__main__":
    main()
