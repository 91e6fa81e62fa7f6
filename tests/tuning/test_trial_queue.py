"""The search with several trials at a time: compiled beside each other, timed alone, and nothing is left of them."""

from __future__ import annotations

import pytest

from autotune.bench.local import LocalBench
from autotune.errors import SetupError
from autotune.measure.constraint import Constraint
from autotune.measure.objective import Objective
from autotune.study.records import StopReason
from autotune.tuning import jobs
from autotune.tuning.events import AnswerProven, BlockMeasured, BlockStarted, SearchEnded, TrialEnded, TrialStarted
from autotune.tuning.jobs import MOST_JOBS, fitting_jobs, may_compile_ahead
from autotune.tuning.loop import Tuner
from autotune.tuning.time_budget import FIRST_ALONE_S
from tests.conftest import QUICK_BUDGET, own_children, reopened

pytestmark = pytest.mark.usefixtures("in_memory")

SEARCH_ALL = QUICK_BUDGET.model_copy(update={"stop_early": False})


class NotingRunner(LocalBench):
    """Notes what is started, run and dropped, in order."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.did: list[tuple[str, str]] = []

    def start(self, folder, request, waits="free", *, fresh=False):
        started = super().start(folder, request, waits, fresh=fresh)
        if waits == "gated":
            self.did.append(("prepare", folder.path.name))
        if waits == "live" and folder.path.name == "untuned":
            warm = started.warm
            started.warm = lambda on_stage=None: self.did.append(("warm", folder.path.parent.name)) or warm(on_stage)
        if waits != "live":
            finish = started.finish
            started.finish = lambda on_stage=None: self.did.append(("run", folder.path.name)) or finish(on_stage)
        return started

    def drop(self, started):
        self.did.append(("drop", ""))
        super().drop(started)


@pytest.fixture
def runner(tmp_path):
    with NotingRunner({}, preload=True, log=tmp_path / "supervisor.log") as runner:
        yield runner


@pytest.fixture
def tune(runner):
    """Tune a study with so many trials at a time."""

    def run(study, num_jobs=2, budget=SEARCH_ALL, notify=lambda _: None):
        return Tuner(study, budget.but(num_jobs=num_jobs), runner, notify).run()

    return run


def test_the_answer_and_the_records_are_those_of_one_at_a_time(make_study, tune, runner):
    """Every trial of the budget is recorded, none twice, and the fastest config wins. The untuned model runs alone; a
    further trial starts before the one ahead of it is run; each runs once. Blocks begin while configs are tried, each
    becomes one row, and no process outlives the run."""
    study = make_study()
    events: list[object] = []
    confirmation = tune(study, notify=events.append)
    assert confirmation.verdict.value == "faster"
    records = study.records()
    assert study.stop_reason is StopReason.TRIALS
    assert len({each.config for each in records}) == len(records)
    assert all(each.state in {"measured", "failed"} for each in records)
    numbers = [each.number for each in events if isinstance(each, TrialStarted)]
    assert numbers == [each.record.number for each in events if isinstance(each, TrialEnded)]
    assert sorted(numbers) == [each.number for each in records]
    at = {type(event): index for index, event in reversed(list(enumerate(events)))}
    assert at[BlockStarted] < at[SearchEnded], "a block under way while configs are tried"
    assert len(study.blocks) == sum(isinstance(event, BlockMeasured) for event in events)
    search = [(what, name) for what, name in runner.did if name.isdecimal()]
    assert search[0] == ("run", "0000")
    started = [name for what, name in search if what == "prepare"]
    ran = [name for what, name in search[1:] if what == "run"]
    assert sorted(ran) == started
    assert search.index(("prepare", started[1])) < search.index(("run", started[0]))
    runner.close()
    assert [each for each in own_children() if each.status() != "zombie"] == []


def test_the_first_configs_compile_while_the_untuned_model_becomes_warm(make_study, tune, runner):
    """Not in a later run, which first looks whether the model is the same."""
    study = make_study()
    for num_trials, is_before in ((3, True), (6, False)):
        runner.did.clear()
        tune(study, budget=SEARCH_ALL.but(num_trials=num_trials))
        prepared = next(number for number, (what, _) in enumerate(runner.did) if what == "prepare")
        assert (prepared < runner.did.index(("warm", "again"))) is is_before
        study = reopened(study)


def test_a_search_that_may_end_early_begins_with_few(make_study, tune, runner):
    """No more trials run at a time than there are on record, and three from the start; all others start at once."""
    for name, stops_early, most_at_first in (("early", True, 3), ("all", False, 6)):
        runner.did.clear()
        tune(make_study(name), num_jobs=6, budget=SEARCH_ALL.but(num_trials=8, stop_early=stops_early))
        search = [what for what, folder in runner.did if folder.isdecimal()]
        assert search[0] == "run"
        assert search.index("run", 1) - 1 == most_at_first


def test_where_little_time_is_left_the_first_config_compiles_alone(make_study, tune, runner):
    """It is the one that is known best: what compiles beside it takes the time in which it would be proven."""
    for wall_s, is_alone in ((FIRST_ALONE_S - 1, True), (100 * FIRST_ALONE_S, False)):
        runner.did.clear()
        tune(make_study(f"within-{wall_s:g}"), budget=SEARCH_ALL.but(wall_s=wall_s, num_trials=4))
        search = [what for what, folder in runner.did if folder.isdecimal()]
        assert (search[1:3] == ["prepare", "run"]) is is_alone


def test_on_a_device_all_that_compiles_is_ready_before_one_is_timed(make_study, tune, runner, workload, monkeypatch):
    """In real processes, with the lock of a device: the first config by itself, then batches; each is recorded."""
    monkeypatch.setenv("FAKE_ACCELERATOR", "1")
    monkeypatch.setattr(jobs, "num_usable_cores", lambda: 16)
    study = make_study(workload=workload.model_copy(update={"device": "gpu"}))
    confirmation = tune(study, num_jobs=3, budget=SEARCH_ALL.but(num_trials=8))
    assert confirmation.verdict.value == "faster"
    assert {record.state for record in study.records()} <= {"measured", "failed"}
    search = [what for what, name in runner.did if name.isdecimal()]
    assert search == ["run", "prepare", "run", *["prepare"] * 3, *["run"] * 3, *["prepare"] * 3, *["run"] * 3]


def test_an_interrupt_gives_back_what_was_asked_for(make_study, tune):
    """Ctrl-C in a trial: what compiles ahead is ended too, and both configs are asked for again."""
    study = make_study()

    def stop(event):
        if isinstance(event, TrialStarted) and event.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(study, notify=stop)
    states = [each.state for each in study.records()]
    assert states[0] == "measured"
    assert states[2] == "lost"
    assert set(states) == {"measured", "lost"}
    tune(study)
    assert study.num_recorded() >= SEARCH_ALL.num_trials


def test_a_search_that_ends_early_leaves_no_process(make_study, tune, runner, monkeypatch):
    """Where the search raises, what was started ahead is ended before the study is given up."""
    study = make_study()

    def broken(*_):
        raise SetupError("the machine is broken")

    def look(event):
        if isinstance(event, TrialEnded) and event.record.number == 2:
            monkeypatch.setattr("autotune.tuning.checks.CircuitBreaker.check", broken)

    with pytest.raises(SetupError, match="broken"):
        tune(study, notify=look)
    assert runner.did[-1] == ("drop", "")
    runner.close()
    assert [each for each in own_children() if each.status() != "zombie"] == []


@pytest.mark.fast_cases("BlockMeasured-ctrl-c", "AnswerProven-error")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SetupError("the machine is broken")], ids=["ctrl-c", "error"])
@pytest.mark.parametrize("kind", [BlockStarted, BlockMeasured, AnswerProven])
def test_nothing_is_left_of_a_block_that_is_interrupted(make_study, tune, runner, kind, error):
    """Its processes, the trials that compile beside it, and the untuned model's: all are ended, and what was measured
    counts in the next run."""
    study = make_study()
    raised = []

    def stop(event):
        if isinstance(event, kind) and not raised:
            raised.append(event)
            raise error

    with pytest.raises((KeyboardInterrupt, SetupError)):
        tune(study, notify=stop)
    rows = study.blocks
    assert {each.state for each in study.records()} <= {"measured", "failed", "lost"}
    confirmation = tune(study)
    assert confirmation.verdict.value == "faster"
    assert study.blocks[: len(rows)] == rows
    runner.close()
    assert [each for each in own_children() if each.status() != "zombie"] == []


@pytest.mark.parametrize(
    "manifest",
    [
        {"objectives": (Objective.parse("compile"),)},
        {"objectives": (Objective.parse("total:100"),)},
        {"constraints": (Constraint.parse("compile <= 10 s"),)},
        {"constraints": (Constraint.parse("compile_memory <= 4GiB"),)},
    ],
)
def test_where_compile_time_is_compared_trials_compile_alone(make_study, manifest):
    """It is longer beside another compilation."""
    text = tuple(each.text for each in manifest.get("constraints", ()))
    assert not may_compile_ahead(make_study(**{**manifest, "constraints": text}))


def test_the_number_of_jobs_follows_from_the_machine(monkeypatch):
    """One a core, as far as memory goes, and at least one."""
    monkeypatch.setattr(jobs, "num_usable_cores", lambda: 4)
    assert fitting_jobs(None) <= 4
    assert fitting_jobs(10**15) == 1
    monkeypatch.setattr(jobs, "num_usable_cores", lambda: 64)
    assert fitting_jobs(None) <= MOST_JOBS
