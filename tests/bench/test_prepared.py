"""Trials that are prepared: they compile beside each other, and never beside one that is being timed."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from autotune.bench.bench import Bench
from autotune.bench.local import LocalBench
from autotune.measure.measurement import Failure, Measurement, Reason, Stage
from autotune.study.budget import BlockPlan
from autotune.trial.folder import TrialFolder
from autotune.tuning.blocks import BlockedRun, Contestant
from tests.conftest import own_children

SLOW_COMPILE = {"execution": "compile", "latency_ms": 2, "compile_ms": 600}
TIMES_CANDIDATES = {"execution": "compile", "latency_ms": 2, "candidates_ms": 900}


@pytest.fixture
def runner(tmp_path, real_clock, make_request):
    """One whose trials really take their time, after the reference was left."""
    with LocalBench({}, preload=True, log=tmp_path / "supervisor.log") as runner:
        assert isinstance(runner.run(TrialFolder(tmp_path / "untuned"), make_request()), Measurement)
        yield runner


@pytest.fixture
def trial(tmp_path, make_request):
    """Folder and request of a trial by its name."""

    def make(name, settings, **more):
        return TrialFolder(tmp_path / name), make_request(settings, cache=str(tmp_path / "caches" / name), **more)

    return make


def states_of(folder: TrialFolder) -> list[str]:
    """Status of every process that works in the trial's folder."""
    found = []
    for process in own_children():
        with suppress(psutil.Error):
            if process.cwd().startswith(str(folder.path)):
                found.append(process.status())
    return found


def test_it_compiles_ahead_and_is_timed_by_its_run(runner, trial):
    """The stages until the samples pass before `run`; the outcome is that of any trial."""
    ahead = trial("ahead", SLOW_COMPILE)
    ahead_started = runner.start(*ahead, "gated")
    while ahead[0].read_stage() is not Stage.WAIT:
        time.sleep(0.01)
    assert not ahead[0].outcome_file.exists()
    stages: list[Stage] = []
    outcome = ahead_started.finish(stages.append)
    assert isinstance(outcome, Measurement), outcome
    assert outcome.compile_s > 0.5
    assert stages[-1] is Stage.RUN


def test_one_that_waits_for_its_turn_ends_with_the_run(runner, trial):
    """Nobody has to ask for it; one that is asked to start late has less time for that."""
    folder, request = trial("late", {"execution": "compile", "latency_ms": 2})
    waiting = runner.start(folder, request.limited_to(request.limits.model_copy(update={"wall": 2.0})), "gated")
    waiting.warm()
    assert waiting.stage is Stage.WAIT
    assert waiting.wait().reason is Reason.TIMEOUT


def test_it_is_paused_while_another_is_timed(runner, trial):
    """Its processes are stopped as long as the other takes samples, and its compile time is without the pause."""
    ahead, other = trial("ahead", SLOW_COMPILE), trial("other", {"execution": "compile", "latency_ms": 40})
    ahead_started = runner.start(*ahead, "gated")
    while ahead[0].read_stage() is not Stage.COMPILE:
        time.sleep(0.01)
    seen: list[list[str]] = []

    def look(stage: Stage) -> None:
        if stage is Stage.RUN:
            time.sleep(1.5)
            seen.append(states_of(ahead[0]))

    assert isinstance(runner.run(*other, on_stage=look), Measurement)
    assert seen == [[psutil.STATUS_STOPPED]]
    outcome = ahead_started.finish()
    assert isinstance(outcome, Measurement), outcome
    assert ahead[0].read_paused_s() > 1.4
    assert outcome.compile_s < ahead[0].read_paused_s(), "less the pause, all of which was within its compile"


def test_what_has_compiled_first_comes_first(runner, trial):
    """Whoever was prepared before it; of two that are ready the one that is named first. One that failed is ready."""
    slow, quick, broken = (
        trial("slow", SLOW_COMPILE),
        trial("quick", {"execution": "compile", "latency_ms": 2}),
        trial("broken", {"execution": "compile", "behaviour": "crash"}),
    )
    slow, quick, broken = (runner.start(*each, "gated") for each in (slow, quick, broken))
    assert runner.first_ready([slow, quick]) is quick
    assert runner.first_ready([slow, broken]) is broken
    assert runner.first_ready([slow]) is slow
    assert runner.first_ready([quick, slow]) is quick


