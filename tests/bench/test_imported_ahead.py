"""A compiler that a fork server has imported: what that spares is part of compile times, and blocks share no layout."""

from __future__ import annotations

import dataclasses
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from autotune.backends.registry import BACKENDS
from autotune.bench.local import LocalBench, _Process
from autotune.errors import SetupError
from autotune.measure.measurement import Measurement, Reason
from autotune.study.budget import BlockPlan
from autotune.trial.folder import TrialFolder
from autotune.tuning.blocks import BlockedRun, Contestant
from autotune_fake import ENTRY
from tests import FAKE_BACKEND
from tests.conftest import own_children

TUNED = {"execution": "compile", "latency_ms": 2, "compile_ms": 20}
AHEAD = """
import importlib, os
from types import SimpleNamespace

def import_ahead(modules=()):
    for module in modules:
        importlib.import_module(module)
    return SimpleNamespace(
        seconds=3.0, resident_bytes=2**40, model_bytes=2**38 if modules else 0,
        adopt=lambda cache: print(os.getcwd(), cache),
    )
"""
LIBRARY = """
import os
with open({counted!r}, "a") as counted:
    counted.write(f"{{os.getpid()}}\\n")
{then}
"""
FAILS_AHEAD = "import sys\nif 'supervisor' in sys.argv[0]: raise RuntimeError('no such device')"
ENDS_AHEAD = "import os, sys\nif 'supervisor' in sys.argv[0]: os.abort()"
STARTS_A_THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
USES_IT = """
def tiny():
    import library_of_models
    import numpy as np
    return (lambda x: x), np.ones((4, 8))
"""
FAILS = """
def import_ahead(modules):
    raise RuntimeError("no such compiler")
"""
LEAVES_A_THREAD = """
import threading, time

def import_ahead(modules):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


@pytest.fixture
def make_runner(tmp_path, monkeypatch, make_request):
    """A runner of the fake framework whose compiler is imported ahead by this module; it left the reference."""
    made = []

    def make(module, packages="", request=None):
        (tmp_path / "ahead_of_fake.py").write_text(module)
        monkeypatch.setitem(BACKENDS, "fake", dataclasses.replace(ENTRY, imports_ahead="ahead_of_fake"))
        variables = {"PYTHONPATH": f"{packages}:{tmp_path}:{FAKE_BACKEND}"}
        made.append(LocalBench(variables, preload=True, log=tmp_path / "supervisor.log"))
        outcome = made[-1].run(TrialFolder(tmp_path / "untuned"), request or make_request())
        assert isinstance(outcome, Measurement), outcome
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_what_the_import_took_is_part_of_what_is_compiled(make_runner, tmp_path, make_request):
    """Its seconds and its memory; not of the untuned model, nor in a process of its own, which pays for itself, and not
    of the seconds that the trial was at work."""
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
    assert runner.run(TrialFolder(tmp_path / "fresh"), make_request(TUNED), fresh=True).compile_spared_s == 0
    assert untuned.first_call_s < 3.0
    assert max(untuned.peak_memory_bytes, untuned.compile_peak_memory_bytes) < 2**40
    assert folder.stdout.read_text().split() == [str(folder.scratch), request.cache]


@pytest.mark.parametrize(("module", "why"), [(FAILS, "no such compiler"), (LEAVES_A_THREAD, "left 2 threads")])
def test_without_it_trials_import_for_themselves(make_runner, tmp_path, make_request, module, why):
    """They are forks of a process that has imported the framework alone, and the log says why."""
    outcome = make_runner(module).run(TrialFolder(tmp_path / "tuned"), make_request(TUNED))
    assert isinstance(outcome, Measurement), outcome
    assert outcome.compile_spared_s == 0
    log = (tmp_path / "supervisor.log").read_text()
    assert "trials import their compiler each for itself" in log
    assert why in log


@pytest.mark.parametrize(
    ("device", "modules"), [("cpu", ["autotune_fake.preloaded", "ahead_of_fake"]), ("gpu", ["autotune_fake.preloaded"])]
)
def test_on_a_device_the_framework_is_imported_alone(tmp_path, monkeypatch, make_request, device, modules):
    """The compiler's import starts a thread of a GPU's driver, and would be made in vain."""
    monkeypatch.setitem(BACKENDS, "fake", dataclasses.replace(ENTRY, imports_ahead="ahead_of_fake"))
    begun = []

    def begin(modules, *_):
        begun.append(list(modules))
        raise SetupError("the test has seen it")

    monkeypatch.setattr("autotune.bench.local.SupervisorProcess.begin", begin)
    request = make_request()
    request = request.model_copy(update={"workload": request.workload.model_copy(update={"device": device})})
    with LocalBench({}, preload=True, log=tmp_path / "log") as bench:
        assert bench.run(TrialFolder(tmp_path / "trial"), request).error == "the test has seen it"
    assert begun == [modules]


@pytest.fixture
def library(tmp_path, monkeypatch, model_file):
    """Install a package that the model imports; returns in how many processes it was imported."""
    site, counted = tmp_path / "site-packages", tmp_path / "counted"
    monkeypatch.setenv("TEST_PACKAGES", f"{site}:{tmp_path}:{FAKE_BACKEND}")
    monkeypatch.syspath_prepend(str(site))
    model_file.write_text(USES_IT)

    def install(then=""):
        site.mkdir()
        (site / "library_of_models.py").write_text(LIBRARY.format(counted=str(counted), then=then))
        return lambda: len(set(counted.read_text().split()))

    return install


@pytest.fixture
def of_library(make_request):
    """A request for the model, with what its function was seen to import."""

    def make(*arguments, **overrides):
        request = make_request(*arguments, **overrides)
        imported = {"imported": ("library_of_models",)}
        return request.model_copy(update={"workload": request.workload.model_copy(update=imported)})

    return make


def test_a_study_imports_what_the_model_imports_three_times(
    tmp_path, monkeypatch, library, cli, space_file, budget_file
):
    """In the process that is asked what the model declares, and in the two that all others are forked from."""
    num_imports = library()
    (tmp_path / "ahead_of_fake.py").write_text(AHEAD)
    entry = dataclasses.replace(ENTRY, imports_ahead="ahead_of_fake", holds_fresh=True)
    monkeypatch.setitem(BACKENDS, "fake", entry)
    done = cli(
        "tune", "--model", "tiny_model.py:tiny", "--framework", "fake", "--space", str(space_file),
        "--budget", str(budget_file), "--trials", "6", "--study", "s",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "studies" / "s" / "trials").iterdir())) == 6
    assert len(list((tmp_path / "studies" / "s").rglob("block-*"))) > 1
    assert num_imports() == 3
    assert "trials import" not in done.stdout


def test_a_study_says_what_it_could_not_import_ahead(tmp_path, monkeypatch, library, cli, space_file, budget_file):
    """With the reason, under its verdict."""
    library(FAILS_AHEAD)
    (tmp_path / "ahead_of_fake.py").write_text(AHEAD)
    monkeypatch.setitem(BACKENDS, "fake", dataclasses.replace(ENTRY, imports_ahead="ahead_of_fake"))
    cli(
        "tune", "--model", "tiny_model.py:tiny", "--framework", "fake", "--space", str(space_file),
        "--budget", str(budget_file), "--trials", "1", "--study", "s",
    )  # fmt: skip
    said = "trials import what the model imports each for itself: RuntimeError: no such device"
    assert said in cli("show", "s", "--why").stdout


def test_what_the_model_imports_is_memory_of_each_trial(make_runner, library, of_library, tmp_path):
    """As if it had been imported while the model was built."""
    library()
    runner = make_runner(AHEAD, f"{tmp_path / 'site-packages'}", of_library())
    untuned = runner.run(TrialFolder(tmp_path / "again"), of_library())
    assert untuned.compile_spared_s == 0
    assert 2**38 <= untuned.peak_memory_bytes < 2**40
    tuned = runner.run(TrialFolder(tmp_path / "tuned"), of_library(TUNED))
    assert tuned.peak_memory_bytes >= 2**40 + 2**38
    assert runner.lacks is None


@pytest.mark.parametrize(
    ("then", "why"),
    [(FAILS_AHEAD, "no such device"), (STARTS_A_THREAD, "left 2 threads"), (ENDS_AHEAD, "ended the process (SIGABRT)")],
    ids=["fails", "threads", "ends"],
)
def test_what_cannot_be_imported_ahead_is_imported_by_each_trial(make_runner, library, of_library, tmp_path, then, why):
    """The compiler still is imported ahead, and it is said why the rest is not."""
    num_imports = library(then)
    runner = make_runner(AHEAD, f"{tmp_path / 'site-packages'}", of_library())
    outcome = runner.run(TrialFolder(tmp_path / "tuned"), of_library(TUNED))
    assert isinstance(outcome, Measurement), outcome
    assert outcome.compile_spared_s == 3.0
    assert runner.lacks.startswith("what the model imports each for itself: ")
    assert why in runner.lacks
    assert num_imports() == 3


def test_a_model_that_cannot_be_built_ahead_is_built_by_each_trial(make_runner, make_request, tmp_path):
    """And it is said why."""
    request = make_request()
    large = request.model_copy(update={"workload": request.workload.model_copy(update={"built_once": True})})
    runner = make_runner(AHEAD, request=large)
    assert isinstance(runner.run(TrialFolder(tmp_path / "again"), large), Measurement)
    assert runner.built_apart == "a model of fake is not forked"


def layouts(folder):
    """Where the stacks are of the processes that work in the folder: forks of one process have one place."""
    found = set()
    for process in own_children():
        with suppress(psutil.Error, OSError):
            if process.cwd().startswith(str(folder)):
                maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
                found |= {line.split("-")[0] for line in maps if line.endswith("[stack]")}
    return found


def blocked_run(runner, tmp_path, make_request, settings, on_block=lambda _: None):
    untuned = Contestant("untuned", make_request(cache=str(tmp_path / "caches" / "untuned")))
    other = Contestant("other", make_request(settings, cache=str(tmp_path / "caches" / "other")))
    plan = BlockPlan(first_look=4, num_looks=1, num_rounds=2)
    return BlockedRun(
        runner, tmp_path / "blocks", [untuned, other], plan, lambda each: each.latency.p50, seed=0,
        on_stage=lambda _: None, on_block=on_block, num_at_once=2,
    )  # fmt: skip


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """Layouts of a block's processes at each of their turns, by the block's folder."""
    seen = {}
    turn = _Process.turn

    def look(self):
        block = self.folder.path.parent
        seen.setdefault(block.name, set()).update(layouts(block))
        return turn(self)

    monkeypatch.setattr(_Process, "turn", look)
    return seen


@pytest.mark.skipif(sys.platform != "linux", reason="layouts are read from /proc")
def test_two_processes_are_forked_in_turns(make_runner, tmp_path, make_request, seen):
    """A block's contestants come from one of them, the next block's from the other one."""
    blocked_run(make_runner(AHEAD), tmp_path, make_request, TUNED).run(lambda _: False)
    of_blocks = [seen[name] for name in sorted(seen)]
    assert [len(each) for each in of_blocks] == [1] * 4
    assert of_blocks[0] == of_blocks[2] != of_blocks[1] == of_blocks[3]


def test_a_block_begins_while_trials_compile(make_runner, tmp_path, make_request):
    """The server of a block is paused as they are while something is timed."""
    runner = make_runner(AHEAD)
    slow = make_request({**TUNED, "compile_ms": 2500}, cache=str(tmp_path / "caches" / "slow"))
    started = runner.start(TrialFolder(tmp_path / "slow"), slow, "gated")
    runner.new_block()
    live = [
        runner.start(TrialFolder(tmp_path / name), make_request(TUNED, cache=str(tmp_path / "caches" / name)), "live")
        for name in "ab"
    ]
    for each in live:
        each.warm()
    assert len(layouts(tmp_path / "a") | layouts(tmp_path / "b")) == 1
    assert layouts(tmp_path / "slow") != layouts(tmp_path / "a")
    with runner.quiet():
        assert all(each.turn() is not None for each in live)
    outcomes = [each.finish() for each in (*live, started)]
    assert all(isinstance(outcome, Measurement) for outcome in outcomes), outcomes
    assert all(outcome.compile_spared_s == 3.0 for outcome in outcomes)


def test_what_ends_early_is_told(make_runner, tmp_path, make_request):
    """A fork of a server is the supervisor's child like any other: its crash, and its end by a limit."""
    runner = make_runner(AHEAD)
    runner.new_block()
    crash = runner.hold(TrialFolder(tmp_path / "crash"), make_request({**TUNED, "behaviour": "crash"}))
    assert crash.outcome.reason is Reason.CRASH
    limits = {"start": 20, "build": 20, "compile": 0.5, "check": 20, "run": 20, "total": 60}
    hung = runner.hold(TrialFolder(tmp_path / "hung"), make_request({**TUNED, "behaviour": "hang"}, limits=limits))
    assert hung.outcome.reason is Reason.TIMEOUT
    live = runner.hold(TrialFolder(tmp_path / "live"), make_request(TUNED))
    children = own_children()
    runner.close()
    assert live.outcome.reason is Reason.SETUP
    assert not psutil.wait_procs(children, timeout=20)[1]


