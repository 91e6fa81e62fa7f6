"""The same answer in how many minutes: the product's `tune` with its default settings, and the plain Optuna loop.

    taskset -c 0,1 python benchmarks/wall_time.py --model vit --seeds 10 --loops 3 --stop-after 60

The loop is watched by somebody who knows the truth: it is done with the trial that first is within 2 % of the best
config that any run has found, although the loop itself cannot know that. The product is done with its verdict,
confirmation included. Each study and each loop is a piece: a run that was stopped goes on with the same command. A loop
needs nothing of the product but the model, so loops are kept until it or the models change.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import optuna
import yaml
from pydantic import TypeAdapter

from autotune.environment import num_usable_cores
from autotune.errors import InputError
from benchmarks import pieces, plain_loop, slots
from benchmarks.frame import Benchmark
from benchmarks.loop_model import LOOPS, LoopTrial
from benchmarks.pieces import Pieces
from benchmarks.product import Document, Product, ProductError, export_in
from benchmarks.race import ORACLE_BLOCKS, LoopRun, Run, SlotsRun, ToolRun, best_of, judge, section
from benchmarks.record import REPOSITORY

FEATURES: dict[str, tuple[str, ...]] = {
    "early stop": ("--no-early-stop",),
    "one toolchain for all trials": ("--env", "TMPDIR={folder}"),
    "slow compiles are cut off": ("--compile-timeout", "300"),
    "compiling side by side": ("--jobs", "1"),
}
"""What a study does by default -> the flags under which it does not."""
SLOTS = (1, 8, 16)
"""Of the simulated machine."""

Kind = Literal["tool", "loop", "slots"]


@dataclass(frozen=True)
class Case:
    """A piece: a study of the product, a run of the loop, or a simulated machine with `number` slots.

    `number` is the seed of a study or the number of a loop. `feature`: the study does without it, and only its time is
    taken. `keep`: where the study's export stays; None: nowhere.
    """

    kind: Kind
    model: str
    framework: str
    number: int
    pieces: Pieces
    loops: Pieces
    minutes: float = 0.0
    feature: str | None = None
    is_quick: bool = False
    keep: Path | None = None

    @property
    def name(self) -> str:
        without = "" if self.feature is None else f" without {self.feature}"
        return f"{self.kind} {self.number}{without}"


_RUN: TypeAdapter[Any] = TypeAdapter(Run)


def read_loop(folder: Path, began: datetime) -> list[LoopTrial]:
    """The finished trials of a loop that was started at `began` (local time, as Optuna's), in their order."""
    study = optuna.load_study(study_name=plain_loop.STUDY, storage=f"sqlite:///{folder}/loop.db")
    return [
        LoopTrial(each.user_attrs["config"], each.value, ended_s=(each.datetime_complete - began).total_seconds())
        for each in study.get_trials(deepcopy=False)
        if each.datetime_complete is not None
    ]


def config_of(loop_config: Mapping[str, Any]) -> dict[str, Any]:
    """The loop's config in the product's words: compiled by inductor, and inactive settings left out."""
    config = {name: value for name, value in loop_config.items() if value is not None}
    return {**config, "backend": "inductor"} if config["execution"] == "compile" else config  # MindSpore has no such.


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--model", default="vit", help="a bundled model (default: %(default)s)")
    parser.add_argument("--framework", choices=sorted(LOOPS), default="torch", help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=15.0, help="of each plain loop (default: %(default)s)")
    parser.add_argument("--loops", type=int, default=1, help="runs of the plain loop (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="studies of the product (default: %(default)s)")
    parser.add_argument(
        "--features", type=int, default=0, metavar="SEEDS", help="and studies without each feature that can be left out"
    )
    parser.add_argument("--slots", action="store_true", help="and simulated machines with 1, 8 and 16 slots")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the exported YAML files in this folder")
    pieces.options(parser, "wall_time")


def cases(given: argparse.Namespace) -> list[Case]:
    """The loops first, since the product's answers are held against theirs. Raises InputError."""
    if given.features > given.seeds:
        raise InputError(
            "--features asks for more seeds than --seeds: each study is held against its seed's with all features",
            tip=f"--seeds {given.features}",
        )
    folder = given.folder / ("quick" if given.quick else _name(given.model, given.framework))
    asked = {"model": given.model, "framework": given.framework}
    kept = Pieces(folder, asked, given.stop_after, anew=given.quick)
    loops_folder, made_by = folder.with_name(f"{folder.name}-loops"), {**asked, "minutes": given.minutes}
    loops_kept = Pieces(loops_folder, made_by, given.stop_after, anew=given.quick, code=_loop_sha256(given.framework))
    minutes, is_quick = (0.5, True) if given.quick else (given.minutes, False)

    def case(kind: Kind, number: int, feature: str | None = None) -> Case:
        model, framework, keep = given.model, given.framework, given.keep
        return Case(kind, model, framework, number, kept, loops_kept, minutes, feature, is_quick, keep)

    loops = [case("loop", each) for each in range(given.loops)]
    studies = [case("tool", each) for each in range(given.seeds)]
    without = [case("tool", seed, each) for seed in range(given.features) for each in FEATURES]
    return [*loops, *studies, *without, *(case("slots", each) for each in (SLOTS if given.slots else ()))]


def run(case: Case) -> Run:
    """The piece's record, kept or made now."""
    makers: dict[Kind, Callable[[Case], Run]] = {"tool": _tool, "loop": _loop, "slots": _slots}
    kept = case.loops if case.kind == "loop" else case.pieces
    found: Run = kept.run(case.name, _RUN, lambda: makers[case.kind](case))
    return found


def _loop_sha256(framework: str) -> str:
    loops = {LOOPS["torch"].script, LOOPS[framework].script}
    files = [*sorted(loops), *sorted((REPOSITORY / "autotune" / "models").rglob("*.py"))]
    return hashlib.sha256(b"\0".join(each.read_bytes() for each in files)).hexdigest()


def _loop(case: Case) -> LoopRun:
    folder = case.loops.folder / f"loop-{case.number}"
    shutil.rmtree(folder, ignore_errors=True)  # One that was stopped has caches, and other times.
    began, start = datetime.now(), time.perf_counter()
    subprocess.run(
        [
            sys.executable, str(LOOPS[case.framework].script), case.model,
            "--minutes", str(case.minutes), "--folder", str(folder),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return LoopRun("loop", read_loop(folder, began), time.perf_counter() - start, case.framework)


def _tool(case: Case) -> ToolRun:
    """The loop has its processes to itself, so the product may search settings of the process as well."""
    with Product() as product:
        flags = [] if case.feature is None else [each.format(folder=product.folder) for each in FEATURES[case.feature]]
        budget = product.folder / "quick.yaml" if case.is_quick else None
        if budget is not None:
            budget.write_text("confirmation: {first_look: 2, num_looks: 1, num_rounds: 3}\n")
        start = time.perf_counter()
        document = product.tune(
            case.model, case.framework, study="race", seed=case.number, trials=2 if case.is_quick else None,
            budget=budget, process_settings=True, flags=flags,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        best = document["best"]
        return ToolRun(
            kind="tool",
            seed=case.number,
            feature=case.feature,
            seconds=seconds,
            verdict=document["verdict"],
            config=None if best is None else best["config"],
            num_trials=len(document["trials"]),
            trials_s=sum(each["seconds"] for each in _measured(document)),
            oracle_s=oracle_s(document),
            over_loop=_over_loop(product, case) if case.feature is None else None,
            num_cores=num_usable_cores(),
            spared_s=sum(each["spared_s"] for each in _measured(document)),
        )


def _slots(case: Case) -> SlotsRun:
    num_trials, compile_s = (3, 0.5) if case.is_quick else (24, 10.0)
    seconds = slots.confirmed_s(case.number, num_trials, compile_s)
    return SlotsRun("slots", case.number, num_trials, compile_s, seconds)


def oracle_s(document: Document) -> float | None:
    """From the study's own records; None without a winner. A block starts both and takes one turn of each round."""
    best, confirmation = document["best"], document["confirmation"]
    if best is None or not confirmation or confirmation["compile_warm_s"] is None:
        return None
    measured = {each["number"]: each for each in _measured(document)}
    untuned, winner = min(measured), best["trial"]
    floor = document["noise_floor"] or {}
    start_s = floor.get("start_s") or measured[untuned]["seconds"]
    turns_s = 2 * measured[untuned]["run_s"]
    block_s = 2 * start_s + confirmation["compile_warm_s"] + turns_s
    cold_s = measured[winner]["seconds"] + measured[winner]["spared_s"]
    return float(measured[untuned]["seconds"] + cold_s + ORACLE_BLOCKS * block_s)


def _measured(document: Document) -> list[dict[str, Any]]:
    """Number and seconds of each measured trial, those of its calls, and those that it was spared."""
    outcomes = [(each["number"], each["outcome"]) for each in document["trials"]]
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


def _kept_loops(kept: Pieces) -> list[LoopRun]:
    records = (kept.record(f"loop {number}") for number in range(100))
    return [_RUN.validate_python(each) for each in records if each is not None]


def _export(product: Product, case: Case) -> Path | None:
    """The study's YAML; None: it has no answer."""
    exported = export_in(case.keep or product.folder, _name(case.model, case.framework), case.number).resolve()
    try:
        product.export("race", exported)
    except ProductError:
        return None
    return exported


def _over_loop(product: Product, case: Case) -> float | None:
    """The loops' best config against the product's, side by side: times as fast is the product's. None: no answer."""
    exported, best = _export(product, case), best_of(_kept_loops(case.loops))
    if best is None or exported is None:
        return None
    content = yaml.safe_load(exported.read_text(encoding="utf-8"))
    content["config"] = config_of(best.config)
    theirs = product.folder / "loop.yaml"
    theirs.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return float(product.compare(theirs, exported)["speedup"]["median"])


def _name(model: str, framework: str) -> str:
    return model if framework == "torch" else f"{model}_{framework}"


def benchmark_of(model: str, framework: str = "torch") -> Benchmark[Case, Run]:
    """Each model has a section of its own in each framework."""
    title = f"The same answer, in how long: {model}" + ("" if framework == "torch" else ", MindSpore")
    return Benchmark(f"wall_time_{_name(model, framework)}", title, __doc__, Run, cases, run, judge, section, options)


BENCHMARK = benchmark_of("vit")


def main() -> None:
    """The section of the model that was asked for."""
    given = BENCHMARK.parser().parse_args()
    benchmark_of(given.model, given.framework).execute(given, shlex.join(["wall_time.py", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
