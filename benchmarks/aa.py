"""A/A: studies whose configs are all the same. Whatever they call `faster` is a mistake.

Three parts: simulated studies (many, since rare mistakes must be counted), PyTorch and MindSpore (real processes and
compilers, few). `--keep-real` repeats the simulated ones alone, `--keep-simulated` real ones alone.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pydantic import TypeAdapter

from benchmarks.frame import Benchmark
from benchmarks.intervals import rate_is_below
from benchmarks.product import Document, Product, ProductError
from benchmarks.record import RESULTS, Goal, percent, read, table
from benchmarks.simulated import UNTUNED_S, Noise, Truth, simulate, space_of_variants

SPACES = Path(__file__).with_name("spaces")
GOAL_RATE = 0.01
GOAL_RATE_ALIKE = 0.02
"""Where blocks are alike in time, which nothing can wholly make up for."""
ALIKE_SD = 0.03
"""Scatter between processes in these studies."""
OTHER_NOISES = (
    Noise(process_sd=0.03, has_two_modes=True),
    Noise(process_sd=0.06, has_two_modes=True),
    Noise(process_sd=0.03, untuned_factor=3.0),
)
"""Which a rule that takes scatter for normal, and alike for all, may get wrong."""
SIMULATED = "simulated"
NOT_COMPARED = "not compared"
"""Also where there is a verdict: `keep_untuned` may follow from configs being one program, without a measurement."""
NUM_VARIANTS = 12
ABOUT = (
    "Studies whose configs all do the same work; a verdict `faster` is false. Simulated studies run the real "
    f"tuner, study and statistics on drawn measurements of {NUM_VARIANTS + 1} configs: each process has a bias "
    "for life, calls scatter by 2 %, one in twenty is delayed by 10 to 50 %, and the machine drifts by 0.5 % a "
    "trial. In two modes a process is slow or fast by that scatter, as often the one as the other. Where successive "
    "blocks are correlated, a contestant's bias in a block resembles the one it had in the block before (AR(1)), "
    "and up to 2 false winners in 100 studies meet the goal. The real ones compile one model under names that give "
    "the very same code; a study that found this out has compared nothing. Few studies can show a mistake, but not "
    "a rate as low as the goal: the bound says what they do show."
)


@dataclass
class Part:
    """Studies of one kind: how many ended with which verdict, and the speed-ups that were promised wrongly."""

    name: str
    verdicts: Counter[str] = field(default_factory=Counter)
    false_speedups: list[float] = field(default_factory=list)
    goal_rate: float = GOAL_RATE
    measured: str | None = None
    """When and with which commit, if that was in an earlier run."""

    def add(self, verdict: str, speedup: float | None) -> None:
        self.verdicts[NOT_COMPARED if speedup is None else verdict] += 1
        if verdict == "faster" and speedup is not None:
            self.false_speedups.append(speedup)

    @property
    def num_studies(self) -> int:
        return sum(self.verdicts.values())

    @property
    def num_judged(self) -> int:
        return self.num_studies - self.verdicts[NOT_COMPARED]


@dataclass(frozen=True)
class RealModel:
    """A small model with a space of identical configs."""

    framework: str
    model: str
    arguments: dict[str, int]
    trials: int

    @property
    def name(self) -> str:
        return f"{self.framework}, {self.model}"

    @property
    def space(self) -> Path:
        return SPACES / f"identical_{self.framework}.yaml"


TORCH = RealModel("torch", "tanh_matmul", {"size": 128, "repeats": 20}, trials=4)
MINDSPORE = RealModel("mindspore", "tanh_matmul", {"size": 128, "repeats": 20}, trials=4)


@dataclass(frozen=True)
class Case:
    """Studies of one kind: simulated under a noise, of a real model, or those of an earlier run (`kept`)."""

    name: str
    num_studies: int = 0
    noise: Noise | None = None
    real: RealModel | None = None
    kept: Part | None = None


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--simulated", type=int, default=100, help="studies for each spread (default: %(default)s)")
    parser.add_argument(
        "--process-sd", type=float, nargs="+", default=[0.015, 0.03, 0.06],
        help="scatter between simulated processes, as shares (default: 0.015 0.03 0.06)",
    )  # fmt: skip
    parser.add_argument(
        "--correlation", type=float, nargs="+", default=[0.5, 0.8],
        help="between the biases of successive blocks, in further simulated studies (default: 0.5 0.8)",
    )  # fmt: skip
    parser.add_argument("--others", type=int, default=100, help="studies for each other noise (default: %(default)s)")
    parser.add_argument("--alike", type=int, default=50, help="studies for each correlation (default: %(default)s)")
    parser.add_argument("--torch", type=int, default=10, help="studies of a PyTorch model (default: %(default)s)")
    parser.add_argument("--mindspore", type=int, default=5, help="studies of a MindSpore model (default: %(default)s)")
    keep = parser.add_mutually_exclusive_group()
    keep.add_argument("--keep-real", action="store_true", help="keep the rows of real models as they are")
    keep.add_argument("--keep-simulated", action="store_true", help="run the real studies, keep all other rows")


def cases(given: argparse.Namespace) -> list[Case]:
    """Simulated studies, then real ones; for a smoke run a few of the first noise and one of each framework."""
    if given.quick:
        noises = [(5, Noise(process_sd=given.process_sd[0])), (5, alike(given.correlation[0]))]
        reals = [(1, TORCH), (1, MINDSPORE)]
    else:
        noises = [(given.simulated, Noise(process_sd=sd)) for sd in given.process_sd]
        noises += [(given.others, each) for each in OTHER_NOISES]
        noises += [(given.alike, alike(each)) for each in given.correlation]
        reals = [(given.torch, TORCH), (given.mindspore, MINDSPORE)]
    simulated = [Case(name_of(noise), number, noise=noise) for number, noise in noises if number]
    measured = [Case(real.name, number, real=real) for number, real in reals if number]
    if not (given.keep_real or given.keep_simulated):
        return [*simulated, *measured]
    kept = [Case(part.name, kept=part) for part in kept_parts(RESULTS / "aa.json")]
    if given.keep_real:
        return [*simulated, *(each for each in kept if not each.name.startswith(SIMULATED))]
    return [*(each for each in kept if each.name not in {again.name for again in measured}), *measured]


def alike(correlation: float) -> Noise:
    """Blocks that are alike in time."""
    return Noise(process_sd=ALIKE_SD, block_correlation=correlation)


def name_of(noise: Noise) -> str:
    """Of the studies under it."""
    name = f"{SIMULATED}, processes scatter by {percent(noise.process_sd)}"
    if noise.has_two_modes:
        name += " in two modes"
    if noise.untuned_factor != 1:
        name += f", those of the untuned model {noise.untuned_factor:g} times as much"
    if noise.block_correlation:
        name += f", correlation {noise.block_correlation} between successive blocks"
    return name


def run(case: Case) -> Part:
    """The study's number is its seed."""
    if case.kept is not None:
        return case.kept
    if case.noise is not None:
        return simulated_part(case.noise, case.num_studies)
    assert case.real is not None
    return real_part(case.real, case.num_studies)


