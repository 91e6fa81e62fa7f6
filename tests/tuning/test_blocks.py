"""Configs side by side in blocks of live processes: real ones of the fake framework, scripted ones for the rules."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import time
from pathlib import Path

import psutil
import pytest

from autotune.bench.bench import Bench
from autotune.bench.local import LocalBench
from autotune.measure.measurement import Failure, Measurement, Reason, Stage
from autotune.study.budget import BlockPlan
from autotune.trial.deadline import Deadline
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits
from autotune.tuning.attempts import CONFIG_ATTEMPTS, UNTUNED_ATTEMPTS
from autotune.tuning.blocks import BlockedRun, Contestant
from tests.conftest import ScriptedTrials, own_children, with_latency

ONE_LOOK = BlockPlan(num_rounds=3, first_look=2, num_looks=1)


class Noting(Bench):
    """A bench that notes what is held, in order, and lets a test meddle with it."""

    def __init__(self, runner, after_hold=lambda name, block: None):
        self._runner = runner
        self._after_hold = after_hold
        self.held: list[tuple[int, str]] = []

    def start(self, folder, request, waits="live", *, fresh=False):
        block = int(folder.path.parent.name.removeprefix("block-"))
        self.held.append((block, folder.path.name))
        live = self._runner.start(folder, request, waits)
        live.warm()
        self._after_hold(folder.path.name, block)
        return live

    def first_ready(self, started):
        return self._runner.first_ready(started)

    def drop(self, started):
        self._runner.drop(started)


@pytest.fixture
def runner(tmp_path):
    with LocalBench({}, preload=True, log=tmp_path / "supervisor.log") as runner:
        yield runner


@pytest.fixture
def contest(tmp_path, runner, make_request):
    """A contest of the untuned model (8 ms a call) and of others by name, after the reference was left."""

    def make(others, *, trials=None, plan=ONE_LOOK, untuned=None, reference=True, **more):
        if reference:
            outcome = runner.run(TrialFolder(tmp_path / "reference"), make_request())
            assert isinstance(outcome, Measurement), outcome
        settings = {"untuned": untuned or {"latency_ms": 8}, **others}
        contestants = [
            Contestant(
                name,
                make_request(
                    each,
                    untuned=name == "untuned",
                    cold=False,
                    cache=str(tmp_path / "caches" / name),
                    **more.pop(name, {}),
                ),
            )
            for name, each in settings.items()
        ]
        value = more.pop("value", lambda measured: measured.latency.p50)
        return BlockedRun(trials or runner, tmp_path / "contest", contestants, plan, value, **more)

    return make


def scripted(measurement, latency_ms, *, plan, **more):
    """A contest whose contestants take so many ms a call, or in a block what a function of its number says."""

    def outcome_of(name, block, config):
        said = latency_ms[name](block) if callable(latency_ms[name]) else latency_ms[name]
        return said if isinstance(said, Failure) else with_latency(measurement, said / 1e3)

    def make(make_request):
        trials = ScriptedTrials(outcome_of)
        contestants = [
            Contestant(name, make_request({"latency_ms": 1}, untuned=name == "untuned")) for name in latency_ms
        ]
        return trials, BlockedRun(trials, Path("nowhere"), contestants, plan, lambda m: m.latency.p50, **more)

    return make


def live_children(of_folder=""):
    """Trials that are alive, by the folder that they work in."""
    found = []
    for each in own_children():
        try:
            working = Path(os.readlink(f"/proc/{each.pid}/cwd"))
        except OSError:
            continue
        if working.name == "scratch" and str(working.parent).endswith(of_folder):
            found.append(each)
    return found


def kill_first(name):
    """Kill its process of the first block, and wait for its end."""
    (found,) = live_children(f"block-01/{name}")
    os.kill(found.pid, signal.SIGKILL)
    psutil.wait_procs([found], timeout=20)


class TestBlocks:
    """What a block holds, in real processes."""

    def test_each_block_has_a_fresh_process_of_every_contestant(self, contest):
        """Each contestant is measured in turns in each block; the comparison has a row a block, in their order. A
        display hears what the processes do."""
        told, stages = [], []
        others = {"fast": {"latency_ms": 2}, "same": {"latency_ms": 8}}
        held = contest(others, on_block=told.append, on_stage=stages.append)
        comparison = held.run(lambda _: True)
        assert {Stage.BUILD, Stage.COMPILE, Stage.CHECK, Stage.RUN, Stage.WAIT} <= set(stages)
        assert [set(block) for block in held.blocks] == [{"untuned", "fast", "same"}] * 2
        for block in held.blocks:
            for measured in block.values():
                assert measured.samples.ended_by == "turns"
                assert len(measured.samples.turns) == 3
                assert sum(measured.samples.turns) == len(measured.samples.latency_s)
                assert min(measured.samples.turns) >= 2
        assert comparison.blocks.values == tuple(
            tuple(block[name].latency.p50 for name in ("untuned", "fast", "same")) for block in held.blocks
        )
        assert told == [{name: m.latency.p50 for name, m in block.items()} for block in held.blocks]
        fast, same = (comparison.blocks.values[0][0] / s for s in comparison.blocks.values[0][1:])
        assert fast > 2
        assert same < fast
        assert not held.failures

    def test_evidence_is_kept_and_caches_go_from_block_to_block(self, contest, tmp_path, model_file):
        """Request, outcome and output of each process stay; scratch does not. Caches lie elsewhere: the first block's
        process finds its own empty, the second block's finds what the first one left."""
        model_file.write_text(
            "import os, numpy as np, pathlib\ndef tiny():\n"
            "    mark = pathlib.Path(os.environ['FAKE_CACHE']) / 'compiled'\n"
            "    print('warm' if mark.exists() else 'cold', mark.parent.name)\n    mark.touch()\n"
            "    return (lambda x: x + 1), np.ones((2, 2))\n"
        )
        held = contest({"fast": {"latency_ms": 2}})
        held.run(lambda _: True)
        for number, state in ((1, "cold"), (2, "warm")):
            for name in ("untuned", "fast"):
                folder = TrialFolder(tmp_path / "contest" / f"block-{number:02d}" / name)
                kept = {path.name for path in folder.path.iterdir()}
                assert kept == {"request.json", "outcome.json", "stage", "stdout.txt", "stderr.txt"}
                assert folder.read_outcome() == held.blocks[number - 1][name]
                assert folder.stdout.read_text().split() == [state, name]
        assert {path.name for path in (tmp_path / "caches").iterdir()} == {"untuned", "fast"}

    def test_the_second_of_a_pair_starts_in_the_reverse_order(self, contest, runner):
        """The first one started tends to be the slower: no contestant is always the first."""
        noting = Noting(runner)
        plan = BlockPlan(num_rounds=3, first_look=4, num_looks=1)
        contest({"b": {"latency_ms": 1}, "c": {"latency_ms": 1}}, trials=noting, plan=plan).run(lambda _: True)
        orders = [[name for block, name in noting.held if block == number] for number in (1, 2, 3, 4)]
        assert all(sorted(order) == ["b", "c", "untuned"] for order in orders)
        assert orders[1] == orders[0][::-1]
        assert orders[3] == orders[2][::-1]