def wait_until(is_true, longest_s=20.0):
    """Fails the test if it does not come true."""
    begun = time.monotonic()
    while not is_true():
        assert time.monotonic() - begun < longest_s
        time.sleep(0.01)


def is_stopped(folder: TrialFolder) -> bool:
    """There is a process, and none that is not stopped."""
    return set(states_of(folder)) == {psutil.STATUS_STOPPED}


def test_a_compiler_that_times_candidates_is_alone(runner, trial):
    """All others are stopped meanwhile, new ones included; that is no part of their compile time, and no trial is timed
    before it is done."""
    picking = trial("picking", {**TIMES_CANDIDATES, "candidates_ms": 1500})
    beside, quick = trial("beside", {**SLOW_COMPILE, "compile_ms": 800}), trial("quick", {"execution": "compile"})
    beside_started = runner.start(*beside, "gated")
    picking_started = runner.start(*picking, "gated")
    wait_until(lambda: is_stopped(beside[0]))
    quick_started = runner.start(*quick, "gated")
    wait_until(lambda: is_stopped(quick[0]))
    outcomes = [each.finish() for each in (quick_started, picking_started, beside_started)]
    assert all(isinstance(each, Measurement) for each in outcomes), outcomes
    assert beside[0].read_paused_s() > 1
    assert outcomes[2].compile_s < 1.3


def test_no_trial_is_timed_while_a_compiler_times_candidates(runner, trial):
    """Its order to begin waits."""
    timed, picking = trial("timed", {"execution": "compile"}), trial("picking", TIMES_CANDIDATES)
    timed_started = runner.start(*timed, "gated")
    runner.first_ready([timed_started])
    picking_started = runner.start(*picking, "gated")
    wait_until(lambda: picking[0].read_stage() is Stage.COMPILE)
    time.sleep(0.3)
    begun = time.monotonic()
    assert isinstance(timed_started.finish(), Measurement)
    assert time.monotonic() - begun > 0.3, "it waited for the candidates"
    assert isinstance(picking_started.finish(), Measurement)


def test_two_compilers_time_candidates_one_after_the_other(runner, trial):
    """Each has its own time alone; what it waits for the other is no part of its compile time."""
    both = [trial(name, TIMES_CANDIDATES) for name in ("one", "two")]
    outcomes = [each.finish() for each in [runner.start(*each, "gated") for each in both]]
    assert all(isinstance(each, Measurement) for each in outcomes), outcomes
    assert max(each[0].read_paused_s() for each in both) > 0.4
    assert max(each.compile_s for each in outcomes) < 1.4


def test_a_compiler_that_dies_alone_lets_the_others_go_on(runner, trial):
    """Killed by its limit while it times candidates."""
    limits = {"compile": 0.8, "check": 20, "run": 20, "start": 20, "build": 20, "total": 60}
    picking = trial("picking", {**TIMES_CANDIDATES, "candidates_ms": 60_000}, limits=limits)
    beside = trial("beside", SLOW_COMPILE)
    picking_started = runner.start(*picking, "gated")
    beside_started = runner.start(*beside, "gated")
    outcome = picking_started.finish()
    assert isinstance(outcome, Failure)
    assert outcome.reason is Reason.TIMEOUT
    assert isinstance(beside_started.finish(), Measurement)


def test_a_pause_is_not_what_a_limit_ends(runner, trial):
    """A trial that may take 1.5 seconds, and is paused for longer, ends by itself."""
    limits = {"compile": 1.5, "check": 20, "run": 20, "start": 20, "build": 20, "total": 60}
    ahead = trial("ahead", SLOW_COMPILE, limits=limits)
    other = trial("other", {"execution": "compile", "latency_ms": 2})
    ahead_started = runner.start(*ahead, "gated")
    while ahead[0].read_stage() is not Stage.COMPILE:
        time.sleep(0.01)
    assert isinstance(runner.run(*other, on_stage=lambda s: time.sleep(1.6) if s is Stage.RUN else None), Measurement)
    assert isinstance(ahead_started.finish(), Measurement)


