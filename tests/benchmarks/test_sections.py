"""Every benchmark makes its section from records alone, kept or made-up ones."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from benchmarks import __main__ as all_of_them
from benchmarks import classes, frame, jobs, regions
from benchmarks.loop_model import LoopTrial
from benchmarks.program_classes import Repeats
from benchmarks.race import LoopRun, ToolRun
from benchmarks.record import DOCS, REPOSITORY, RESULTS, Conditions, Kept, read

SECTIONS = dict(re.findall(r"<!-- (\w+): begin -->\n(.*?)<!-- \1: end -->\n", DOCS.read_text(), flags=re.DOTALL))
KEPT = ("aa", "adaptive", "batches", "delivered", "jobs", "large_study", "loader", "overhead", "planted",
        "record_table", "replay", "shapes_bert_small", "shapes_box_decoding", "small_spaces",
        "time_left", "training", "under_load", "warm_start", "workers")  # fmt: skip
MADE_UP = ("classes", "jobs", "regions", "wall_time")


def benchmarks_of(script: str) -> list[frame.Benchmark]:
    """Of a script's name, or of a section's."""
    if script == "loader":
        pytest.importorskip("torch")
    module = importlib.import_module(
        f"benchmarks.{script.partition('_b')[0]}" if "shapes" in script else f"benchmarks.{script}"
    )
    return getattr(module, "BENCHMARKS", None) or [module.BENCHMARK]


@pytest.mark.parametrize("name", KEPT)
def test_kept_records_make_the_section_that_is_published(name):
    """The text in docs/benchmarks.md is what the code makes of the records today."""
    benchmark = next(each for each in benchmarks_of(name) if each.name == name)
    _, text = benchmark.report(read(RESULTS / f"{name}.json"))
    assert text == SECTIONS[name]


def made_up(name: str) -> list[object]:
    """Small records of a benchmark, not measured."""
    times = regions.Times([1.0], [0.1], 1, 0.0)
    seconds: dict[jobs.Way, float] = {"alone": 1.0, "again": 1.02, "beside": 1.01, "found": 1.03}
    compiled_s: dict[jobs.Way, float] = {"alone": 9.0, "again": 9.0, "beside": 12.0, "found": 12.0}
    records: dict[str, list[object]] = {
        "classes": [classes.Findings("t", 3, 2, 0.01, Repeats("any", (1.0, 1.1)), (), ())],
        "jobs": [jobs.Times("vit", "default", number, seconds, compiled_s, seconds) for number in (0, 1)],
        "regions": [regions.Seen("vit", True, times, times, times)],
        "wall_time": [
            LoopRun("loop", [LoopTrial({"execution": "eager"}, 1.0, 5.0)], 60.0),
            ToolRun("tool", 0, None, 10.0, "faster", {"execution": "eager"}, 2, 9.0, 5.0, 1.0, 2),
        ],
    }
    return records[name]


@pytest.mark.parametrize("name", MADE_UP)
def test_made_up_records_make_a_section(name):
    """Also after they were JSON, as they are kept."""
    (benchmark,) = benchmarks_of(name)
    records = TypeAdapter(list[benchmark.record]).dump_python(made_up(name), mode="json")
    kept = Kept(
        benchmark=name, command=f"{name}.py", minutes=1.0, conditions=Conditions.now(),
        records=json.loads(json.dumps({str(number): each for number, each in enumerate(records)})),
    )  # fmt: skip
    goals, text = benchmark.report(kept)
    assert goals
    assert text.startswith(f"## {benchmark.title}\n\n")
    assert "| --- |" in text
    assert f"`python benchmarks/{name}.py`, 1 minutes" in text


def test_every_benchmark_is_run_by_make_bench_and_tested_here():
    """A script with a benchmark is in the list of `python -m benchmarks all`, and its section is made above."""
    folder = REPOSITORY / "benchmarks"
    scripts = {file.stem for file in folder.glob("*.py") if "BENCHMARK" in file.read_text() and file.stem != "frame"}
    steps = {name for name, *_ in all_of_them.STEPS}
    # Three replay tables and measure nothing of this machine; the others are for machines with a device or with Ray.
    assert scripts - steps == {"replay", "small_spaces", "batches", "device", "workers"}
    assert all((folder / f"{name}.py").exists() for name in steps)
    tested = {"shapes" if name.startswith("shapes") else name for name in (*KEPT, *MADE_UP)}
    assert scripts == tested | {"device"}  # See test_device.py.


@pytest.mark.parametrize("name", sorted({name for name, *_ in all_of_them.STEPS} | {"replay"}))
def test_every_benchmark_knows_the_common_flags(name):
    """And lists its cases for a smoke run without running any; each has a name of its own."""
    for benchmark in benchmarks_of(name):
        cases = list(benchmark.cases(benchmark.parser().parse_args(["--quick"])))
        assert cases
        assert len({case.name for case in cases}) == len(cases)


def test_steps_take_their_own_flags():
    """What `python -m benchmarks all` passes to a script, the script knows."""
    for name, *arguments in all_of_them.STEPS:
        benchmarks_of(name)[0].parser().parse_args(arguments)


def test_help_and_old_flags_in_the_docs_are_known():
    """Each command that a section tells to run again can be run."""
    for name in KEPT:
        command = json.loads((RESULTS / f"{name}.json").read_text())["command"]
        script, *arguments = shlex.split(command)
        benchmarks_of(Path(script).stem)[0].parser().parse_args(arguments)