class TestFailures:
    """Who fails is out; who is left goes on."""

    @pytest.mark.parametrize("behaviour", ["wrong", "crash", "compile_error"])
    def test_a_contestant_that_fails_is_out(self, contest, behaviour):
        """Its failure is kept, the others' blocks go on without it, and nothing waits for it."""
        held = contest({"bad": {"behaviour": behaviour}, "fast": {"latency_ms": 2}})
        comparison = held.run(lambda _: True)
        assert list(held.failures) == ["bad"]
        assert [set(block) for block in held.blocks] == [{"untuned", "fast"}] * 2
        assert [each.name for each in held.contestants] == ["untuned", "fast"]
        assert [len(row) for row in comparison.blocks.values] == [2, 2]

    def test_the_base_failing_ends_it(self, contest):
        """Without the untuned model there is nothing to compare with, once it failed as often as chance may explain."""
        held = contest({"fast": {"latency_ms": 2}}, untuned={"behaviour": "crash"})
        assert held.run(lambda _: True) is None
        assert held.failures["untuned"].reason is Reason.CRASH
        assert [name for name, _ in held.mishaps] == ["untuned"] * (UNTUNED_ATTEMPTS - 1)
        assert held.blocks == []

    def test_all_others_failing_ends_it(self, contest):
        """The base alone is no contest."""
        held = contest({"bad": {"behaviour": "wrong"}, "worse": {"behaviour": "nan"}})
        assert held.run(lambda _: True) is None
        assert set(held.failures) == {"bad", "worse"}
        assert len(held.blocks) == 1

    @pytest.mark.parametrize(("behaviour", "num_processes"), [("crash", CONFIG_ATTEMPTS), ("wrong", 1)])
    def test_a_config_that_crashes_gets_one_more_process(self, contest, runner, behaviour, num_processes):
        """A crash may be chance; two in a row, or a failure that the config's own code explains, put it out."""
        noting = Noting(runner)
        held = contest({"bad": {"behaviour": behaviour}}, trials=noting)
        held.run(lambda _: True)
        assert sorted(noting.held) == [(1, "bad")] * num_processes + [(1, "untuned")]
        assert list(held.failures) == ["bad"]

    @pytest.mark.parametrize("victim", ["fast", "untuned"])
    def test_one_that_is_killed_while_it_waits_is_a_failure_and_no_hang(self, contest, runner, victim):
        """The kernel or an operator kills a process whose turn it is not: its failure is found, nothing waits."""

        def kill(name, block):
            if name == victim:
                kill_first(name)

        held = contest({"fast": {"latency_ms": 2}, "slow": {"latency_ms": 4}}, trials=Noting(runner, after_hold=kill))
        comparison = held.run(lambda _: True)
        failure = held.failures[victim]
        assert (failure.reason, failure.stage) == (Reason.CRASH, Stage.WAIT)
        assert "SIGKILL" in failure.error
        if victim == "fast":
            assert [len(row) for row in comparison.blocks.values] == [2, 2]
        else:
            assert comparison is None

    def test_a_block_in_which_one_was_killed_is_measured_anew(self, contest, runner):
        """Killed once while it waits, the config is measured in a second try of the same block, beside all others."""
        killed = []

        def kill(name, block):
            if name == "fast" and not killed:
                killed.append(name)
                kill_first(name)

        held = contest({"fast": {"latency_ms": 2}}, trials=Noting(runner, after_hold=kill))
        assert len(held.run(lambda _: True).blocks.values) == 2
        assert not held.failures
        assert [name for name, _ in held.mishaps] == ["fast"]


