"""A/A: studies whose configs are all the same. Whatever they call `faster` is a mistake.

    python benchmarks/aa.py                                  all studies
    taskset -c 0,1 python benchmarks/aa.py --pieces real     those of real models: ten minutes on a quiet machine

Most are simulated, since rare mistakes must be counted. The real ones are twelve models under the plain command line,
whose processes are as they are on this machine, memory that the C library gives back included. A record is kept as soon
as it is there, so that a run goes on where it was stopped; what has a record of this commit is not run again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import zoo_models
from benchmarks.evidence import REPOSITORY, Benchmark, Goal, by_commit, commit, is_of_this_code, percent, table
from benchmarks.processes import Product, ProductError, rate_is_below
from benchmarks.simulated import ENDED, UNTUNED_S, Noise, Truth, simulate, space_of_variants
from benchmarks.zoo_models import ZooModel

PIECES = ("simulated", "clock", "real")
IDENTICAL = Path(__file__).with_name("spaces") / "identical_torch.yaml"
_ELEMENTWISE = f"{REPOSITORY}/benchmarks/models/elementwise_torch.py:elementwise"
_OF_THE_ZOO = ("unet", "bert", "gpt2", "segformer", "whisper", "wav2vec2", "vae_decoder", "detr", "patchtst")
MODELS = (
    ZooModel("elementwise", "elementwise operations", "torch", _ELEMENTWISE),
    *(model for model in zoo_models.MODELS if model.name in _OF_THE_ZOO),
    ZooModel("resnet18", "convolution", "torch", "resnet18"),
    ZooModel("vit", "attention", "torch", "vit"),
)
"""Those of the real studies."""

GOAL_RATE = 0.01
GOAL_RATE_ALIKE = 0.02
"""Where blocks are alike in time, or one config is noisier than the others: nothing can wholly make up for it."""
ALIKE_SD = 0.03
"""Scatter between processes in these studies."""
OTHER_NOISES = (
    Noise(process_sd=0.03, has_two_modes=True),
    Noise(process_sd=0.06, has_two_modes=True),
    Noise(process_sd=0.03, untuned_factor=3.0),
    Noise(process_sd=0.03, share_hit=0.1),
    Noise(process_sd=0.06, share_hit=0.1),
    Noise(process_sd=0.03, wild_factor=3.0),
    Noise(process_sd=0.06, wild_factor=3.0),
    Noise(process_sd=0.03, wild_factor=3.0, block_correlation=0.8),
)
"""Which a rule that takes scatter for normal, alike for all, and fresh in each process, may get wrong."""
CLOCKED = (
    Noise(process_sd=0.03),
    Noise(process_sd=0.06, has_two_modes=True),
    Noise(process_sd=0.03, block_correlation=0.8),
)
"""Of the studies that a clock ends."""
NOT_COMPARED = "not compared"
"""Also where there is a verdict: `keep_untuned` may follow from configs being one program, without a measurement."""
NUM_VARIANTS = 12
ABOUT = (
    "Studies whose configs all do the same work; a verdict `faster` is false. They run the real tuner on drawn "
    f"measurements of {NUM_VARIANTS + 1} configs: each process has a bias for life, calls scatter by 2 %, one in 20 "
    "is delayed by 10 to 50 %, and the machine drifts by 0.5 % a trial. Under a correlation a finalist's bias in a "
    "block resembles the one of the block before, and 2 false winners in 100 studies meet the goal. A clock ends a "
    "study after three to fifteen blocks. *Real*: models in fresh processes, with a space of three names for the "
    "untuned model. *Blocks*: the median, and the fewest."
)


@dataclass
class Part:
    """Studies of one kind: how many ended with which verdict, and the speed-ups that were promised wrongly."""

    name: str
    verdicts: Counter[str] = field(default_factory=Counter)
    false_speedups: list[float] = field(default_factory=list)
    goal_rate: float = GOAL_RATE
    num_blocks: list[int] = field(default_factory=list)
    """Of each study."""
    commit: str = ""
    refusals: list[str] = field(default_factory=list)
    """What the tool said where it could not tune a model."""

    def add(self, verdict: str, speedup: float | None, num_blocks: int = 0) -> None:
        self.num_blocks.append(num_blocks)
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
class Case:
    """Studies under a noise."""

    noise: Noise
    num_studies: int
    has_clock: bool = False
    """It ends them."""

    @property
    def name(self) -> str:
        return name_of(self.noise) + (ENDED if self.has_clock else "")

    def run(self) -> Part:
        """Studies of thirteen equal configs; the study's number is its seed."""
        is_hard = self.noise.block_correlation > 0 or self.noise.wild_factor > 1
        part = Part(self.name, goal_rate=GOAL_RATE_ALIKE if is_hard else GOAL_RATE, commit=commit())
        space = space_of_variants(NUM_VARIANTS)
        truth = Truth(dict.fromkeys(space.configs(), UNTUNED_S))
        for seed in range(self.num_studies):
            confirmation = simulate(space, truth, self.noise, seed=seed, has_clock=self.has_clock).confirmation
            speedup = confirmation.speedup
            median = None if speedup is None else speedup.median
            part.add(confirmation.verdict.value, median, len(confirmation.blocks))
        return part


