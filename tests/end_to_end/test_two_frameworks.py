"""Two frameworks by the two that are fake: real processes, the real command line, two studies and one comparison."""

from __future__ import annotations

import json
import subprocess
import sys

import psutil
import pytest

from autotune.bench.local import LocalBench
from autotune.trial.folder import TrialFolder
from autotune.workload.workload import Workload
from tests.conftest import REPOSITORY, own_children

pytestmark = pytest.mark.usefixtures("sham_backend")

SPACE = """
schema: 1
framework: {framework}
knobs:
  execution: {{doc: "https://example.org/x", values: [eager, compile], untuned: eager, default: compile}}
  latency_ms: {{doc: "https://example.org/x", values: [{untuned}, {default}], untuned: {untuned}, default: {default}}}
"""
LATENCY_MS = {"fake": (60, 56), "sham": (40, 15)}
"""Framework -> what a call takes untuned, and compiled by default: long, so that a busy machine changes no order."""
MODEL = """
import os
import numpy as np
assert os.environ.get("SHAM") == {variable!r}, "the framework's own process variables stand"


def tiny(rows=4, seed=0):
    weight = np.random.default_rng(seed).normal(size=(8, 8))
    return (lambda x: x @ weight + {error}), np.random.default_rng(1).normal(size=(rows, 8))
"""


@pytest.fixture
def frameworks(tmp_path):
    """Writes model and space of both frameworks; `error` is what the second one's model adds to the right output."""

    def write(error=0.0):
        for name, variable, wrong in (("fake", None, 0.0), ("sham", "1", error)):
            (tmp_path / f"{name}_model.py").write_text(MODEL.format(variable=variable, error=wrong))
            untuned, default = LATENCY_MS[name]
            (tmp_path / f"{name}.yaml").write_text(SPACE.format(framework=name, untuned=untuned, default=default))

    write()
    return write


@pytest.mark.slow
def test_two_exports_are_compared(cli, frameworks, budget_file):
    """Each framework has a study and a file of its own; `compare` says which answer is faster, and blames a model that
    computes something else."""
    for name in LATENCY_MS:
        asked = ("--framework", name, "--device", "cpu", "--space", f"{name}.yaml", "--trials", "3")
        tuned = cli("tune", f"{name}_model.py:tiny", *asked, "--study", name, "--budget", str(budget_file))
        assert tuned.returncode == 0, tuned.stderr
        assert cli("export", name, "-o", f"{name}_best.yaml").returncode == 0
    compared = ("compare", "fake_best.yaml", "sham_best.yaml", "--budget", str(budget_file), "--json")
    assert json.loads(cli(*compared).stdout)["verdict"] == "faster"
    frameworks(error=1.0)
    found = json.loads(cli(*compared).stdout)
    assert (found["verdict"], found["failed"]) == (None, "second")


@pytest.fixture
def target(frameworks, tmp_path):
    """What is tuned in a framework, as `tune` would find it."""

    def make(name):
        reference = f"{tmp_path / f'{name}_model.py'}:tiny"
        return Workload(model=reference, reference=reference, framework=name, device="cpu", search_path=str(tmp_path))

    return make


class TestRunners:
    """Two supervisors, one for each framework."""

    def test_each_is_started_when_it_is_needed_and_all_are_closed(self, tmp_path, make_request, target):
        """One framework's trial starts one supervisor; leaving the context leaves no process of either."""
        fake = make_request({"execution": "eager"}, workload=target("fake"), untuned=True)
        sham = make_request({"execution": "eager"}, workload=target("sham"))
        with LocalBench({}, preload=True, log=tmp_path / "log") as runners:
            first = runners.hold(TrialFolder(tmp_path / "fake"), fake)
            assert len(supervisors()) == 1
            second = runners.hold(TrialFolder(tmp_path / "sham"), sham)
            assert len(supervisors()) == 2
            assert (first.outcome, second.outcome) == (None, None)
            for live in (first, second, first):
                live.turn()
            assert [len(each.finish().samples.turns) for each in (first, second)] == [2, 1]
            runners.hold(TrialFolder(tmp_path / "left"), fake)
        assert not own_children()

    @pytest.mark.slow
    def test_nothing_outlives_a_killed_parent(self, tmp_path, make_request, target):
        """Killed with -9 while processes of both frameworks are held, stopped between their turns: all are gone."""
        for name in LATENCY_MS:
            request = make_request({"execution": "eager"}, workload=target(name), untuned=name == "fake")
            (tmp_path / f"{name}.json").write_text(request.model_dump_json(by_alias=True))
        parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT, str(tmp_path)], cwd=REPOSITORY, stdout=subprocess.PIPE
        )
        assert parent.stdout.readline() == b"held\n"
        family = psutil.Process(parent.pid).children(recursive=True)
        assert len(family) >= 4
        parent.kill()
        parent.wait()
        assert not psutil.wait_procs(family, timeout=20)[1]


def supervisors():
    return [each for each in own_children(recursive=False) if any("supervisor.py" in part for part in each.cmdline())]


_PARENT = """
import sys, time
from pathlib import Path
from autotune.planning.manifest import require_same_question
from autotune.bench.local import LocalBench
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
home = Path(sys.argv[1])
with LocalBench({}, preload=True, log=home / "log") as runners:
    for name in ("fake", "sham"):
        request = TrialRequest.model_validate_json((home / f"{name}.json").read_text())
        assert runners.hold(TrialFolder(home / name), request).outcome is None
    print("held", flush=True)
    time.sleep(600)
"""
