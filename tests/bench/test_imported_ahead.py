"""A compiler that a fork server has imported: what that spares is part of compile times, and blocks share no layout."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

import psutil
import pytest

from autotune.backends.registry import BACKENDS
from autotune.bench.local import LocalBench, _Supervised
from autotune.measure.measurement import Measurement
from autotune.study.budget import BlockPlan
from autotune.trial.folder import TrialFolder
from autotune.tuning.blocks import BlockedRun, Contestant
from autotune_fake import ENTRY
from tests import FAKE_BACKEND
from tests.conftest import own_children

TUNED = {"execution": "compile", "latency_ms": 2, "compile_ms": 20}
AHEAD = """
import os
from types import SimpleNamespace

def import_ahead():
    return SimpleNamespace(seconds=3.0, resident_bytes=2**40, adopt=lambda cache: print(os.getcwd(), cache))
"""
FAILS = """
def import_ahead():
    raise RuntimeError("no such compiler")
"""
LEAVES_A_THREAD = """
import threading, time

def import_ahead():
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


@pytest.fixture
def make_runner(tmp_path, monkeypatch, make_request):
    """A runner of the fake framework whose compiler is imported ahead by this module; it left the reference."""
    made = []

    def make(module):
        (tmp_path / "ahead_of_fake.py").write_text(module)
        monkeypatch.setitem(BACKENDS, "fake", dataclasses.replace(ENTRY, imports_ahead="ahead_of_fake"))
        variables = {"PYTHONPATH": f"{tmp_path}:{FAKE_BACKEND}"}
        made.append(LocalBench(variables, preload=True, log=tmp_path / "supervisor.log"))
        outcome = made[-1].run(TrialFolder(tmp_path / "untuned"), make_request())
        assert isinstance(outcome, Measurement), outcome
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_what_the_import_took_is_part_of_what_is_compiled(make_runner, tmp_path, make_request):
    """Its seconds and its memory; not of the untuned model, and not of the seconds that the trial was at work."""
    runner = make_runner(AHEAD)
    folder, request = TrialFolder(tmp_path / "tuned"), make_request(TUNED)
    outcome = runner.run(folder, request)
    assert outcome.compile_spared_s == 3.0
    assert 3.0 < outcome.compile_s < 4.0
    assert 3.0 < outcome.first_call_s < 4.0
    assert outcome.stage_s["compile"] < 3.0
    assert min(outcome.peak_memory_bytes, outcome.compile_peak_memory_bytes) >= 2**40
    assert outcome.compile_stage_s == pytest.approx(outcome.stage_s["compile"] + 3.0)
    untuned = runner.run(TrialFolder(tmp_path / "again"), make_request())
    assert untuned.compile_spared_s == 0
    assert untuned.first_call_s < 3.0
    assert max(untuned.peak_memory_bytes, untuned.compile_peak_memory_bytes) < 2**40
    assert folder.stdout.read_text().split() == [str(folder.scratch), request.cache]


def test_a_process_of_its_own_pays_for_itself(make_runner, tmp_path, make_request):
    outcome = make_runner(AHEAD).run(TrialFolder(tmp_path / "tuned"), make_request(TUNED), fresh=True)
    assert outcome.compile_spared_s == 0


@pytest.mark.parametrize(("module", "why"), [(FAILS, "no such compiler"), (LEAVES_A_THREAD, "left 2 threads")])
def test_without_it_trials_import_for_themselves(make_runner, tmp_path, make_request, module, why):
    """They are forks of a process that has imported the framework alone, and the log says why."""
    outcome = make_runner(module).run(TrialFolder(tmp_path / "tuned"), make_request(TUNED))
    assert isinstance(outcome, Measurement), outcome
    assert outcome.compile_spared_s == 0
    log = (tmp_path / "supervisor.log").read_text()
    assert "trials import their compiler each for itself" in log
    assert why in log


def parents(folder):
    """Numbers of the processes that started those that work in the folder."""
    found = set()
    for process in own_children():
        with suppress(psutil.Error):
            if process.cwd().startswith(str(folder)):
                found.add(process.ppid())
    return found


def blocked_run(runner, tmp_path, make_request, settings, on_block=lambda _: None):
    untuned = Contestant("untuned", make_request(cache=str(tmp_path / "caches" / "untuned")))
    other = Contestant("other", make_request(settings, cache=str(tmp_path / "caches" / "other")))
    plan = BlockPlan(first_look=4, num_looks=1, num_rounds=2)
    return BlockedRun(
        runner, tmp_path / "blocks", [untuned, other], plan, lambda each: each.latency.p50, seed=0,
        on_stage=lambda _: None, on_block=on_block, num_at_once=2,
    )  # fmt: skip


def test_each_block_has_a_process_of_its_own_to_fork(make_runner, tmp_path, make_request, monkeypatch):
    """Its contestants come from one, and no two blocks from the same."""
    runner = make_runner(AHEAD)
    seen = []
    settle = _Supervised.settle

    def look(self):
        settle(self)
        seen.append(parents(tmp_path / "blocks"))

    monkeypatch.setattr(_Supervised, "settle", look)
    blocked_run(runner, tmp_path, make_request, TUNED).run(lambda _: False)
    per_block = {frozenset(each) for each in seen if each}
    assert len(per_block) == 4
    assert all(len(each) == 1 for each in per_block)
    assert len(frozenset().union(*per_block)) == 4


def test_a_following_process_that_does_not_come_is_done_without(make_runner, tmp_path, make_request, monkeypatch):
    """The blocks are forks of the one that is there."""
    runner = make_runner(AHEAD)
    monkeypatch.setattr("autotune.bench.supervisor_process._IMPORT_LIMIT_S", 0.5)
    (tmp_path / "ahead_of_fake.py").write_text("import time; time.sleep(600)")
    run = blocked_run(runner, tmp_path, make_request, TUNED)
    comparison = run.run(lambda _: False)
    assert comparison is not None
    assert len(run.blocks) == 4
    assert all(block["other"].compile_spared_s == 3.0 for block in run.blocks)


def test_where_nothing_compiles_no_further_process_starts(make_runner, tmp_path, make_request):
    runner = make_runner(AHEAD)
    before = len(own_children())
    seen = []
    run = blocked_run(runner, tmp_path, make_request, None, lambda _: seen.append(len(own_children())))
    run.run(lambda _: False)
    assert seen == [before] * 4