def simulated_part(noise: Noise, num_studies: int) -> Part:
    """Studies of thirteen equal configs under a noise model."""
    part = Part(name_of(noise), goal_rate=GOAL_RATE_ALIKE if noise.block_correlation else GOAL_RATE)
    space = space_of_variants(NUM_VARIANTS)
    truth = Truth(dict.fromkeys(space.configs(), UNTUNED_S))
    for seed in range(num_studies):
        confirmation = simulate(space, truth, noise, seed=seed).confirmation
        speedup = confirmation.speedup
        part.add(confirmation.verdict.value, None if speedup is None else speedup.median)
    return part


def real_part(real: RealModel, num_studies: int) -> Part:
    """Studies of a real model through the command line."""
    part = Part(real.name)
    with Product() as product:
        for seed in range(num_studies):
            document = _tune(product, real, seed)
            speedup = document["speedup"]
            part.add(document["verdict"], None if speedup is None else speedup["median"])
    return part


def kept_parts(file: Path) -> list[Part]:
    """What the last run found; each says when that was."""
    kept = read(file)
    measured = f"{kept.conditions.started:%Y-%m-%d}, commit {kept.conditions.commit}"
    parts = [TypeAdapter(Part).validate_python(each) for each in kept.records.values()]
    return [replace(part, measured=part.measured or measured) for part in parts]


def goal_of(part: Part) -> Goal:
    """At most so many false winners in a hundred, and how sure so many studies can be of that."""
    num_false, num_judged = part.verdicts["faster"], part.num_judged
    rate = num_false / num_judged if num_judged else 1.0
    bound = percent(rate_is_below(num_false, num_judged))
    per_hundred = round(100 * part.goal_rate)
    allowed = f"{per_hundred} false winner{'s' if per_hundred > 1 else ''}"
    found = f"{num_false} in {num_judged}, so the true rate is below {bound} (95 % sure)"
    return Goal(
        text=f"at most {allowed} in 100 studies ({part.name})",
        found=found if num_judged else "no study came to a verdict",
        met=rate <= part.goal_rate,
    )


def judge(records: Sequence[Part]) -> list[Goal]:
    """A goal for each part."""
    return [goal_of(part) for part in records]


def section(records: Sequence[Part]) -> str:
    """One row for each part."""
    verdicts = sorted({verdict for part in records for verdict in part.verdicts} | {"faster"})
    rows = [
        [_title(part), str(part.num_studies), *(str(part.verdicts[verdict]) for verdict in verdicts), _listed(part)]
        for part in records
    ]
    header = ["part", "studies", *(f"`{verdict}`" for verdict in verdicts), "promised wrongly"]
    return f"{ABOUT}\n\n{table(header, rows)}"


def _tune(product: Product, real: RealModel, seed: int) -> Document:
    try:
        return product.tune(
            real.model, real.framework, study=f"aa-{seed}", trials=real.trials, seed=seed, space=real.space,
            model_arguments=real.arguments,
        )  # fmt: skip
    except ProductError as error:
        # One study that could not be made must not cost the hours of the others.
        print(f"{real.framework}, study {seed}: {error}", file=sys.stderr)
        return {"verdict": None, "speedup": None}


def _title(part: Part) -> str:
    return part.name if part.measured is None else f"{part.name} ({part.measured})"


def _listed(part: Part) -> str:
    return ", ".join(f"{speedup:.3f}x" for speedup in part.false_speedups) or "none"


BENCHMARK = Benchmark("aa", "A/A: identical configs", __doc__, Part, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
