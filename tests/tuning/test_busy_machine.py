"""A busy machine: it is said, disturbed trials are repeated within bounds, and nothing is learned from them."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from autotune.answer.result import StudyResult
from autotune.answer.sections.noise import NoiseSection
from autotune.environment import Environment, cpu_quota
from autotune.errors import InputError
from autotune.measure.measurement import Stage
from autotune.measure.statistics import Verdict
from autotune.render.live import LiveDisplay
from autotune.render.terminal import tables
from autotune.study.budget import BlockPlan, BusyMachinePlan
from autotune.study.records import BlockRow
from autotune.study.sampler.sampler import Sampler
from autotune.trial.deadline import Deadline
from autotune.tuning.attempts import Attempts
from autotune.tuning.events import DriftChecked, MachineBusy, TrialDisturbed, TrialEnded
from autotune.tuning.evidence import evidence_of
from autotune.tuning.loop import Tuner
from autotune.tuning.race import Standing
from autotune.tuning.session import Session, trial_request
from tests.asking import ask
from tests.conftest import QUICK_BUDGET, ScriptedLive, ScriptedTrials, fake_space, printed, summary_of, with_latency
from tests.measure.test_disturbance import timed

pytestmark = pytest.mark.usefixtures("in_memory")

BUDGET = QUICK_BUDGET.model_copy(update={"num_trials": 6, "stop_early": False})


def here(measurement, **overrides):
    """The measurement as this machine would give it."""
    from autotune import environment

    like_here = environment.describe(device="cpu", variables={})
    return measurement.model_copy(update={"environment": like_here.model_copy(update=overrides)})


@pytest.fixture
def quiet_one(measurement):
    return here(measurement)


@pytest.fixture
def loud_one(quiet_one):
    return timed(quiet_one, wall_s=0.1, hit=0.7, switches=10, cpu=0.5, taken=0.5, num=20)


@pytest.fixture
def tune(make_study, quiet_one, loud_one):
    """A study on scripted processes: 10 ms untuned, `ms(config)` otherwise; `is_loud(name, how often so far)`."""

    def tune(is_loud=lambda name, count: False, ms=lambda config: 12.0, budget=BUDGET, study=None):
        tune.counts, tune.events = {}, []
        tune.study = study or make_study()
        untuned = tune.study.manifest.space.untuned()

        def outcome_of(name, block, config):
            tune.counts[name] = tune.counts.get(name, 0) + 1
            if name.isdecimal() and is_loud(name, tune.counts[name]):
                return loud_one
            return with_latency(quiet_one, 0.010 if config == untuned else ms(config) / 1e3)

        tune.trials = ScriptedTrials(outcome_of)
        return Tuner(tune.study, budget, tune.trials, tune.events.append).run()

    return tune


class TestRepeating:
    """A disturbed trial is run once more, a few of them in a run."""

    def test_the_repeat_counts(self, tune):
        """The trial that was disturbed the first time has the figures of the second."""
        tune(lambda name, count: name == "0002" and count == 1)
        told = [each for each in tune.events if isinstance(each, TrialDisturbed)]
        assert [each.number for each in told] == [2]
        assert "70% of the calls were interrupted" in told[0].why
        assert tune.study.record(2).disturbed is None
        assert tune.study.record(2).measurement.latency.p50 == 0.012

    def test_it_is_bounded(self, tune):
        """A machine that stays busy costs a few repeats, not one for each trial."""
        tune(lambda name, count: True)
        assert sum(isinstance(each, TrialDisturbed) for each in tune.events) == BUDGET.quiet.max_repeats

    @pytest.mark.parametrize(
        ("wall_s", "child_s", "num_runs"), [(100, 0, 1), (600, 0, 1), (700, 0, 2), (700, 60, 2), (700, 70, 1)]
    )
    def test_with_too_little_time_nothing_is_repeated(self, make_study, loud_one, wall_s, child_s, num_runs):
        """A repeat takes what the trial took, be it before its turn came: where that is more than a tenth of what is
        left, its first outcome stands."""
        study, now = make_study(), [0.0]
        loud_one = loud_one.model_copy(update={"stage_s": {Stage.COMPILE: child_s}})

        def outcome_of(*_):
            now[0] += 60.0
            return loud_one

        trials = ScriptedTrials(outcome_of)
        budget = BUDGET.model_copy(update={"quiet": BusyMachinePlan(max_wait_s=0)})
        session = Session(study, budget, trials, lambda _: None, Deadline.after(wall_s, clock=lambda: now[0]))
        folder, request = session.untuned_again("untuned")
        assert Attempts(session).run(folder, request) == loud_one
        assert now == [num_runs * 60.0]

    def test_a_wait_in_vain_is_the_last_one(self, make_study, loud_one, monkeypatch):
        """A machine that is busy for good is waited for once."""
        looks = []
        monkeypatch.setattr("autotune.tuning.attempts.taken_cores", lambda seconds: looks.append(seconds) or 1.0)
        budget = BUDGET.model_copy(update={"quiet": BusyMachinePlan(look_s=0.5, max_wait_s=2.0)})
        session = Session(make_study(), budget, ScriptedTrials(lambda *_: loud_one), lambda _: None)
        attempts = Attempts(session)
        for _ in range(3):
            attempts.run(*session.untuned_again("untuned"))
        assert looks == [0.5] * 4

    def test_memory_needs_no_quiet_machine(self, make_study, loud_one):
        """Where no time is made less, a disturbed trial is as good as any."""
        from autotune.measure.objective import Objective

        study = make_study(objectives=(Objective.parse("memory"),))
        calls = []
        session = Session(study, BUDGET, ScriptedTrials(lambda *_: calls.append(1) or loud_one), lambda _: None)
        Attempts(session).run(*session.untuned_again("untuned"))
        assert calls == [1]


class TestLearning:
    """What is known to be wrong is not learned from."""

    def test_the_search_takes_it_as_unknown(self, tune, quiet_one):
        """A config whose trial stayed disturbed is tried once, and its latency is no observation."""
        tune(lambda name, count: name in ("0001", "0003"))
        study = tune.study
        configs = [each.config for each in study.records()]
        assert len(set(configs)) == len(configs)
        assert [trial.number for trial in study.tried() if trial.is_distrusted] == [1, 3]
        sampler = Sampler(study)
        sampler.suggest()
        assert [number for number, seen in enumerate(sampler._own._last.seen) if seen.value is None] == [1, 3]


class TestTheVerdict:
    """`keep untuned` is not said where the search could not tell which configs to compare."""

    def test_nothing_faster_on_a_busy_machine_is_undecided(self, tune):
        """With the reason; and it is confirmed again when the study goes on."""
        confirmation = tune(lambda name, count: name in ("0002", "0003", "0004", "0005"))
        assert confirmation.verdict is Verdict.UNDECIDED
        assert confirmation.why.startswith(
            "the search could not tell which configs to compare: other programs disturbed"
        )
        assert "measured, disturbed" in printed(tables(StudyResult(tune.study))[0])
        assert "undecided" in summary_of(tune.study)

    def test_a_proven_gain_stands(self, tune):
        """The blocks are interleaved: what they prove does not rest on the search."""
        confirmation = tune(lambda name, count: name not in ("0000", "0001"), ms=lambda config: 5.0)
        assert confirmation.verdict is Verdict.FASTER

    def test_where_all_configs_were_compared_nothing_was_chosen(self, tune, make_study):
        """A space of one config needs no search to tell whom to compare."""
        from tests.tuning.test_loop import EXECUTION

        study = make_study(space=fake_space(EXECUTION))
        confirmation = tune(lambda name, count: name == "0000", study=study, ms=lambda config: 10.2)
        assert confirmation.verdict in (Verdict.KEEP_UNTUNED, Verdict.TIE)
        assert confirmation.compared


class TestBlocks:
    """A disturbed block is taken again, as long as half of all were quiet."""

    @pytest.fixture
    def blocks(self, make_study, quiet_one):
        """A study of one config that gains 2x; the numbers of its disturbed blocks."""
        from tests.tuning.test_loop import EXECUTION

        def blocks(loud):
            def outcome_of(name, block, config):
                is_untuned, is_loud = config == study.manifest.space.untuned(), block in loud
                wall_s = (0.025 if is_loud else 0.010) if is_untuned else 0.005
                if not is_loud:
                    return with_latency(quiet_one, wall_s)
                return timed(quiet_one, wall_s=wall_s, hit=0.7, switches=10, cpu=0.5, taken=0.5, num=20)

            study, events = make_study(space=fake_space(EXECUTION)), []
            budget = BUDGET.model_copy(update={"confirmation": BlockPlan(), "quiet": BusyMachinePlan(max_wait_s=0)})
            found = Tuner(study, budget, ScriptedTrials(outcome_of), events.append).run()
            lines = [line for event in events for line in NoiseSection.news(event)]
            return study, found, sum(line.startswith("disturbed   the block: other programs") for line in lines)

        return blocks

    @pytest.mark.parametrize(
        ("loud", "num_rows", "num_counted", "note"),
        [
            ((), 2, 2, None),
            ((1,), 3, 2, "1 of 3 blocks were disturbed .* and do not count"),
            ((2,), 3, 2, "1 of 3 blocks were disturbed .* and do not count"),
            ((1, 2), 4, 2, "2 of 4 blocks were disturbed .* and do not count"),
            (range(1, 99), 4, 4, "4 of 4 blocks were disturbed .*, so all count: on a quiet machine .*"),
        ],
        ids=["none", "the first", "the second", "two", "all"],
    )
    def test_it_counts_where_no_quiet_one_comes(self, blocks, loud, num_rows, num_counted, note):
        """Four disturbed ones are enough to say so; the output names them in each case."""
        study, found, num_told = blocks(loud)
        assert found.verdict is Verdict.FASTER
        assert (len(study.blocks), len(found.blocks)) == (num_rows, num_counted)
        assert found.note is None if note is None else re.fullmatch(note, found.note)
        assert num_told == sum(row.disturbed is not None for row in study.blocks)
        assert found.speedup.median == pytest.approx(5.0 if num_counted == 4 else 2.0)

    def test_who_led_the_last_one_stays(self, standing_on):
        """Beside other programs blocks are one config's, until another looks clearly better."""
        rows = [{0: 10, 1: 8.5, 2: 8.1}, {0: 10, 1: 8.0, 2: 8.2}]
        quiet, busy, better = (standing_on((10, 8.2, ms), rows, why) for ms, why in ((8, None), (8, "x"), (6, "x")))
        assert [each.evidence.leader.number for each in (quiet, busy, better)] == [2, 1, 2]
        assert [len(each.field) for each in (quiet, busy, better)] == [2, 1, 1]

    @pytest.fixture
    def standing_on(self, make_study, measurement):
        """What is known after trials and rows of so many ms, all of them disturbed by `why`."""
        from tests.tuning import test_race

        def standing_on(trials_ms, rows, why):
            study = make_study(f"s{why}{trials_ms[-1]}", space=fake_space(test_race.SPACE))
            for number, ms in enumerate(trials_ms):
                config = test_race.compiled(number) if number else test_race.UNTUNED
                study.tell(study.ask(config, 60.0), with_latency(measurement, ms / 1e3))
            study.blocks = [
                BlockRow(number=number, values={trial: ms / 1e3 for trial, ms in row.items()}, disturbed=why)
                for number, row in enumerate(rows, start=1)
            ]
            return Standing(evidence_of(study, BlockPlan()))

        return standing_on


