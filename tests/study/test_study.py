"""A study on disk: what is asked, how outcomes are told, and what a damaged or foreign database gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from wsgiref.util import setup_testing_defaults

import optuna
import psutil
import pytest
from optuna.trial import TrialState

from autotune.config import Config
from autotune.errors import InputError, StoreError
from autotune.measure.constraint import Constraint
from autotune.measure.measurement import Failure, Reason, Stage
from autotune.measure.objective import Objective
from autotune.study.folder import FolderStudies
from autotune.study.manifest import read_manifest
from autotune.study.records import StopReason
from autotune.study.stored_trials import Lease
from tests.asking import ask, sampler_of
from tests.conftest import REPOSITORY, SPACE_FILE, fake_space, reopened, with_latency


def failure(reason: Reason = Reason.COMPILE_ERROR) -> Failure:
    return Failure(reason=reason, stage=Stage.COMPILE, error="no")


def ask_all(study, outcome_of, limit=100):
    asked = []
    for _ in range(limit):
        each = ask(study)
        if each is None:
            break
        asked.append(each)
        study.tell(each, outcome_of(each.config))
    return asked


def optuna_trials(study):
    return optuna.load_study(study_name=study.name, storage=f"sqlite:///{study.folder / 'study.db'}").trials


def test_untuned_then_default_then_every_other_config_once(make_study, measurement):
    """Trial 0 is the untuned model, trial 1 the default compile; a small space is exhausted without a repeat."""
    study = make_study()
    asked = ask_all(study, lambda _: measurement)
    configs = [each.config for each in asked]
    assert configs[:2] == [study.manifest.space.untuned(), study.manifest.space.default()]
    assert len(set(configs)) == len(configs) == study.manifest.space.num_configs == 15
    assert ask(study) is None


def test_a_configs_failure_is_told_as_a_finite_penalty_and_a_violated_constraint(make_study, measurement):
    """Optuna learns from a failing config: COMPLETE, the worst value so far, constraint `ok` violated; never FAIL."""
    study = make_study(constraints=("compile <= 60s",))
    outcomes = iter([with_latency(measurement, 0.1), with_latency(measurement, 0.3), failure()])
    ask_all(study, lambda _: next(outcomes), limit=3)
    measured, _, failed = optuna_trials(study)
    assert (failed.state, failed.value) == (TrialState.COMPLETE, pytest.approx(0.3))
    assert failed.constraints == {"ok": 1.0, "compile <= 60s": 0.0}
    assert measured.constraints["ok"] == -1.0
    assert measured.constraints.keys() == failed.constraints.keys()


def test_a_failure_of_the_setup_is_told_as_fail_and_asked_again_once(make_study):
    """What the config did not cause is retried, and not for ever."""
    study = make_study()
    asked = ask_all(study, lambda _: failure(Reason.SETUP), limit=3)
    assert asked[0].config == asked[1].config != asked[2].config
    assert optuna_trials(study)[0].state is TrialState.FAIL
    assert study.num_recorded() == 0


def test_one_user_attribute_holds_the_whole_outcome(make_study, measurement):
    """The record in SQLite gives back the very outcome that was told, every sample included."""
    study = make_study()
    ask_all(study, lambda _: measurement, limit=1)
    assert study.records()[0].outcome == measurement
    assert set(optuna_trials(study)[0].user_attrs) == {"lease", "result"}


def test_an_infeasible_measurement_says_by_how_much(make_study, measurement):
    """A missed constraint makes the trial `infeasible`, with the amount, not a failure; Optuna hears the share."""
    study = make_study(constraints=("latency <= 200ms", "graph_breaks == 0", "throughput >= 1"))
    ask_all(study, lambda _: with_latency(measurement, 0.5), limit=1)
    record = study.records()[0]
    assert record.state == "infeasible"
    assert {name: miss.amount for name, miss in record.violations.items()} == {"latency <= 200ms": pytest.approx(0.3)}
    assert record.missed_share == pytest.approx(1.5)
    assert record.counts
    told = optuna_trials(study)[0].constraints
    assert told == {
        "ok": -1.0, "latency <= 200ms": pytest.approx(1.5), "graph_breaks == 0": 0.0,
        "throughput >= 1": pytest.approx(1 - measurement.signature.items_per_call / 0.5),
    }  # fmt: skip


def test_a_quantity_that_is_unknown_counts_as_missed(make_study, measurement):
    """What the framework does not tell keeps no promise."""
    study = make_study(constraints=("peak_memory <= 1GiB",))
    ask_all(study, lambda _: with_latency(measurement, 0.5, peak_memory_bytes=None), limit=1)
    record = study.records()[0]
    assert (record.state, record.violations["peak_memory <= 1GiB"].amount) == ("infeasible", None)
    assert optuna_trials(study)[0].constraints["peak_memory <= 1GiB"] == 1


class TestSeveralObjectives:
    """Studies of an earlier release may have them: one value each, the first being the verdict's."""

    @pytest.fixture
    def study(self, make_study):
        return make_study(objectives=(Objective(), Objective.parse("memory")))

    def test_each_is_told(self, study, measurement):
        """Optuna has a direction for each; a failure, and what cannot be measured, is as bad as the worst so far."""
        peaks = {0.1: 2**20, 0.3: 2**19, 0.2: None}
        outcomes = iter(
            [*(with_latency(measurement, s, peak_memory_bytes=peak) for s, peak in peaks.items()), failure()]
        )
        ask_all(study, lambda _: next(outcomes), limit=4)
        expected = [[0.1, 2**20], [0.3, 2**19], [0.2, 2**20], [0.3, 2**20]]
        assert [each.values for each in optuna_trials(study)] == [pytest.approx(each) for each in expected]

    def test_it_goes_on_where_it_stopped(self, study, measurement, tmp_path):
        """Opened anew, it asks the same question and goes on; with other objectives it is another question."""
        ask_all(study, lambda _: measurement, limit=3)
        again = reopened(study)
        assert len(ask_all(again, lambda _: measurement)) == 12
        other = study.manifest.model_copy(update={"objectives": (Objective(),)})
        with pytest.raises(StoreError, match="objective: latency, memory before, latency now"):
            FolderStudies(tmp_path / "studies").open_or_create(other)


