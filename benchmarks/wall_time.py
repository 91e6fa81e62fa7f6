"""The same answer in how many minutes: the product's `tune` with its default settings, and the plain Optuna loop.

    taskset -c 0,1 python benchmarks/wall_time.py --model vit --seeds 5 --loops 2

The loop is watched by somebody who knows the truth: it is done with the trial that first is within 2 % of the best
config that any run has found, although the loop itself cannot know that. The product is done with its verdict,
confirmation included.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import optuna
import yaml

from autotune.environment import num_usable_cores
from benchmarks import plain_loop
from benchmarks.evidence import Benchmark
from benchmarks.processes import Document, Product, ProductError, export_in
from benchmarks.race import (
    ORACLE_BLOCKS,
    PROVEN_WITHIN,
    LoopRun,
    LoopTrial,
    Run,
    ToolRun,
    best_of,
    judge,
    section,
)


@dataclass(frozen=True)
class Case:
    """A study of the product with a seed, or a run of the loop, which has a number.

    `loops`: all loops that were run before. `keep`: where the study's export stays; None: nowhere.
    """

    kind: Literal["tool", "loop"]
    model: str
    number: int
    minutes: float
    is_quick: bool
    keep: Path | None
    loops: list[LoopRun] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.kind} {self.number}"


def read_loop(folder: Path, began: datetime) -> list[LoopTrial]:
    """The finished trials of a loop that was started at `began` (local time, as Optuna's), in their order."""
    study = optuna.load_study(study_name=plain_loop.STUDY, storage=f"sqlite:///{folder}/loop.db")
    return [
        LoopTrial(trial.user_attrs["config"], trial.value, ended_s=(trial.datetime_complete - began).total_seconds())
        for trial in study.get_trials(deepcopy=False)
        if trial.datetime_complete is not None
    ]


def config_of(loop_config: Mapping[str, Any]) -> dict[str, Any]:
    """The loop's config in the product's words: compiled by inductor, and inactive settings left out."""
    config = {name: value for name, value in loop_config.items() if value is not None}
    return {**config, "backend": "inductor"} if config["execution"] == "compile" else config


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--model", default="vit", help="a bundled model (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=15.0, help="of each plain loop (default: %(default)s)")
    parser.add_argument("--loops", type=int, default=1, help="runs of the plain loop (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="studies of the product (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the exported YAML files in this folder")


def cases(given: argparse.Namespace) -> list[Case]:
    """The loops first, since the product's answers are held against theirs."""
    loops: list[LoopRun] = []
    minutes = 0.5 if given.quick else given.minutes

    def case(kind: Literal["tool", "loop"], number: int) -> Case:
        return Case(kind, given.model, number, minutes, given.quick, given.keep, loops)

    return [*(case("loop", n) for n in range(given.loops)), *(case("tool", seed) for seed in range(given.seeds))]


def run(case: Case) -> Run:
    """A loop is remembered for the studies that follow."""
    if case.kind == "tool":
        return _tool(case)
    case.loops.append(_loop(case))
    return case.loops[-1]


def _loop(case: Case) -> LoopRun:
    with tempfile.TemporaryDirectory(prefix="autotune-benchmark-") as folder:
        began, start = datetime.now(), time.perf_counter()
        subprocess.run(
            [
                sys.executable, plain_loop.__file__, case.model,
                "--minutes", str(case.minutes), "--folder", folder,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return LoopRun("loop", read_loop(Path(folder), began), time.perf_counter() - start)


def _tool(case: Case) -> ToolRun:
    """The loop has its processes to itself, so the product may search settings of the process as well."""
    with Product() as product:
        budget = product.folder / "quick.yaml" if case.is_quick else None
        if budget is not None:
            budget.write_text("confirmation: {first_look: 2, num_looks: 1, num_rounds: 3}\n")
        start = time.perf_counter()
        document = product.tune(
            case.model, "torch", study="race", seed=case.number, trials=2 if case.is_quick else None,
            budget=budget, process_settings=True,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        best, measured = document["best"], _measured(document)
        return ToolRun(
            kind="tool",
            seed=case.number,
            seconds=seconds,
            verdict=document["verdict"],
            config=None if best is None else best["config"],
            num_trials=len(document["trials"]),
            trials_s=sum(trial["seconds"] for trial in measured),
            oracle_s=oracle_s(document),
            over_loop=_over_loop(product, case),
            num_cores=num_usable_cores(),
            spared_s=sum(trial["spared_s"] for trial in measured),
            proven_s=proven_s(document),
        )


def proven_s(document: Document) -> float | None:
    """Seconds until an answer was proven that is within 5 % of the last one; None where none was before the end."""
    answers = document["answers"]
    gains = [answer["speedup"]["median"] for answer in answers]
    good = (
        answer["after_s"]
        for answer, gain in zip(answers, gains, strict=True)
        if gain >= gains[-1] / (1 + PROVEN_WITHIN)
    )
    return next(good, None)


def oracle_s(document: Document) -> float | None:
    """From the study's own records; None without a winner. A block starts both and takes one turn of each round."""
    best, confirmation = document["best"], document["confirmation"]
    if best is None or not confirmation or confirmation["compile_warm_s"] is None:
        return None
    measured = {trial["number"]: trial for trial in _measured(document)}
    untuned, winner = min(measured), best["trial"]
    floor = document["noise_floor"] or {}
    start_s = floor.get("start_s") or measured[untuned]["seconds"]
    turns_s = 2 * measured[untuned]["run_s"]
    block_s = 2 * start_s + confirmation["compile_warm_s"] + turns_s
    cold_s = measured[winner]["seconds"] + measured[winner]["spared_s"]
    return float(measured[untuned]["seconds"] + cold_s + ORACLE_BLOCKS * block_s)


def _measured(document: Document) -> list[dict[str, Any]]:
    """Number and seconds of each measured trial, those of its calls, and those that it was spared."""
    outcomes = [(trial["number"], trial["outcome"]) for trial in document["trials"]]
    return [
        {
            "number": number,
            "seconds": sum(told["stage_s"].values()),
            "run_s": told["stage_s"].get("run", 0.0),
            "spared_s": told["compile_spared_s"],
        }
        for number, told in outcomes
        if told and told["kind"] == "measurement"
    ]


def _export(product: Product, case: Case) -> Path | None:
    """The study's YAML; None: it has no answer."""
    exported = export_in(case.keep or product.folder, case.model, case.number).resolve()
    try:
        product.export("race", exported)
    except ProductError:
        return None
    return exported


def _over_loop(product: Product, case: Case) -> float | None:
    """The loops' best config against the product's, side by side: times as fast is the product's. None: no answer."""
    exported, best = _export(product, case), best_of(case.loops)
    if best is None or exported is None:
        return None
    content = yaml.safe_load(exported.read_text(encoding="utf-8"))
    content["config"] = config_of(best.config)
    theirs = product.folder / "loop.yaml"
    theirs.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return float(product.compare(theirs, exported)["speedup"]["median"])


def benchmark_of(model: str) -> Benchmark[Case, Run]:
    """Each model has a section of its own."""
    title = f"The same answer, in how long: {model}"
    return Benchmark(f"wall_time_{model}", title, __doc__, Run, cases, run, judge, section, options)


BENCHMARK = benchmark_of("vit")


def main() -> None:
    """The section of the model that was asked for."""
    given = BENCHMARK.parser().parse_args()
    benchmark_of(given.model).execute(given, shlex.join(["wall_time.py", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