class TestBeforeTheStart:
    """What is known of the machine before anything is measured."""

    def test_a_machine_that_does_not_tell_is_taken_for_quiet(self, tune, monkeypatch):
        """Nothing is said, and where nothing is faster the untuned model is kept."""
        monkeypatch.setattr("autotune.tuning.attempts.taken_cores", lambda _: None)
        assert tune().verdict is Verdict.KEEP_UNTUNED
        assert not any(isinstance(each, MachineBusy) for each in tune.events)

    def test_a_busy_machine_is_said(self, tune, monkeypatch):
        """One line, before the first trial."""
        monkeypatch.setattr("autotune.tuning.attempts.taken_cores", lambda _: 1.0)
        tune()
        kinds = [type(each) for each in tune.events]
        assert kinds.count(MachineBusy) == 1
        assert kinds.index(MachineBusy) < kinds.index(TrialEnded)
        event = next(each for each in tune.events if isinstance(each, MachineBusy))
        console = Console(force_terminal=True, width=200)
        with console.capture() as captured, LiveDisplay(console) as display:
            display(MachineBusy(event.taken, 2, 3.25))
        told = "this machine is busy: 1.0 of 2 cores are used by other programs (load average 3.2)"
        assert f"{told}; timings will be noisy" in captured.get()