def cut_off():
    return Failure(reason=Reason.OUT_OF_TIME, stage=Stage.COMPILE, error="stopped: the run's time was used up")


def test_a_trial_that_the_end_of_the_time_cut_off_is_asked_again_and_again(make_study):
    """It says nothing about its config, however often it happens; and it counts as no trial."""
    study = make_study()
    asked = ask_all(study, lambda _: cut_off(), limit=4)
    assert len({each.config for each in asked}) == 1
    assert [each.state for each in optuna_trials(study)] == [TrialState.FAIL] * 4
    assert study.num_recorded() == 0
    assert study.untuned_record() is None


def test_why_a_search_ended_is_kept(make_study):
    """A noun on record, until the next search begins."""
    study = make_study()
    assert study.stop_reason is None
    study.stop_reason = StopReason.TIME
    again = reopened(study)
    assert again.stop_reason is StopReason.TIME
    again.stop_reason = None
    assert again.stop_reason is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"schema": 3, "others": [{"framework_version": "2"}]}, "key others: a study of several frameworks"),
        ({"schema": 1}, "key schema: 1 is older than 2, the oldest that this autotune reads"),
        ({"schema": 9, "autotune_version": "7.1"}, "key schema: 9 is newer than 4"),
        ({"zeal": 3, "autotune_version": "7.1"}, r"key zeal: unknown key \(written by autotune 7.1, schema 4; this is"),
        ({"schema": "4"}, "key schema: Input should be a valid integer"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_one_sentence(make_manifest, tmp_path, changes, sentence):
    """It names the key, and what wrote it where a key is not known."""
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(make_manifest().model_dump_json(by_alias=True)) | changes))
    with pytest.raises(StoreError, match=sentence):
        read_manifest(path)