class TestFailuresByChance:
    """Processes that fail now and then, by scripted outcomes: who gets how many, and what becomes of the contest."""

    @staticmethod
    def failing(reason, *, times, block, latency_ms=8):
        """A contestant that fails so often in one block."""
        left = [Failure(reason=reason, stage="run", error="RuntimeError: Illegal device type: 1768765774")] * times
        return lambda number: left.pop() if number == block and left else latency_ms

    def contest(self, make_request, measurement, **latency_ms):
        plan = BlockPlan(num_rounds=3, first_look=4, num_looks=3)
        return scripted(measurement, latency_ms, plan=plan)(make_request)[1]

    @pytest.mark.parametrize("reason", ["run_error", "crash", "timeout", "setup"])
    def test_the_untuned_model_gets_processes_after_any_failure(self, make_request, measurement, reason):
        """It worked before: whatever failed, failed by chance, up to three times in a row."""
        held = self.contest(make_request, measurement, untuned=self.failing(reason, times=3, block=2), a=4)
        assert len(held.run(lambda _: True).blocks.values) == 4
        assert not held.failures
        assert [name for name, _ in held.mishaps] == ["untuned"] * 3

    @pytest.mark.parametrize(("block", "num_compared"), [(2, None), (7, 6)])
    def test_an_untuned_model_lost_for_good_leaves_what_was_measured(
        self, make_request, measurement, block, num_compared
    ):
        """Before the first look there is nothing to judge by; later the blocks before are looked at once more."""
        untuned = self.failing("run_error", times=UNTUNED_ATTEMPTS, block=block)
        held = self.contest(make_request, measurement, untuned=untuned, a=4)
        comparison = held.run(lambda _: False)
        assert (None if comparison is None else len(comparison.blocks.values)) == num_compared
        assert list(held.failures) == ["untuned"]

    def test_one_that_fails_in_a_later_block_loses_its_earlier_ones(self, make_request, measurement):
        """The comparison speaks of those alone who are in every block."""
        bad = self.failing("run_error", times=1, block=2, latency_ms=1)
        held = self.contest(make_request, measurement, untuned=8, bad=bad, fast=2)
        comparison = held.run(lambda _: True)
        assert "Illegal device type" in held.failures["bad"].error
        assert [set(block) for block in held.blocks] == [{"untuned", "bad", "fast"}] + [{"untuned", "fast"}] * 3
        assert [len(row) for row in comparison.blocks.values] == [2] * 4

    def test_each_block_counts_by_itself(self, make_request, measurement):
        """One crash in each block is chance in each; two in one block are not."""
        once = Failure(reason="crash", stage="run", error="gone")
        crashes = {number: [once] for number in (1, 2, 3, 4)}
        held = self.contest(make_request, measurement, untuned=8, a=lambda n: crashes[n].pop() if crashes[n] else 4)
        assert len(held.run(lambda _: True).blocks.values) == 4
        assert not held.failures
        assert len(held.mishaps) == 4


