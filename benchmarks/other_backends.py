"""Backends of torch.compile of other packages, on a CPU: how often each is the fastest, by how much, and what it costs.

    taskset -c 0,1 python benchmarks/other_backends.py                with openvino, zentorch or both installed
    taskset -c 0,1 python benchmarks/other_backends.py --model vit bert --rounds 1

Each setting of each model is a trial, whose outputs are compared with the untuned model's. In each round a setting has
a process of its own, and so has the untuned model before and after each few of them; what counts is the ratio to
these. The first round compiles. What is not installed, or refuses, is named with its reason.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.bench.local import LocalBench
from autotune.config import Config, Scalar
from autotune.measure.measurement import Failure, Outcome
from autotune.measure.sampling import SamplingPlan
from autotune.planning.models import make_workload
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.workload.workload import Workload
from benchmarks import delivered, zoo_models
from benchmarks.evidence import REPOSITORY, Benchmark, Goal, table

_COMPILED: dict[str, Scalar] = {"execution": "compile"}
_FROZEN: dict[str, Scalar] = {**_COMPILED, "freezing": True}
_OPENVINO: dict[str, Scalar] = {**_COMPILED, "backend": "openvino"}
_ZENTORCH: dict[str, Scalar] = {**_COMPILED, "backend": "zentorch"}
UNTUNED = Config({"execution": "eager"})
SETTINGS: dict[str, dict[str, Scalar]] = {
    "inductor": _COMPILED,
    "inductor, frozen": _FROZEN,
    "inductor, frozen, C++ wrapper": {**_FROZEN, "cpp_wrapper": True},
    "zentorch": _ZENTORCH,
    "zentorch, frozen": {**_ZENTORCH, "zentorch_freezing": True},
    "openvino": {**_OPENVINO, "openvino_precision": "f32"},
    "inductor, frozen, bfloat16": {**_FROZEN, "precision": "bf16_autocast"},
    "zentorch, frozen, bfloat16": {**_ZENTORCH, "zentorch_freezing": True, "precision": "bf16_autocast"},
    "openvino, bfloat16": {**_OPENVINO, "openvino_precision": "bf16"},
}
"""Name -> settings; those in float32 are compared with each other, and those in bfloat16."""
BESIDE = 3
"""Settings between two readings of the untuned model."""
ALIKE = 1.05
"""A setting is among the fastest if the best is at most so many times as fast."""
TOLERANCES = {False: 1e-3, True: 2e-2}
"""Relative error of outputs that a trial may have: in float32, in bfloat16."""
SAMPLING = SamplingPlan(max_warmup_s=2.0, max_sampling_s=3.0, min_samples=20, max_samples=500)
LIMITS = Limits(compile=300.0, check=120.0, run=120.0, total=600.0)


@dataclass(frozen=True)
class Case:
    """A model, and how often it is measured."""

    name: str
    model: str
    arguments: Mapping[str, Scalar] = field(default_factory=dict)
    path: Path | None = None
    """A folder of libraries."""
    rounds: int = 3


@dataclass(frozen=True)
class Seen:
    """What a setting did for a model."""

    gains: list[float] = field(default_factory=list)
    """A round each: seconds of the untuned model's call by those of this one's."""
    compile_s: float | None = None
    """Of the first round, where nothing was cached."""
    error: float | None = None
    failure: str | None = None
    """The first line of why there is no gain; or what the compiler has to say of one."""
    note: str | None = None

    @property
    def gain(self) -> float:
        return statistics.geometric_mean(self.gains)


@dataclass(frozen=True)
class Record:
    """A model under all settings."""

    model: str
    untuned_s: float
    seen: dict[str, Seen]


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    names = [case.name for case in _all(1)]
    parser.add_argument("--model", nargs="+", choices=names, default=names, metavar="NAME", help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each setting (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """Bundled models, then those of the zoo that are installed."""
    if given.quick:
        small: dict[str, Scalar] = {"dim": 32, "depth": 1, "heads": 2, "image": 32, "batch": 1}
        return [Case("vit", "vit", small, rounds=1)]
    return [case for case in _all(given.rounds) if case.name in given.model]


def _all(rounds: int) -> Iterator[Case]:
    for name, model in delivered.MODELS.items():
        yield Case(name, model, rounds=rounds)
    for one in zoo_models.MODELS:
        if one.framework == "torch" and one.task == "infer" and one.is_installed:
            yield Case(one.name, one.model, one.arguments, one.path, rounds)


def run(case: Case) -> Record:
    """All settings in all rounds."""
    if not any(map(find_spec, ("openvino", "zentorch"))):
        raise SystemExit("neither openvino nor zentorch is installed here: `pip install '.[torch,backends]'`")
    with tempfile.TemporaryDirectory() as folder:
        places = [str(case.path)] if case.path else []
        path = os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])])
        workload = make_workload(case.model, dict(case.arguments), "torch", "cpu", 0, search_path=REPOSITORY)
        with LocalBench({"PYTHONPATH": path} if path else {}, log=None) as bench:
            return _Trials(workload, bench, Path(folder)).record(case)


class _Trials:
    """Trials of one model, each in a process of its own; caches are kept from round to round."""

    def __init__(self, workload: Workload, bench: LocalBench, folder: Path) -> None:
        self._workload, self._bench, self._folder = workload, bench, folder

    def record(self, case: Case) -> Record:
        """Rounds of all settings that have not failed."""
        found: dict[str, list[tuple[Outcome, float]]] = {name: [] for name in SETTINGS}
        untuned = [self._untuned()]  # Also the reference.
        for _ in range(case.rounds):
            left = [name for name, seen in found.items() if not any(isinstance(each, Failure) for each, _ in seen)]
            for start in range(0, len(left), BESIDE):
                outcomes = [(name, self._run(Config(SETTINGS[name]), name)) for name in left[start : start + BESIDE]]
                untuned.append(self._untuned())
                beside = math.sqrt(untuned[-2] * untuned[-1])
                for name, outcome in outcomes:
                    found[name].append((outcome, beside))
        return Record(case.name, statistics.median(untuned), {name: _seen(rows) for name, rows in found.items()})

    def _untuned(self) -> float:
        outcome = self._run(UNTUNED, "untuned")
        if isinstance(outcome, Failure):
            raise SystemExit(f"{self._workload.model}: {outcome.reason}: {outcome.error}; see {outcome.evidence}")
        return outcome.latency.p50

    def _run(self, config: Config, name: str) -> Outcome:
        trial, cache = (
            TrialFolder((self._folder / "trial").resolve()),
            (self._folder / "caches" / config.fingerprint).resolve(),
        )
        request = TrialRequest(
            number=0,
            workload=self._workload,
            config=config,
            untuned=config == UNTUNED,
            tolerance=TOLERANCES[_is_half(name)],
            reference=str(self._folder / "reference.npz"),
            cache=str(cache),
            cold=not cache.exists(),
            sampling=SAMPLING,
            limits=LIMITS,
        )
        outcome = self._bench.run(trial, request, fresh=True)
        trial.drop_leftovers()
        return outcome


def _seen(rows: Sequence[tuple[Outcome, float]]) -> Seen:
    for outcome, _ in rows:
        if isinstance(outcome, Failure):
            return Seen(failure=f"{outcome.reason}: {outcome.error.partition(chr(10))[0][:200]}")
    measured = [(outcome, beside) for outcome, beside in rows if not isinstance(outcome, Failure)]
    first = measured[0][0]
    return Seen(
        gains=[beside / outcome.latency.p50 for outcome, beside in measured],
        compile_s=first.compile_s,
        error=max(outcome.relative_error or 0.0 for outcome, _ in measured),
        note=first.diagnosis.note,
    )


def _is_half(setting: str) -> bool:
    return "bfloat16" in setting


def judge(records: Sequence[Record]) -> list[Goal]:
    """A tuner that tries them all is beaten by none: no goal beside that each took part, or says why not."""
    told = [seen for record in records for seen in record.seen.values()]
    known = sum(bool(seen.gains) or bool(seen.failure) for seen in told)
    return [Goal("each setting is right and measured, or says why not", f"{known} of {len(told)}", known == len(told))]


def section(records: Sequence[Record]) -> str:
    """A row a setting, a row a model, and the reasons of those that did not take part."""
    about = (
        "A gain is the untuned model's time by the setting's, so 1.50 means 1.5 times as fast. *Fastest* counts "
        "settings within 5 % of the best of the same precision, untuned among them. Compile time is that of a first "
        "call without caches."
    )
    parts = [
        about,
        table(["setting", "right on", "fastest on", "median gain", "least and most", "compile s"], [*_rows(records)]),
    ]
    parts.append(table(["model", "untuned", *SETTINGS], [_cells(record) for record in records]))
    refusals = Counter(
        f"{name}: {seen.failure}" for record in records for name, seen in record.seen.items() if seen.failure
    )
    parts.append("\n".join(f"* {text} ({number} of {len(records)} models)" for text, number in refusals.most_common()))
    return "\n\n".join(filter(None, parts))


def _rows(records: Sequence[Record]) -> Iterator[list[str]]:
    for name in SETTINGS:
        seen = [record.seen[name] for record in records if record.seen[name].gains]
        if not seen:
            yield [name, f"0 of {len(records)}", "-", "-", "-", "-"]
            continue
        gains = [each.gain for each in seen]
        fastest = sum(
            record.seen[name].gain * ALIKE >= _best(record, _is_half(name))
            for record in records
            if record.seen[name].gains
        )
        seconds = statistics.median(each.compile_s or 0.0 for each in seen)
        span = f"{min(gains):.2f} to {max(gains):.2f}"
        yield [
            name,
            f"{len(seen)} of {len(records)}",
            str(fastest),
            f"{statistics.median(gains):.2f}",
            span,
            f"{seconds:.1f}",
        ]


def _best(record: Record, half: bool) -> float:
    return max([1.0, *(seen.gain for name, seen in record.seen.items() if seen.gains and _is_half(name) == half)])


def _cells(record: Record) -> list[str]:
    return [
        record.model,
        f"{1e3 * record.untuned_s:.3g} ms",
        *(f"{record.seen[name].gain:.2f}" if record.seen[name].gains else "-" for name in SETTINGS),
    ]


BENCHMARK = Benchmark(
    "other_backends", "Backends of other packages", __doc__, Record, cases, run, judge, section, options,
    holds=lambda record: bool(record.seen),
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