@pytest.mark.parametrize("behaviour", ["compile_error", "crash", "wrong"])
def test_it_may_fail_ahead(runner, trial, behaviour):
    """What goes wrong before it is timed is its outcome, as of any trial."""
    ahead = trial("ahead", {"execution": "compile", "behaviour": behaviour})
    ahead_started = runner.start(*ahead, "gated")
    outcome = ahead_started.finish()
    assert isinstance(outcome, Failure)
    assert outcome.reason.value in {behaviour, "wrong_result"}


def test_a_hang_is_ended_by_its_limit(runner, trial):
    """One that hangs while it compiles ahead is killed when its own time is over, also if nobody runs it yet."""
    limits = {"compile": 0.5, "check": 20, "run": 20, "start": 20, "build": 20, "total": 60}
    ahead = trial("ahead", {"execution": "compile", "behaviour": "hang"}, limits=limits)
    ahead_started = runner.start(*ahead, "gated")
    outcome = ahead_started.finish()
    assert isinstance(outcome, Failure)
    assert outcome.reason is Reason.TIMEOUT


def test_what_is_dropped_leaves_nothing(runner, trial):
    """Waiting, compiling or paused: it is killed, and its temporary files are removed."""
    folders = [trial(name, {**SLOW_COMPILE, "compile_ms": ms}) for name, ms in (("done", 0), ("busy", 60_000))]
    started = [runner.start(*each, "gated") for each in folders]
    while folders[0][0].read_stage() is not Stage.WAIT:
        time.sleep(0.01)
    runner.drop(started)
    for folder, _ in folders:
        assert states_of(folder) == []
        assert not folder.temporary.exists()


def test_live_and_prepared_ones_are_at_work_side_by_side(runner, trial):
    """A live process becomes warm while a trial compiles, and the first that is ready is told, whatever it is."""
    slow, quick = trial("slow", {**SLOW_COMPILE, "compile_ms": 60_000}), trial("quick", {"execution": "compile"})
    live = trial("live", {"execution": "compile", "latency_ms": 2})
    slow_started = runner.start(*slow, "gated")
    wait_until(lambda: slow[0].read_stage() is Stage.COMPILE)
    live_started = runner.start(*live, "live")
    assert runner.first_ready([slow_started, live_started]) is live_started
    quick_started = runner.start(*quick, "gated")
    assert runner.first_ready([slow_started, quick_started]) is quick_started
    assert not is_stopped(slow[0])
    runner.drop([slow_started])
    assert live_started.turn() is not None
    assert isinstance(quick_started.finish(), Measurement)
    assert isinstance(live_started.finish(), Measurement)


def test_what_is_at_work_is_paused_for_a_turn(runner, trial):
    """Trials that compile and live processes that become warm; once for all turns of a quiet time, and what starts in
    it too. At its end all go on."""
    ahead, warming = trial("ahead", {**SLOW_COMPILE, "compile_ms": 800}), trial("warming", SLOW_COMPILE)
    late = trial("late", {**SLOW_COMPILE, "compile_ms": 400})
    one, other = (runner.hold(*trial(name, {"execution": "compile", "latency_ms": 2})) for name in ("one", "other"))
    ahead_started, warming_started = runner.start(*ahead, "gated"), runner.start(*warming, "live")
    wait_until(lambda: {each[0].read_stage() for each in (ahead, warming)} == {Stage.COMPILE})
    with runner.quiet():
        one.turn()
        assert is_stopped(ahead[0])
        assert is_stopped(warming[0])
        late_started = runner.start(*late, "gated")
        wait_until(lambda: states_of(late[0]))
        other.turn()
        assert all(is_stopped(each[0]) for each in (ahead, warming, late))
    assert runner.first_ready([warming_started]) is warming_started
    assert warming_started.turn() is not None
    outcomes = [started.finish() for started in (one, other, ahead_started, warming_started, late_started)]
    assert all(isinstance(outcome, Measurement) for outcome in outcomes), outcomes
    assert min(each[0].read_paused_s() for each in (ahead, warming, late)) > 0
    assert outcomes[3].compile_s < 1.0, "less the pause"