@pytest.mark.usefixtures("every_turn")
@pytest.mark.parametrize("first_s", [20.0, 1e-5])
def test_a_first_reading_of_another_machine_is_no_unit(tune, monkeypatch, first_s):
    """A process that stays, and whose first turn met other programs, or whose trial did: later readings are what they
    are, and no trial is set against a model that was never so fast or so slow."""
    read = ScriptedLive.turn

    def turn(live):
        reading = read(live)
        is_first = reading is not None and live.num_turns == 1
        return reading._replace(latency_s=first_s) if is_first else reading

    monkeypatch.setattr(ScriptedLive, "turn", turn)
    tune()
    checks = tune.study.drift_checks
    assert (checks[0].after, checks[0].latency_s) == (0, first_s)
    assert {check.latency_s for check in checks[1:]} == {0.010}


class TestAnotherMachine:
    """Trials of different machines make no ranking."""

    @pytest.mark.parametrize(
        ("overrides", "why"),
        [
            ({"processor": "Other CPU"}, r"processor: Other CPU then, .* now"),
            ({"vector_instructions": "abc"}, r"vector instructions: abc then, .* now"),
            ({"num_cores": 512}, r"usable cores: 512 then, \d+ now"),
            ({"num_cores": 0.25}, r"usable cores: 0.25 then, \d+ now"),
            ({"inherited": {"OMP_NUM_THREADS": "77"}}, r"OMP_NUM_THREADS: 77 then, .* now"),
        ],
    )
    def test_a_study_is_not_resumed_there(self, make_study, quiet_one, overrides, why):
        """It says what differs, before anything is run, and what to do."""
        study = make_study()
        untuned = ask(study, 1)
        study.tell(untuned, here(quiet_one, **overrides))
        with pytest.raises(InputError, match=why) as caught:
            Tuner(study, BUDGET, ScriptedTrials(lambda *_: pytest.fail("something was run"))).run()
        assert "study='NAME'" in caught.value.tip

    def test_what_changes_no_latency_is_no_difference(self, quiet_one):
        """Another load, other packages: those are for others to tell. What an older record lacks is not known."""
        then = quiet_one.environment
        inherited = {**then.inherited, "MALLOC_ARENA_MAX": "1"}
        now = then.model_copy(update={"load_1m": 9.0, "python": "3.99", "inherited": inherited})
        assert isinstance(then, Environment)
        assert then.differences(now) == []
        now = then.model_copy(update={"vector_instructions": "avx2"})
        before = now.model_copy(update={"vector_instructions": None})
        assert before.differences(now) == now.differences(before) == []

    @pytest.mark.usefixtures("every_turn")
    def test_the_untuned_model_of_a_resumed_study_is_a_sentinel(self, tune, quiet_one):
        """It is measured again to see that nothing changed: its latency is kept."""
        few = BUDGET.model_copy(update={"num_trials": 2})
        tune(budget=few)
        study = tune.study
        study.reference.write_bytes(b"")
        num_before = len(study.drift_checks)
        tune(budget=few.model_copy(update={"num_trials": 3}), study=study)
        assert [check.after for check in study.drift_checks[num_before:]] == [1, 2]
        assert study.drift_checks[-1].latency_s == 0.010
        assert any(isinstance(each, DriftChecked) for each in tune.events)