@dataclass(frozen=True)
class RealCase:
    """A study of a real model, by the plain command line."""

    of: ZooModel
    budget: str

    @property
    def name(self) -> str:
        return f"real {self.of.name} {self.budget}"

    def run(self) -> Part:
        """Tune it where nothing can be gained."""
        model, part = self.of, Part(f"real models, {self.budget} each", commit=commit())
        try:
            if not model.is_installed:
                raise ProductError(f"{model.library} is not installed")
            with Product(model.path) as product:
                document = product.tune(
                    model.model, model.framework, study="aa", model_arguments=model.arguments, space=IDENTICAL,
                    budget=self.budget,
                )  # fmt: skip
        except ProductError as error:
            part.refusals.append(f"{model.name}: {error}")
            return part
        speedup = document["speedup"]
        part.add(document["verdict"] or "failed", speedup and speedup["median"], len(document["blocks"]))
        return part


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--pieces", nargs="+", choices=PIECES, default=list(PIECES), help="default: all")
    parser.add_argument("--budget", default="45s", help="of a study of a real model (default: %(default)s)")
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
    parser.add_argument("--clocked", type=int, default=100, help="studies for each noise (default: %(default)s)")
    parser.add_argument("--alike", type=int, default=50, help="studies for each correlation (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case | RealCase]:
    """Every noise, then every model; for a smoke run a few studies of the first noise, and of blocks alike in time."""
    if given.quick:
        first = Noise(process_sd=given.process_sd[0])
        return [Case(first, 5), Case(alike(given.correlation[0]), 5), Case(first, 5, has_clock=True)]
    pieces: dict[str, list[Case] | list[RealCase]] = {
        "simulated": _simulated(given),
        "clock": [Case(noise, given.clocked, has_clock=True) for noise in CLOCKED],
        "real": [RealCase(model, given.budget) for model in MODELS],
    }
    return [case for name in PIECES if name in given.pieces for case in pieces[name]]


def _simulated(given: argparse.Namespace) -> list[Case]:
    noises = [(given.simulated, Noise(process_sd=sd)) for sd in given.process_sd]
    noises += [(given.others, noise) for noise in OTHER_NOISES]
    noises += [(given.alike, alike(correlation)) for correlation in given.correlation]
    return [Case(noise, number) for number, noise in noises if number]


def alike(correlation: float) -> Noise:
    """Blocks that are alike in time."""
    return Noise(process_sd=ALIKE_SD, block_correlation=correlation)


def name_of(noise: Noise) -> str:
    """Of the studies under it."""
    name = f"simulated, processes scatter by {percent(noise.process_sd)}"
    if noise.has_two_modes:
        name += " in two modes"
    if noise.untuned_factor != 1:
        name += f", those of the untuned model {noise.untuned_factor:g} times as much"
    if noise.block_correlation:
        name += f", correlation {noise.block_correlation} between successive processes of a config"
    if noise.wild_factor != 1:
        name += f", those of one config {noise.wild_factor:g} times as much"
    if noise.share_hit:
        name += f", {percent(noise.share_hit)} of them slower by half"
    return name


def run(case: Case | RealCase) -> Part:
    """A part, or a study of one."""
    return case.run()


def holds(part: Part) -> bool:
    """It is a record of this very code."""
    return is_of_this_code(part.commit) and not part.refusals


def whole(records: Sequence[Part]) -> list[Part]:
    """The parts, studies of real models put together."""
    parts: dict[str, Part] = {}
    for each in records:
        part = parts.setdefault(each.name, Part(each.name, goal_rate=each.goal_rate))
        part.verdicts.update(each.verdicts)
        part.false_speedups += each.false_speedups
        part.num_blocks += each.num_blocks
        part.refusals += each.refusals
    return [*parts.values()]


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
    """A goal for all parts that may have as many false winners, with what the worst of them shows."""
    alike: dict[tuple[float, bool], list[Part]] = {}
    for part in whole(records):
        alike.setdefault((part.goal_rate, part.name.startswith("simulated")), []).append(part)
    return [_goal_of_all(parts) for parts in alike.values()]


def _goal_of_all(parts: Sequence[Part]) -> Goal:
    goals = [goal_of(part) for part in parts]
    bounds = [rate_is_below(part.verdicts["faster"], part.num_judged) for part in parts]
    worst = bounds.index(max(bounds))
    text = goals[worst].text
    if len(parts) > 1:
        text = text.replace(f"({parts[worst].name})", f"({len(parts)} kinds of noise; the worst is told)")
    return Goal(text, goals[worst].found, all(goal.met for goal in goals))


def section(records: Sequence[Part]) -> str:
    """One row for each part."""
    parts = whole(records)
    verdicts = sorted({verdict for part in parts for verdict in part.verdicts} | {"faster"})
    rows = [
        [
            part.name,
            str(part.num_studies),
            *(str(part.verdicts[verdict]) for verdict in verdicts),
            _blocks(part),
            _listed(part),
        ]
        for part in parts
    ]
    header = ["part", "studies", *(f"`{verdict}`" for verdict in verdicts), "blocks", "promised wrongly"]
    refusals = [f"* {refusal}" for part in parts for refusal in part.refusals]
    return "\n\n".join(
        filter(None, [ABOUT, table(header, rows), "\n".join(refusals), by_commit(part.commit for part in records)])
    )


def _blocks(part: Part) -> str:
    return f"{statistics.median(part.num_blocks):g} ({min(part.num_blocks)})" if part.num_blocks else "-"


def _listed(part: Part) -> str:
    return ", ".join(f"{speedup:.3f}x" for speedup in part.false_speedups) or "none"


BENCHMARK = Benchmark("aa", "A/A: identical configs", __doc__, Part, cases, run, judge, section, options, holds=holds)

if __name__ == "__main__":
    BENCHMARK.main()