class TestLimits:
    """Waiting is nothing that a live process could be blamed for; working is."""

    @pytest.mark.slow
    def test_waiting_is_free(self, runner, tmp_path, make_request):
        """A process that waits for longer than all its limits is neither stopped nor blamed."""
        limits = Limits(compile=20, check=20, run=3, total=5)
        request = make_request({"latency_ms": 1}, untuned=True, limits=limits)
        live = runner.hold(TrialFolder(tmp_path / "live"), request)
        time.sleep(5.5)
        live.turn()
        outcome = live.finish()
        assert isinstance(outcome, Measurement), outcome
        assert len(outcome.samples.turns) == 1
        assert outcome.stage_s[Stage.WAIT] > 5

    def test_one_that_waits_uses_no_processor(self, runner, tmp_path, make_request, model_file):
        """A runtime's threads may go on spinning after a call: not in the others' turns, the process is stopped."""
        spin = "import threading\n\ndef spin():\n    while True:\n        pass\n\n"
        spin += "threading.Thread(target=spin, daemon=True).start()\n"
        model_file.write_text(spin + model_file.read_text())
        live = runner.hold(TrialFolder(tmp_path / "live"), make_request({"latency_ms": 1}, untuned=True))
        (process,) = live_children("live")

        def used_s():
            return sum(process.cpu_times()[:2])

        time.sleep(0.1)
        before_s = used_s()
        time.sleep(0.5)
        assert used_s() == before_s
        live.turn()
        assert used_s() > before_s
        assert isinstance(live.finish(), Measurement)

    @pytest.mark.slow
    def test_a_turn_that_hangs_is_stopped_and_the_others_go_on(self, contest, tmp_path, model_file):
        """The limit of the stage `run` holds in each turn; a hanging contestant is out."""
        flag = tmp_path / "hang"
        model_file.write_text(
            "import os, time, numpy as np\ndef tiny():\n    def model(x):\n"
            f"        if os.path.exists({str(flag)!r}) and os.environ['FAKE_CACHE'].endswith('bad'):\n"
            "            time.sleep(600)\n"
            "        return x + 1\n    return model, np.ones((2, 2))\n"
        )
        limits = {"limits": Limits(compile=20, check=20, run=3)}
        held = contest(
            {"bad": {"latency_ms": 1}, "fast": {"latency_ms": 2}},
            bad=limits,
            on_block=lambda _: flag.unlink(missing_ok=True),
        )
        first_turn = []

        class Hanging(Noting):
            def start(self, folder, request, waits="live", *, fresh=False):
                live = super().start(folder, request, waits)
                first_turn.append(folder.path.name)
                if len(first_turn) == 3:  # All are warm.
                    flag.touch()
                return live

        held.bench = Hanging(held.bench)
        comparison = held.run(lambda _: True)
        assert (held.failures["bad"].reason, held.failures["bad"].stage) == (Reason.TIMEOUT, Stage.RUN)
        assert "stage run" in held.failures["bad"].error
        assert [len(row) for row in comparison.blocks.values] == [2, 2]