def test_a_running_trial_of_a_dead_process_is_reaped_and_asked_again(make_study, tmp_path):
    """The lease of a process that is gone is over at once, for whoever only looks, too; its config is the next one
    asked."""
    make_study().close()
    script = (
        "import sys, os; from pathlib import Path; from autotune.study.folder import FolderStudies\n"
        "study = FolderStudies(Path(sys.argv[1])).open('s'); space = study.manifest.space\n"
        "study.ask(space.untuned(), 60); study.ask(space.default(), 60); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "studies")], cwd=REPOSITORY, check=False)
    study = FolderStudies(tmp_path / "studies").open("s")
    assert [each.state for each in study.records()] == ["lost", "lost"]
    with study.writing() as given_back:
        assert given_back == [0, 1]
        assert ask(study).config == study.manifest.space.untuned()
    assert [each.state for each in study.records()] == ["lost", "lost", "running"]


def test_a_living_process_keeps_its_lease():
    """Our own lease is alive; one of another boot, a reused process number or a passed deadline elsewhere is dead."""
    lease = Lease.of_this_process(60)
    assert not lease.is_dead()
    assert lease.model_copy(update={"boot_id": "another"}).is_dead()
    assert lease.model_copy(update={"pid_started": lease.pid_started - 100}).is_dead()
    elsewhere = lease.model_copy(update={"host": "elsewhere"})
    assert not elsewhere.is_dead()
    assert elsewhere.model_copy(update={"deadline": time.time() - 1}).is_dead()


def test_a_zombie_keeps_no_lease():
    """A killed process whose parent has not asked for its status, as the first process of a container may never do."""
    child = subprocess.Popen(["sleep", "60"])
    lease = Lease.of_this_process(60).model_copy(
        update={"pid": child.pid, "pid_started": psutil.Process(child.pid).create_time()}
    )
    assert not lease.is_dead()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert lease.is_dead()
    child.wait()


def test_one_tuner_at_a_time(make_study, tmp_path):
    """A second process that wants to write is refused with the first one's number, and reading goes on."""
    study = make_study()
    script = (
        "import sys; from pathlib import Path; from autotune.study.folder import FolderStudies\n"
        "study = FolderStudies(Path(sys.argv[1])).open('s'); print(len(study.records()))\n"
        "with study.writing(): pass"
    )
    with study.writing():
        child = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "studies")],
            cwd=REPOSITORY, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert child.stdout.strip() == "0"
    assert "is being tuned by another process (pid" in child.stderr


class TestWhatIsTried:
    """Which configs are asked next, by the user's and other parts' wishes."""

    def asked_next(self, study, measurement, number):
        return [each.config for each in ask_all(study, lambda _: measurement, limit=number)]

    def others(self, study):
        """Configs beside the untuned and the default, in the file's order."""
        return list(study.manifest.space.configs())[2:]

    def test_queued_configs_come_next_in_order(self, make_study, measurement):
        """After the untuned and the default the queue is worked off, what was queued first first."""
        study = make_study()
        wished = [self.others(study)[number] for number in (7, 2, 9)]
        assert study.enqueue(wished[:2]) == wished[:2]
        assert study.enqueue(wished[2:]) == wished[2:]
        assert self.asked_next(study, measurement, 5)[2:] == wished

    def test_a_resumed_study_knows_its_queue(self, make_study, measurement):
        """The queue is kept with the study; what was tried of it is not tried again."""
        study = make_study()
        wished = self.others(study)[4:7]
        study.enqueue(wished)
        first = self.asked_next(study, measurement, 3)
        again = reopened(study)
        assert first[2:] + self.asked_next(again, measurement, 2) == wished
        assert len(set(self.asked_next(again, measurement, 99))) == 15 - 5

    def test_what_cannot_be_tried_is_not_queued(self, make_study, measurement):
        """A config of another space, one tried already and one queued before are left out, and the answer says so."""
        study = make_study()
        self.asked_next(study, measurement, 1)
        fifth, *_ = self.others(study)[4:]
        foreign = [
            Config({"execution": "eager"}),
            Config({**fifth.root, "latency_ms": 7}),
            Config({**fifth.root, "x": 1}),
        ]
        assert study.enqueue([study.manifest.space.untuned(), *foreign, fifth, fifth]) == [fifth]
        assert study.enqueue([fifth]) == []
        assert study.queue == [fifth]

    def test_excluded_configs_are_never_asked(self, make_study, measurement):
        """Neither by the sampler nor from the queue; several predicates add up; the untuned model is always tried."""
        study = make_study()
        study.enqueue(self.others(study))
        sampler_of(study).exclude(
            lambda config: config.get("behaviour") == "wrong", lambda config: config["latency_ms"] == 8
        )
        asked = self.asked_next(study, measurement, 99)
        assert asked[0] == study.manifest.space.untuned()
        assert {config["latency_ms"] for config in asked[1:]} == {6, 2}
        assert not any(config.get("behaviour") == "wrong" for config in asked)
        assert len(asked) == 1 + 2 + 3 * 2

    def test_the_outlook_knows_the_constraints(self, make_study, measurement):
        """No forecast as long as no trial keeps them: there is nothing to improve on."""
        kept, missed = make_study("kept", constraints=("latency <= 1s",)), make_study(constraints=("latency <= 1us",))
        for study in (kept, missed):
            self.asked_next(study, measurement, 6)
        assert sampler_of(missed).forecast() is None
        assert sampler_of(kept).forecast().num_untried == 9


