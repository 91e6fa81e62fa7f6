"""Every evidence script makes its section from kept records alone."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from pathlib import Path

import pytest

from benchmarks import __main__ as all_of_them
from benchmarks.evidence import DOCS, REPOSITORY, RESULTS, Benchmark, read

SECTIONS = dict(re.findall(r"<!-- (\w+): begin -->\n(.*?)<!-- \1: end -->\n", DOCS.read_text(), flags=re.DOTALL))
KEPT = ("aa", "delivered", "loader", "overhead", "planted", "replay", "warm_start",
        "zoo")  # fmt: skip
"""Sections that are made anew here; those of `wall_time.py` take a minute of simulated loops each, and that of
`device.py` has tests of its own."""


def benchmarks_of(script: str) -> list[Benchmark]:
    """The benchmarks of a script's name."""
    if script == "loader":
        pytest.importorskip("torch")
    module = importlib.import_module(f"benchmarks.{script}")
    return getattr(module, "BENCHMARKS", None) or [module.BENCHMARK]


def script_of(section: str) -> str:
    return re.sub(r"^(wall_time|device)_.*", r"\1", section)


@pytest.mark.parametrize("name", KEPT)
def test_kept_records_make_the_section_that_is_published(name):
    """The text in docs/benchmarks.md is what the code makes of the records today."""
    benchmark = next(found for found in benchmarks_of(script_of(name)) if found.name == name)
    _, text = benchmark.report(read(RESULTS / f"{name}.json"))
    assert text == SECTIONS[name]


def test_every_script_has_sections_and_a_row_in_the_list():
    """No section without a script, no records without a section; `python -m benchmarks all` runs all but a device's."""
    folder = REPOSITORY / "benchmarks"
    scripts = {file.stem for file in folder.glob("*.py") if re.search("^BENCHMARKS? = ", file.read_text(), re.M)}
    assert {script_of(name) for name in SECTIONS} == scripts
    assert {file.stem for file in RESULTS.glob("*.json")} == SECTIONS.keys()
    assert {name for name, *_ in all_of_them.STEPS} == scripts - {"device"}
    listed = (folder / "README.md").read_text()
    assert not {name for name in scripts if f"| `{name}.py`" not in listed}


@pytest.mark.parametrize("name", sorted({name for name, *_ in all_of_them.STEPS}))
def test_a_script_knows_its_flags(name):
    """Those of a smoke run, of `python -m benchmarks all`, and of the command that its section tells to run again."""
    for benchmark in benchmarks_of(name):
        cases = list(benchmark.cases(benchmark.parser().parse_args(["--quick"])))
        assert len({case.name for case in cases}) == len(cases) > 0
    commands = [arguments for script, *arguments in all_of_them.STEPS if script == name]
    for section in SECTIONS:
        script, *arguments = shlex.split(json.loads((RESULTS / f"{section}.json").read_text())["command"])
        commands += [arguments] if Path(script).stem == name else []
    for arguments in commands:
        benchmarks_of(name)[0].parser().parse_args(arguments)


def test_a_job_that_is_tried_is_compared_with_both_of_its_sides():
    """Its calls are untuned and applied by turns; the other ways are compared with the bare call of their round."""
    pytest.importorskip("torch")
    from benchmarks.loader import JOB_WAYS, Jobs

    took_us = dict(zip(JOB_WAYS, (10, 20, 23, 24, 19), strict=True))
    found = Jobs({way: [(1.0, took * 1e-6), (1.0, (took + 100) * 1e-6)] for way, took in took_us.items()})
    assert [row[-1].partition(" (")[0] for row in found.rows()] == ["", "", "+3.00 µs", "+4.00 µs", "+2.00 µs"]
