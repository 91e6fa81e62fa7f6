"""Memory of real processes: what a compile takes with the processes that it starts, and what steady calls keep."""

from __future__ import annotations

import json

import pytest

from autotune.bench.local import LocalBench
from autotune.measure.constraint import Constraint
from autotune.measure.sampling import SamplingPlan
from autotune.trial.folder import TrialFolder
from autotune.trial.worker.memory import FEWEST_CALLS, MOST_CALLS, WINDOWS, growth_of

MIB = 2**20
MODEL = """
import subprocess, sys
import numpy as np

KEPT = []

def stage():
    with open("../stage") as file:
        return file.read().strip()

def tiny(rows=4, seed=0):
    def model(x):
        {act}
        return x + 0
    return model, np.ones((2, 2))
"""
CALLS = {
    "none": ("pass", (0, 0.2)),
    "a leak": ("KEPT.append(bytearray(b'x' * 2048))", (1.8, 3)),
    "one that is rare": ("len(KEPT) % 20 == 0 and KEPT.append(bytearray(b'x' * 40960)) or KEPT.append(0)", (1.4, 3)),
    "a cache that fills": ("len(KEPT) < 420 and KEPT.append(bytearray(b'x' * 2048))", (0, 0.2)),
    "garbage in circles": ("one = [bytearray(b'x' * 2048)]; one.append(one)", (0, 0.2)),
}
"""What each call does, and MiB for 1,000 calls: at least, at most."""


@pytest.fixture
def measured(tmp_path, make_request, model_file):
    """The untuned model's trial, whose calls do what is said."""

    def run(act: str, **overrides):
        model_file.write_text(MODEL.format(act=act))
        with LocalBench({}, preload=True, log=tmp_path / "log") as bench:
            return bench.run(TrialFolder(tmp_path / "trial"), make_request(**overrides))

    return run


class TestGrowth:
    """What calls keep, a thousand of them."""

    @pytest.mark.parametrize(("act", "wanted"), CALLS.values(), ids=CALLS)
    def test_a_leak_is_found_and_warming_up_is_none(self, measured, act, wanted):
        least, most = wanted
        growth = measured(act, measures_growth=True).growth
        assert least * MIB <= growth.at_most_bytes <= most * MIB
        assert growth.num_calls >= WINDOWS * FEWEST_CALLS
        assert growth.resolution_bytes >= 1000 * 4096 / MOST_CALLS

    def test_a_constraint_holds_it_down(self, tune_fake, cli, model_file):
        """A model that leaks keeps no such promise, under whatever config."""
        model_file.write_text(MODEL.format(act=CALLS["a leak"][0]))
        ended = tune_fake("--constraint", "memory_growth <= 1MiB", "--trials", "2")
        assert "memory_growth" in ended.stdout
        document = json.loads(cli("show", "s", "--json").stdout)
        assert document["verdict"] == "infeasible"
        assert {trial["state"] for trial in document["trials"]} <= {"infeasible", "failed"}

    def test_it_is_measured_where_it_is_asked_for(self, measured):
        outcome = measured("pass")
        assert outcome.growth is None
        assert Constraint.parse("memory_growth <= 1MiB").miss(outcome).value is None

    def test_calls_that_take_too_long(self):
        """Too few of them would tell nothing."""
        assert growth_of([pytest.fail], pass_s=60, longest_s=90, backend=None) is None


HOLDS = "x = b'x' * (96 * 2**20); import time; time.sleep(1.5)"


def test_processes_of_the_compiler_count(measured):
    """What they hold is no memory of the trial's own process, but the machine must have it."""
    compiler = f'stage() == "compile" and subprocess.run(["sh", "-c", \'"$0" -c "$1"; :\', sys.executable, "{HOLDS}"])'
    outcome = measured(compiler, sampling=SamplingPlan(min_samples=2, max_samples=4, max_sampling_s=0.1))
    assert outcome.compile_host_bytes > 90 * MIB
    assert outcome.compile_peak_memory_bytes < 90 * MIB
    assert Constraint.parse("compile_memory <= 64MiB").miss(outcome).amount > 26 * MIB
    assert Constraint.parse("compile_memory <= 4GiB").miss(outcome) is None