class TestSeveralAtOnce:
    """The parent's side of live processes."""

    @pytest.fixture
    def hold(self, runner, tmp_path, make_request):
        runner.run(TrialFolder(tmp_path / "reference"), make_request())

        def hold(name, **settings):
            return runner.hold(TrialFolder(tmp_path / name), make_request({"latency_ms": 2, **settings}))

        return hold

    def test_they_are_all_alive_and_only_one_works(self, hold):
        """Held processes sleep in a system call: while one takes its turn, the others use no processor time."""
        held = [hold(name) for name in "abc"]
        waiting = live_children("/a") + live_children("/b")
        assert len(waiting) == 2
        before = [sum(each.cpu_times()[:2]) for each in waiting]
        for _ in range(5):
            held[2].turn()
        used = [sum(each.cpu_times()[:2]) - earlier for each, earlier in zip(waiting, before, strict=True)]
        assert max(used) <= 0.02, "two ticks of the system's clock at most"
        outcomes = [each.finish() for each in held[::-1]]
        assert [isinstance(each, Measurement) for each in outcomes] == [True, False, False]
        # Never given a turn: they have no samples, and say so instead of making some up.
        assert all("before its first turn" in each.error for each in outcomes[1:])

    def test_the_end_of_one_does_not_touch_the_others(self, hold, runner, tmp_path, make_request):
        """Finishing one, its failing, or a trial that runs beside live processes, leaves the others as they are."""
        one, bad, other = hold("a"), hold("b", behaviour="crash"), hold("c")
        assert bad.outcome.reason is Reason.CRASH
        assert isinstance(runner.run(TrialFolder(tmp_path / "d"), make_request({"latency_ms": 1})), Measurement)
        one.turn()
        assert isinstance(one.finish(), Measurement)
        assert bad.turn() is None  # Nothing happens.
        other.turn()
        assert isinstance(other.finish(), Measurement)

    def test_each_turn_says_what_it_measured(self, hold):
        """At once, and not what an earlier one did; the outcome has the same samples."""
        live = hold("a")
        told = [live.turn() for _ in range(3)]
        outcome = live.finish()
        assert isinstance(outcome, Measurement)
        left = iter(outcome.samples.latency_s)
        medians = [statistics.median([next(left) for _ in range(num)]) for num in outcome.samples.turns]
        assert [reading.latency_s for reading in told] == medians
        assert live.turn() is None

    def test_closing_the_runner_leaves_nothing(self, hold, runner):
        """Closed in the middle, all live processes are gone, and each is told as lost and not as a config's fault."""
        held = [hold(name) for name in "abc"]
        held[0].turn()
        processes = own_children()
        assert len(live_children()) == 3
        runner.close()
        assert not psutil.wait_procs(processes, timeout=20)[1]
        for each in held:
            assert each.outcome.reason is Reason.SETUP
            each.turn()
            assert each.finish() is each.outcome
        again = hold("again")  # Starts another supervisor.
        again.turn()
        assert isinstance(again.finish(), Measurement)

    def test_a_lost_supervisor_takes_all_live_ones_along(self, hold):
        """Its death is found at the next turn, and every live process is told as lost."""
        held = [hold(name) for name in "ab"]
        processes = own_children()
        children = own_children(recursive=False)
        (supervisor,) = (each for each in children if any("supervisor.py" in part for part in each.cmdline()))
        supervisor.kill()
        held[0].turn()
        assert [each.finish().reason for each in held] == [Reason.SETUP] * 2
        assert not psutil.wait_procs(processes, timeout=20)[1]