@pytest.fixture
def begun(make_study, measurement):
    """A study with one trial."""
    ask_all(make_study(), lambda _: measurement, limit=1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tolerance": 0.5}, "tolerance: 0.001 before, 0.5 now"),
        ({"objectives": (Objective.parse("memory"),)}, "objective: latency before, memory now"),
        ({"constraints": (Constraint.parse("throughput >= 9"),)}, "constraint added: throughput >= 9"),
        ({"reference_precision": "float64"}, "reference: model before, float64 now"),
        ({"framework_version": "9"}, "framework: fake 0 before, fake 9 now"),
        ({"variables": {"A": "1"}}, "environment variable added: A=1"),
        ({"space": fake_space(SPACE_FILE.replace("[8, 6, 2]", "[8, 6, 2, 1]"))}, "search space"),
    ],
)
def test_a_changed_question_under_an_old_name_is_refused(begun, make_manifest, tmp_path, change, words):
    """The refusal says what differs and the two ways out; what was recorded stays."""
    with pytest.raises(StoreError, match="was created with different settings") as caught:
        FolderStudies(tmp_path / "studies").open_or_create(make_manifest(**change))
    assert words in str(caught.value)
    assert "study='s-2'" in caught.value.tip
    assert len(FolderStudies(tmp_path / "studies").open("s").records()) == 1


def test_a_study_without_any_measurement_begins_anew(make_study, make_manifest, tmp_path):
    """A mistake in the model file does not take the name away for ever. Of two starts at once the second is told."""
    old = make_study()
    ask_all(old, lambda _: failure(Reason.SETUP), limit=1)
    study = FolderStudies(tmp_path / "studies").open_or_create(make_manifest(tolerance=0.5))
    assert study.records() == []
    with pytest.raises(StoreError, match="was replaced by another process"), old.writing():
        pass


def test_the_same_question_goes_on(make_study, make_manifest, measurement, tmp_path):
    """The same name and question find the recorded trials."""
    ask_all(make_study(), lambda _: measurement, limit=2)
    assert len(FolderStudies(tmp_path / "studies").open_or_create(make_manifest(created="later")).records()) == 2


def test_a_result_that_a_dead_run_had_recorded_is_kept(make_study, measurement):
    """Killed between writing the result and finishing the trial: the next start finishes it, nothing runs twice."""
    study = make_study()
    asked = ask(study)
    asked.handle.set_user_attr("lease", {**Lease.of_this_process(60).model_dump(), "boot_id": "another"})
    asked.handle.set_constraint("ok", -1.0)
    asked.handle.set_user_attr("result", {"outcome": measurement.model_dump(mode="json")})
    with study.writing() as given_back:
        assert given_back == []
        assert ask(study).config == study.manifest.space.default()
    assert study.records()[0].state == "measured"
    assert optuna_trials(study)[0].state is TrialState.COMPLETE