def test_a_server_that_does_not_come_is_done_without(make_runner, tmp_path, make_request, monkeypatch):
    """The blocks are forks of the supervisor."""
    runner = make_runner(AHEAD)
    monkeypatch.setattr("autotune.bench.local.IMPORT_LIMIT_S", 0.5)
    (tmp_path / "ahead_of_fake.py").write_text("import time; time.sleep(600)")
    run = blocked_run(runner, tmp_path, make_request, TUNED)
    comparison = run.run(lambda _: False)
    assert comparison is not None
    assert len(run.blocks) == 4
    assert all(block["other"].compile_spared_s == 3.0 for block in run.blocks)


def test_a_server_that_is_lost_is_done_without(make_runner, tmp_path, make_request):
    """The process that asks it is refused, or has another parent; those that it has started go on."""
    runner = make_runner(AHEAD)
    runner.new_block()
    live = runner.hold(TrialFolder(tmp_path / "live"), make_request(TUNED))
    forked_or_not = [each for each in own_children() if any("fork_server.py" in part for part in each.cmdline())]
    servers = [each for each in forked_or_not if not each.cwd().startswith(str(tmp_path))]
    for each in servers:
        each.kill()
    psutil.wait_procs(servers, timeout=20)
    assert live.turn() is not None
    assert isinstance(live.finish(), Measurement)
    again = runner.hold(TrialFolder(tmp_path / "again"), make_request(TUNED))
    again.turn()
    assert isinstance(again.finish(), Measurement)


def test_where_nothing_compiles_no_further_process_starts(make_runner, tmp_path, make_request):
    runner = make_runner(AHEAD)
    before = len(own_children())
    seen = []
    run = blocked_run(runner, tmp_path, make_request, None, lambda _: seen.append(len(own_children())))
    run.run(lambda _: False)
    assert seen == [before] * 4