class TestQuota:
    """A container's share of the CPU, whatever number of processors it sees."""

    def test_version_2(self, tmp_path):
        """The smallest limit of the group and of those above it; `max` is none, and so is a system without groups."""
        assert cpu_quota(tmp_path, tmp_path / "none") is None
        (tmp_path / "own").write_text("0::/a/b\n")
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")
        assert cpu_quota(tmp_path, tmp_path / "own") is None
        (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
        assert cpu_quota(tmp_path, tmp_path / "own") == 1.5

    def test_version_1_in_a_container(self, tmp_path):
        """The group's path is the host's, and what is mounted is the container's own folder."""
        (tmp_path / "own").write_text("4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n")
        (tmp_path / "cpu").mkdir()
        (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
        (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
        assert cpu_quota(tmp_path, tmp_path / "own") is None
        (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("200000\n")
        assert cpu_quota(tmp_path, tmp_path / "own") == 2.0

    def test_cores_are_no_more_than_the_quota(self, monkeypatch):
        """At least one; a quota beyond the affinity changes nothing."""
        from autotune import environment

        monkeypatch.setattr(environment, "usable_cpus", lambda: frozenset(range(8)))
        for quota, cores in ((None, 8), (0.5, 1), (2.5, 2), (64.0, 8)):
            monkeypatch.setattr(environment, "cpu_quota", lambda quota=quota: quota)
            assert environment.num_usable_cores() == cores
        assert environment.usable_cores() == 8


def test_a_repeat_is_the_same_trial(make_study, loud_one, quiet_one):
    """A repeat runs the very same request: same folder, same limits, cold as before."""
    study, requests = make_study(), []

    class Trials(ScriptedTrials):
        def run(self, folder, request, **more):
            requests.append((folder.path, request))
            return super().run(folder, request, **more)

    outcomes = iter([loud_one, quiet_one])
    session = Session(study, BUDGET, Trials(lambda *_: next(outcomes)), lambda _: None)
    folder = study.trial_folder(0)
    request = trial_request(study, 0, study.manifest.space.untuned(), folder, BUDGET)
    assert Attempts(session).run(folder, request) == quiet_one
    assert requests[0] == requests[1]