def test_reaping_clears_what_the_dead_run_left(make_study):
    """Compiler processes whose supervisor was killed too, caches and scratch are gone at the next start."""
    study = make_study()
    asked = ask(study)
    asked.handle.set_user_attr("lease", {**Lease.of_this_process(60).model_dump(), "boot_id": "another"})
    folder = study.trial_folder(asked.number)
    (folder.path / "cache").mkdir(parents=True)
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={"AUTOTUNE_TRIAL": str(folder.path.resolve())}, start_new_session=True,
    )  # fmt: skip
    with study.writing():
        assert left.wait(timeout=10) == -9
    assert not (folder.path / "cache").exists()


def test_a_study_in_use_is_not_begun_anew(make_study, make_manifest, tmp_path):
    """A study that another process holds is never replaced, not even before its first measurement."""
    study = make_study()
    with study.writing(), pytest.raises(StoreError, match="is being tuned by another process"):
        FolderStudies(tmp_path / "studies").open_or_create(make_manifest())
    assert study.folder.exists()


@pytest.mark.parametrize("folder", ["a?b=1", "a%41b", "a#b", "sp ace", "ümlaut", "a{b}c"])
def test_any_folder_will_do(make_manifest, measurement, tmp_path, folder):
    """A path may hold what a URL gives another meaning."""
    study = FolderStudies(tmp_path / folder).create(make_manifest())
    ask_all(study, lambda _: measurement, limit=1)
    study.close()
    assert (tmp_path / folder / "s" / "study.db").stat().st_size > 0
    assert FolderStudies(tmp_path / folder).open("s").num_recorded() == 1


def test_a_database_without_a_manifest_is_left_alone(make_study, make_manifest, tmp_path):
    """A folder that holds someone's database and no manifest is refused, and not written into."""
    database = tmp_path / "studies" / "s" / "study.db"
    database.parent.mkdir(parents=True)
    database.write_bytes(b"precious")
    with pytest.raises(StoreError, match=r"without a manifest\.json"):
        FolderStudies(tmp_path / "studies").open_or_create(make_manifest())
    assert database.read_bytes() == b"precious"


def test_an_unknown_study_lists_those_there_are(make_study, tmp_path):
    """The sentence names what exists."""
    make_study("known")
    with pytest.raises(InputError, match="no study 'other'") as caught:
        FolderStudies(tmp_path / "studies").open("other")
    assert "known" in caught.value.tip
    assert FolderStudies(tmp_path / "studies").names() == ["known"]


def test_a_finished_trial_is_read_from_the_database_once(make_study, measurement):
    """Else a search would read all its trials again for each new one. Trials still under way are read each time."""
    study = make_study()
    ask_all(study, lambda _: measurement, limit=3)
    running = ask(study)
    before = study._trials()
    study.tell(running, measurement)
    after = study._trials()
    assert [each.state for each in after] == [TrialState.COMPLETE] * 4
    assert [a is b for a, b in zip(before, after, strict=True)] == [True, True, True, False]


def test_what_another_process_wrote_is_seen(make_study, measurement, tmp_path):
    """A trial that was running when it was read is read again; a new one is added."""
    study = make_study()
    running = ask(study)
    other = FolderStudies(tmp_path / "studies").open("s")
    assert [each.state for each in other.records()] == ["running"]
    study.tell(running, measurement)
    ask_all(study, lambda _: measurement, limit=1)
    assert [each.state for each in other.records()] == ["measured"] * 2
    other.close()


def test_the_dashboard_opens_the_file(make_study, measurement):
    """`optuna-dashboard` reads a study as it stands on disk, its trials and its user attributes."""
    dashboard = pytest.importorskip("optuna_dashboard")
    study = make_study()
    ask_all(study, lambda _: measurement, limit=2)
    app = dashboard.wsgi(f"sqlite:///{study.folder / 'study.db'}")

    def get(path):
        request = {"PATH_INFO": path}
        setup_testing_defaults(request)
        status = []
        body = b"".join(app(request, lambda code, *_: status.append(code)))
        assert status == ["200 OK"]
        return json.loads(body)

    (listed,) = get("/api/studies")["study_summaries"]
    assert listed["study_name"] == "s"
    assert [each["state"] for each in get(f"/api/studies/{listed['study_id']}")["trials"]] == ["Complete", "Complete"]
