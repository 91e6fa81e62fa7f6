"""A notebook, and a search whose figures are given: what the Python API is tested with."""

from __future__ import annotations

import itertools
import linecache
from contextlib import nullcontext
from functools import partial

import pytest

from autotune.api import running, side_by_side, tuning
from autotune.planning import manifest
from autotune.space.declared import Declaration
from tests.conftest import QUICK_BUDGET, ScriptedTrials, with_latency

_NUMBERS = itertools.count()


class Notebook:
    """Cells that are run as IPython runs them: their text is known by a file name that is none, in one `__main__`."""

    def __init__(self):
        self.names = {"__name__": "__main__"}

    def run(self, cell):
        name = f"<test-cell-{next(_NUMBERS)}>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        exec(compile(cell, name, "exec"), self.names)
        return self.names


@pytest.fixture
def notebook():
    return Notebook()


@pytest.fixture
def tune(space_file, model_file, tmp_path, monkeypatch):
    """`autotune.tune` on the fake framework, in the test's folder, of a tiny model unless another is given."""
    monkeypatch.chdir(tmp_path)
    # It starts a process, and nothing is declared here.
    monkeypatch.setattr(manifest, "read_declaration", lambda *_: Declaration())
    settings = {"framework": "fake", "device": "cpu", "space": space_file, "budget": QUICK_BUDGET}

    def run(build=f"{model_file}:tiny", *inputs, **more):
        return tuning.tune(build, *inputs, **{**settings, **more})

    return run


@pytest.fixture
def scripted(monkeypatch, measurement):
    """No process is started: each config is as fast as its `latency_ms` says. Called with a function to decide more."""

    def outcome(name, block, config, override=lambda config: None):
        return override(config) or with_latency(measurement, float(config.get("latency_ms")) / 1e3)

    def script(override=lambda config: None):
        trials = ScriptedTrials(partial(outcome, override=override))
        monkeypatch.setattr(running, "bench_here", lambda *_: nullcontext(trials))

    script()
    return script


@pytest.fixture
def scripted_pairs(monkeypatch, measurement):
    """The same for `verify` and `compare`."""
    trials = ScriptedTrials(
        lambda name, block, config: with_latency(measurement, float(config.get("latency_ms")) / 1e3)
    )
    monkeypatch.setattr(side_by_side, "bench_in", lambda *_: nullcontext(trials))