def test_who_waits_in_a_quiet_time_ends_it(runner, trial):
    """Else it would wait for a process that is paused; the next turn begins it again."""
    live = runner.hold(*trial("live", {"execution": "compile", "latency_ms": 2}))
    ahead, other = trial("ahead", SLOW_COMPILE), trial("other", {**SLOW_COMPILE, "compile_ms": 60_000})
    ahead_started, other_started = (runner.start(*each, "gated") for each in (ahead, other))
    with runner.quiet():
        live.turn()
        assert runner.first_ready([ahead_started]) is ahead_started
        live.turn()
        wait_until(lambda: is_stopped(other[0]))
        assert isinstance(ahead_started.finish(), Measurement)
        assert is_stopped(other[0])
    wait_until(lambda: not is_stopped(other[0]))
    runner.drop([other_started])
    assert isinstance(live.finish(), Measurement)


def test_a_live_process_rests_for_as_long_as_it_is_not_asked(runner, trial):
    """No limit ends it between two turns, and none counts the turns' others."""
    limits = {"compile": 20, "check": 20, "run": 1.0, "start": 20, "build": 20, "total": 8}
    live = runner.hold(*trial("live", {"execution": "compile", "latency_ms": 2}, limits=limits))
    for name in ("a", "b"):
        live.turn()
        assert isinstance(runner.run(*trial(name, {**SLOW_COMPILE, "compile_ms": 1500})), Measurement)
    assert live.turn() is not None
    assert isinstance(live.finish(), Measurement)


@pytest.mark.parametrize("num_jobs", [1, 2, 9])
def test_processes_of_a_block_become_warm_beside_each_other(runner, trial, tmp_path, num_jobs):
    """At most so many start at a time; each is there once, and the samples are taken in turns as ever."""

    did = []

    class Noting(Bench):
        def new_block(self):
            did.append("block")

        def start(self, folder, request, waits, *, fresh=False):
            did.append("start")
            running = runner.start(folder, request, waits)
            warm = running.warm
            running.warm = lambda on_stage: did.append("warm") or warm(on_stage)
            return running

        def first_ready(self, started):
            return runner.first_ready(started)

        def drop(self, started):
            runner.drop(started)

    names = ["untuned", "a", "b"]
    contestants = [Contestant(name, trial(name, {"latency_ms": 2}, untuned=name == "untuned")[1]) for name in names]
    plan = BlockPlan(num_rounds=3, first_look=2, num_looks=1)
    run = BlockedRun(
        Noting(), tmp_path / "blocks", contestants, plan, lambda measured: measured.latency.p50, num_at_once=num_jobs,
    )  # fmt: skip
    assert run.run(lambda _: True) is not None
    expected = {
        1: ["block", *["start", "warm"] * 3],
        2: ["block", "start", "start", "warm", "start", "warm", "warm"],
        9: ["block", *["start"] * 3, *["warm"] * 3],
    }
    assert did == expected[num_jobs] * 2
    assert [len(each.samples.turns) for block in run.blocks for each in block.values()] == [3] * 6


def test_the_parent_dies(tmp_path, runner, trial):
    """Closing the runner ends what was prepared: waiting processes do not hold the supervisor."""
    ahead = trial("ahead", {**SLOW_COMPILE, "compile_ms": 0})
    runner.start(*ahead, "gated")
    while ahead[0].read_stage() is not Stage.WAIT:
        time.sleep(0.01)
    runner.close()
    assert states_of(ahead[0]) == []
    assert Path(tmp_path, "ahead", "request.json").exists()