class TestPlan:
    """Looks, rounds and times, with scripted processes: what decides here are figures alone."""

    def contest(self, make_request, measurement, latency_ms, **plan):
        more = {key: plan.pop(key) for key in ("on_block",) if key in plan}
        return scripted(measurement, latency_ms, plan=BlockPlan(**{"num_rounds": 3, **plan}), **more)(make_request)

    @pytest.mark.parametrize(("clear_at", "num_blocks"), [(4, 4), (8, 8), (16, 16), (99, 16)])
    def test_it_ends_at_the_look_at_which_it_is_clear(self, make_request, measurement, clear_at, num_blocks):
        """The answer is looked at after 4, 8 and 16 blocks and never between, and not beyond the last look."""
        _, contest = self.contest(make_request, measurement, {"untuned": 8, "a": 4}, first_look=4, num_looks=3)
        looked = []

        def is_clear(comparison):
            looked.append(len(comparison.blocks.values))
            return looked[-1] >= clear_at

        comparison = contest.run(is_clear)
        assert len(comparison.blocks.values) == len(contest.blocks) == num_blocks
        assert looked == [each for each in (4, 8, 16) if each <= num_blocks]
        assert comparison.num_looks == 3
        assert comparison.is_final is (clear_at == 99)

    @pytest.mark.parametrize(("wall_s", "num_blocks"), [(None, 2), (1e6, 8)])
    def test_without_a_time_no_look_is_begun_that_takes_long(self, make_request, measurement, wall_s, num_blocks):
        """The first look always comes; those after it where a time was given, or nobody waits half an hour for one."""
        _, contest = self.contest(make_request, measurement, {"untuned": 8, "a": 4}, first_look=2)
        seconds = itertools.count(step=600.0)
        contest.deadline = Deadline.after(wall_s, clock=lambda: next(seconds))
        comparison = contest.run(lambda _: False)
        assert (len(comparison.blocks.values), comparison.is_final) == (num_blocks, True)

    @pytest.mark.parametrize(("reason", "counts"), [("wrong_result", True), ("timeout", False)])
    def test_an_output_that_is_wrong_when_the_time_is_up_counts(self, measurement, contest, reason, counts):
        """No deadline made it wrong; what else failed just then says nothing of the config."""
        now = [0.0]

        def outcome_of(name, block, _):
            if (name, block) != ("a", 3):
                return with_latency(measurement, 0.008)
            now[0] = 1e6
            return Failure(reason=reason, stage="check", error="relative error 3")

        held = contest({"a": {}}, trials=ScriptedTrials(outcome_of), reference=False)
        held.plan = BlockPlan(first_look=2, num_looks=2)
        held.deadline = Deadline.after(1e3, clock=lambda: now[0])
        assert (held.run(lambda _: False) is None) is counts
        assert set(held.failures) == ({"a"} if counts else set())

    @pytest.mark.parametrize(("max_sampling_s", "num_turns"), [(60.0, 7), (1e-9, 4)])
    def test_rounds_are_cut_short_by_time_but_never_below_the_fewest(
        self, make_request, measurement, max_sampling_s, num_turns
    ):
        """Slow models get fewer rounds, and every contestant equally many turns."""
        plan = {"num_rounds": 7, "fewest_rounds": 4, "max_sampling_s": max_sampling_s, "first_look": 2, "num_looks": 1}
        trials, contest = self.contest(make_request, measurement, {"untuned": 8, "a": 4, "b": 4}, **plan)
        contest.run(lambda _: True)
        assert [live.num_turns for _, _, live in trials.held] == [num_turns] * 6

    def test_the_value_decides_what_is_compared(self, make_request, measurement, contest):
        """A study of the 99th percentile compares 99th percentiles."""
        trials = ScriptedTrials(lambda *_: with_latency(measurement, 0.008))
        held = contest({"a": {}}, trials=trials, reference=False, value=lambda m: m.latency.p99 * 1000)
        assert held.run(lambda _: True).blocks.values == ((8.0, 8.0),) * 2

    @pytest.mark.parametrize("first_look", [0, 1])
    def test_one_block_is_no_look(self, first_look):
        """An interval over blocks needs two of them."""
        with pytest.raises(ValueError, match="first_look"):
            BlockPlan(first_look=first_look)
