"""What a trial takes over from earlier ones: samples of the same program, compile caches. On real child processes."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest
from rich.console import Console

from autotune.config import Config
from autotune.measure.measurement import Failure, Measurement, Stage
from autotune.measure.objective import Objective
from autotune.measure.statistics import Verdict
from autotune.report.live import LiveDisplay
from autotune.results.export import tuned_config
from autotune.results.result import result_of
from autotune.space.load import Circumstances, load_space
from autotune.study.open import open_study
from autotune.trial.folder import TrialFolder
from autotune.trial.runner.runner import Runner
from autotune.tuning.events import BlockMeasured, ConfirmationStarted, SearchStarted, TrialEnded
from autotune.tuning.loop import Tuner
from autotune.tuning.rerun import rerun_trial
from autotune.tuning.reuse import MAX_DONORS
from tests.conftest import MODEL_FILE, QUICK, QUICK_BUDGET, ScriptedTrials, cli_command, cli_environment, with_latency

ALIASES = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  program: {doc: "https://e.org", values: [slow, fast], untuned: slow, default: fast}
  latency_ms: {doc: "https://e.org", values: [8, 2], untuned: 8, default: 2}
  mode: {doc: "https://e.org", when: {execution: compile}, values: [a, b], default: a}
forbid:
  - {if: {program: slow, latency_ms: 2}, because: the slow program is slow}
  - {if: {program: fast, latency_ms: 8}, because: the fast one is fast}
"""
"""Six configs and two programs: `mode` does nothing, and compiling does nothing either."""

ONE_PROGRAM = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  program: {doc: "https://e.org", values: [slow], default: slow}
  latency_ms: {doc: "https://e.org", values: [8], default: 8}
  mode: {doc: "https://e.org", when: {execution: compile}, values: [a, b], default: a}
"""

RUNTIME = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  compile_ms: {doc: "https://e.org", when: {execution: compile}, values: [300, 301], default: 300}
  threads: {doc: "https://e.org", when: {execution: compile}, values: [1, 2, 4], default: 1, runtime: true}
  latency_ms: {doc: "https://e.org", values: [16, 1], untuned: 16, default: 1}
forbid:
  - {if: {execution: compile, latency_ms: 16}, because: what is compiled is fast}
  - {if: {execution: eager, latency_ms: 1}, because: and nothing else is}
"""
COLD_S = 0.3

ALL = QUICK_BUDGET.model_copy(update={"num_trials": 100})


@pytest.fixture
def study_of(tmp_path, make_study):
    def make(space, **overrides):
        path = tmp_path / "own.yaml"
        path.write_text(space)
        found = load_space(path, framework="fake", circumstances=Circumstances(version="0", device="cpu"))
        return make_study(space=found, **overrides)

    return make


def tune(study, budget=ALL, notify=lambda _: None):
    with Runner("fake", study.manifest.variables, preload=True, log=study.folder / "supervisor.log") as runner:
        return Tuner(study, budget, runner, notify).run()


def up_to(num_trials):
    return QUICK_BUDGET.model_copy(update={"num_trials": num_trials})


def by_program(study):
    programs = {}
    for record in study.records():
        programs.setdefault(record.measurement.program, []).append(record)
    return programs


def aliases_of(study):
    return {each.number: each.reused_from for each in study.records()}


def search(study, budget=ALL, notify=lambda _: None):
    """Tune, and stop where the confirmation would begin."""

    def stop(event):
        notify(event)
        if isinstance(event, ConfirmationStarted):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(study, budget, stop)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a study of ALIASES was tuned to its end through the command line."""
    folder = tmp_path_factory.mktemp("aliases")
    (folder / "tiny_model.py").write_text(MODEL_FILE)
    (folder / "aliases.yaml").write_text(ALIASES)
    (folder / "budget.yaml").write_text(QUICK_BUDGET.model_dump_json(exclude={"num_trials", "limits"}))
    arguments = (
        "tune", "--model", "tiny_model.py:tiny", "--framework", "fake", "--device", "cpu", "--space", "aliases.yaml",
        "--study", "s", "--budget", "budget.yaml", "--trials", "6",
    )  # fmt: skip
    subprocess.run(cli_command(*arguments), cwd=folder, env=cli_environment(), capture_output=True, check=True)
    return folder


@pytest.fixture
def tuned(folder):
    study = open_study(folder / "studies", "s")
    yield study
    study.close()


class TestAClassIsSampledOnce:
    """Two configs that come to the same program are one config with two names."""

    def test_the_second_takes_the_first_one_s_samples(self, tuned):
        """Sampled once for each program; the second name is checked and compiled for itself, and ends there."""
        assert tuned.num_recorded() == 6, "each of them counts: it was compiled and checked"
        for records in by_program(tuned).values():
            first, *others = records
            assert len(others) == 2
            assert first.reused_from is None
            assert Stage.RUN in first.measurement.stage_s
            for each in others:
                assert each.reused_from == first.number
                assert each.state == "measured"
                assert each.measurement.samples == first.measurement.samples
                assert each.measurement.peak_memory_bytes == first.measurement.peak_memory_bytes
                assert Stage.RUN not in each.measurement.stage_s
                assert each.measurement.relative_error is not None
                assert each.measurement.first_call_s != first.measurement.first_call_s

    def test_a_class_is_one_contestant_under_its_simplest_name(self, tuned):
        """Of the fast program's three names the default takes part; the untuned model's names do not."""
        confirmation, space = tuned.confirmation, tuned.manifest.space
        assert [tuned.record(n).config for n in confirmation.contestants] == [space.untuned(), space.default()]
        assert confirmation.verdict is Verdict.FASTER
        assert tuned_config(tuned).config == space.default()

    def test_noise_floor_sentinels_and_blocks_are_sampled(self, tuned):
        """They ask how fast it is now: nothing is taken over there."""
        folders = [path.parent for path in tuned.folder.rglob("outcome.json") if "trials" not in path.parts]
        outcomes = {folder: TrialFolder(folder).read_outcome() for folder in folders}
        assert any("sentinel" in folder.name for folder in outcomes)
        assert any(folder.parent.name == "block-01" for folder in outcomes)
        assert all(each.reused_from is None for each in outcomes.values())

    def test_a_trial_run_again_is_sampled(self, tuned):
        """`run STUDY N` is there to see it for oneself."""
        alias = next(each.number for each in tuned.records() if each.reused_from == 1)
        outcome, _ = rerun_trial(tuned, alias)
        assert isinstance(outcome, Measurement)
        assert outcome.reused_from is None
        assert outcome.samples != tuned.record(alias).measurement.samples

    def test_knobs_without_effect_are_named(self, tuned):
        """By the programs of the trials."""
        effects = {each.knob: each.verdict for each in result_of(tuned).effects}
        assert effects["mode"] == effects["execution"] == "no effect"

    def test_names_of_the_untuned_model_are_never_faster(self, study_of):
        """A capture that compiles nothing is the untuned model: nothing is confirmed, and it is said why."""
        study = study_of(ONE_PROGRAM)
        events = []
        confirmation = tune(study, notify=events.append)
        assert aliases_of(study) == {0: None, 1: 0, 2: 0}
        assert confirmation.verdict is Verdict.KEEP_UNTUNED
        assert "the untuned model under another name" in confirmation.note
        assert not any(isinstance(each, ConfirmationStarted) for each in events)
        assert result_of(study).best.number == 0

    def test_a_study_that_goes_on_reuses_what_was_measured_before(self, study_of, tmp_path):
        """Programs are known from the record, whichever run measured them."""
        study = study_of(ALIASES)
        search(study, up_to(2))
        assert aliases_of(study) == {0: None, 1: None}
        study.close()
        again = open_study(tmp_path / "studies", "s")
        search(again)
        assert {again.record(number).reused_from for number in range(2, 6)} == {0, 1}

    @pytest.mark.slow
    def test_where_the_evidence_is_gone_it_is_sampled_anew(self, study_of):
        """And serves those that come after."""
        study = study_of(ALIASES)
        search(study, up_to(2))
        study.trial_folder(1).outcome_file.unlink()
        search(study)
        fast = by_program(study)["fast"]
        assert fast[1].reused_from is None
        assert Stage.RUN in fast[1].measurement.stage_s
        assert fast[2].reused_from == fast[1].number

    def test_the_leader_has_its_simplest_name(self, study_of, measurement):
        """Before the confirmation too: the fastest program was met under a name far from the default first."""
        study = study_of(RUNTIME.replace("[300, 301]", "[300, 301, 302, 303]"))
        space = study.manifest.space
        far = []
        while (asked := study.ask(1)) is not None:
            is_far, is_untuned = space.num_changes(asked.config) == 2, asked.config == space.untuned()
            if is_far or (far and not is_untuned):
                study.tell(asked, with_latency(measurement, 0.001, program="fast", compile_s=1.0))
                far += [asked.number] * is_far
            else:
                study.tell(asked, with_latency(measurement, 0.002, program="slow", compile_s=1.0))
        best = result_of(study).best
        assert best.measurement.program == "fast"
        assert best.number > far[0]
        assert space.num_changes(best.config) == 1


CONFIG = {"program": "p", "latency_ms": 2}
OTHER = {"program": "p", "latency_ms": 3}
LONGER = QUICK.model_copy(update={"min_samples": 20})
"""Long enough for the early stop to come first."""


class TestWhoseSamplesServe:
    """One earlier trial, one later one with the same program; what is in doubt is sampled anew."""

    @pytest.fixture
    def later(self, tmp_path, make_request):
        """The later trial's outcome, after `change` was done to the earlier one's outcome."""

        def run(change=lambda outcome: None, *, earlier=None, settings=OTHER, **later):
            folder = TrialFolder(tmp_path / "earlier")
            with Runner("fake", {}, preload=True, log=tmp_path / "log") as runner:
                runner.run(TrialFolder(tmp_path / "untuned"), make_request())
                runner.run(folder, make_request(CONFIG, number=7, **(earlier or {})))
                content = json.loads(folder.outcome_file.read_text())
                changed = change(content)
                folder.outcome_file.write_text(changed if isinstance(changed, str) else json.dumps(content))
                known = {"p": str(folder.outcome_file)}
                request = make_request(settings, number=8, known_programs=known, **later)
                self.earlier = folder.read_outcome()
                return runner.run(TrialFolder(tmp_path / "later"), request)

        return run

    def test_the_samples_of_a_trial_that_was_sampled(self, later):
        """The rule; its number is that of the earlier trial's own request."""
        outcome = later()
        assert outcome.reused_from == 7
        assert outcome.samples == self.earlier.samples

    @pytest.mark.parametrize(
        "change",
        [
            lambda outcome: "{",
            lambda outcome: outcome.update(program="q"),
            lambda outcome: outcome.update(reused_from=3),
            lambda outcome: outcome["samples"].update(ended_by="slower"),
            lambda outcome: outcome["samples"].update(steady=False),
            lambda outcome: outcome["samples"].update(ended_by="turns"),
            lambda outcome: outcome["environment"].update(num_cores=1000),
            lambda outcome: outcome["environment"].update(inherited={"OMP_NUM_THREADS": "7"}),
            lambda outcome: outcome["environment"]["packages"].update(torch="1.0"),
        ],
        ids=[
            "broken",
            "another program",
            "an alias",
            "early stop",
            "unsettled",
            "live",
            "cores",
            "variables",
            "packages",
        ],
    )
    def test_what_is_in_doubt_is_sampled(self, later, change):
        """Whatever is wrong with the earlier outcome, the later trial is a trial like any other."""
        outcome = later(change)
        assert outcome.reused_from is None
        assert Stage.RUN in outcome.stage_s

    def test_another_load_is_no_other_environment(self, later):
        """What else ran at the moment is not what makes two environments differ."""
        assert later(lambda outcome: outcome["environment"].update(load_1m=99.0)).reused_from == 7

    def test_an_early_stop_that_would_be_made_again_serves(self, later):
        """It lost by a rule by which the later one loses as well."""
        stopped = {"incumbent_s": 1e-4, "sampling": LONGER}
        outcome = later(earlier=stopped, **stopped)
        assert self.earlier.samples.ended_by == "slower"
        assert outcome.reused_from == 7

    def test_an_early_stop_that_would_not_be_made_again_does_not_serve(self, later):
        """The rule has changed since, or the incumbent: seven samples are not enough."""
        outcome = later(earlier={"incumbent_s": 1e-4, "sampling": LONGER}, incumbent_s=1.0)
        assert self.earlier.samples.ended_by == "slower"
        assert outcome.reused_from is None

    def test_an_unknown_program_is_sampled(self, later):
        """Another program, or a framework that does not tell."""
        assert later(settings={"program": "q", "latency_ms": 2}).reused_from is None
        assert later(settings={"latency_ms": 2}).reused_from is None

    def test_a_wrong_result_stays_one(self, later):
        """The check comes before: nobody inherits a measurement that was not earned."""
        outcome = later(settings={**OTHER, "behaviour": "wrong"})
        assert isinstance(outcome, Failure)
        assert outcome.reason == "wrong_result"

    def test_a_live_process_takes_nothing_over(self, tmp_path, make_request, later):
        """Whoever takes part in a block is timed there."""
        later()
        known = {"p": str(tmp_path / "earlier" / "outcome.json")}
        with Runner("fake", {}, preload=True, log=tmp_path / "log") as runner:
            live = runner.hold(TrialFolder(tmp_path / "live"), make_request(OTHER, known_programs=known))
            live.turn()
            outcome = live.finish()
        assert outcome.reused_from is None
        assert outcome.program == "p"


class TestCaches:
    """A compile that was paid once is not paid again, and cold figures stay cold."""

    @pytest.mark.slow
    def test_the_confirmation_starts_from_the_trial_s_cache(self, study_of):
        """The first block is warm already, the search's own figure is the cold one, and no cache is left at the end."""
        study = study_of(RUNTIME.replace("[1, 2, 4]", "[1]"))
        confirmation = tune(study)
        number = confirmation.candidate
        trial = study.record(number).measurement
        assert trial.compile_s >= COLD_S
        assert trial.diagnosis.cache_hits == 0
        for block in range(1, len(confirmation.blocks) + 1):
            outcome = TrialFolder(
                study.folder / "confirm" / f"block-{block:02d}" / f"trial-{number:04d}"
            ).read_outcome()
            assert outcome.diagnosis.cache_hits == 1
            assert outcome.compile_s != trial.compile_s
        assert not (study.folder / "caches").exists()
        assert not (study.folder / "confirm" / "cache").exists()

    def test_configs_that_differ_in_runtime_knobs_compile_once(self, study_of):
        """The second starts from a copy of the first one's cache and records its cold compile time, with its number."""
        study = study_of(RUNTIME)
        search(study)
        compiled = [each for each in study.records() if each.config["execution"] == "compile"]
        for compile_ms in (300, 301):
            first, *others = [each for each in compiled if each.config["compile_ms"] == compile_ms]
            assert len(others) == 2
            assert first.measurement.compiled_from is None
            assert first.measurement.compile_s >= COLD_S
            for each in others:
                assert each.measurement.compiled_from == first.number
                assert each.measurement.compile_s == first.measurement.compile_s
                assert each.measurement.diagnosis.cache_hits == 1
                assert each.measurement.first_call_s != first.measurement.first_call_s
                assert each.reused_from is None, "what runs differs in its runtime knobs"

    @pytest.mark.parametrize("objective", ["total:10", "compile"])
    def test_a_first_call_that_is_compared_is_each_trial_s_own(self, study_of, objective):
        """Where it is part of what is minimised no trial starts from another one's caches: it would look quick."""
        study = study_of(RUNTIME, objectives=(Objective.parse(objective),))
        tune(study, up_to(4))
        compiled = [each.measurement for each in study.records() if each.config["execution"] == "compile"]
        assert len(compiled) == 3
        assert [each.compiled_from for each in compiled] == [None] * 3
        assert all(each.first_call_s >= COLD_S for each in compiled)

    def test_a_bad_cache_is_not_the_config_s_fault(self, study_of):
        """A trial that fails on another one's caches is run again from empty ones before its config is blamed."""
        study = study_of(RUNTIME.replace("[300, 301]", "[300]").replace("[1, 2, 4]", "[1, 2]"))

        def spoil(event):
            if isinstance(event, TrialEnded) and event.record.number == 1:
                for path in (study.folder / "caches" / "0001").iterdir():
                    path.write_text("half")

        search(study, notify=spoil)
        variant = study.record(2)
        assert variant.config["threads"] == 2
        assert variant.state == "measured"
        assert variant.measurement.compiled_from is None
        assert variant.measurement.compile_s >= COLD_S

    @pytest.mark.parametrize("moment", [TrialEnded, ConfirmationStarted, BlockMeasured])
    def test_nothing_is_left_on_abort(self, study_of, moment):
        """Ctrl-C in the search, before the confirmation and in it."""
        study = study_of(RUNTIME.replace("[1, 2, 4]", "[1]").replace("[300, 301]", "[300, 100]"))

        def stop(event):
            if isinstance(event, moment) and not (moment is TrialEnded and event.record.number < 2):
                assert any((study.folder / "caches").iterdir())
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tune(study, notify=stop)
        assert not (study.folder / "caches").exists()
        assert not (study.folder / "confirm" / "cache").exists()

    @pytest.mark.slow
    def test_few_are_kept_while_it_runs(self, study_of):
        """Those of the likely finalists alone where no knob is a runtime knob: here one trial is far the fastest."""
        latencies = RUNTIME.replace("values: [16, 1]", "values: [16, 1, 4, 8]").replace("default: 1}", "default: 4}")
        study = study_of(
            latencies.replace("[300, 301]", "[300]").replace("[1, 2, 4], default: 1, runtime: true", "[1], default: 1")
        )
        kept = []

        def look(event):
            if isinstance(event, ConfirmationStarted):
                kept.extend(sorted(path.name for path in (study.folder / "caches").glob("*.whole")))

        search(study, notify=look)
        fastest = next(each.number for each in study.records() if each.config.get("latency_ms") == 1)
        assert kept == sorted(f"{number:04d}.whole" for number in {1, fastest})

    @pytest.mark.slow
    def test_donors_are_bounded(self, study_of):
        """Space with many programs and runtime knobs does not fill the disk."""
        many = ", ".join(str(1 + n) for n in range(MAX_DONORS + 6))
        study = study_of(
            RUNTIME.replace("[300, 301], default: 300", f"[{many}], default: 1").replace("1, 2, 4", "1, 2")
        )
        most = []

        def look(event):
            if isinstance(event, TrialEnded):
                most.append(len(list((study.folder / "caches").glob("*.whole"))))

        search(study, up_to(MAX_DONORS + 8), notify=look)
        # The likely finalists are kept besides: three, and the default.
        assert MAX_DONORS <= max(most) <= MAX_DONORS + 4

    @pytest.mark.slow
    def test_a_killed_run_s_cache_is_not_used(self, real_clock, study_of, tmp_path, model_file):
        """Killed with -9 while it compiles: half a cache is left. The next run clears it, and compiles from nothing."""
        space = tmp_path / "killed.yaml"
        space.write_text(RUNTIME.replace("[300, 301], default: 300", "[1500], default: 1500"))
        budget = tmp_path / "budget.yaml"
        budget.write_text(QUICK_BUDGET.model_dump_json(exclude={"num_trials", "limits"}))
        command = cli_command(
            "tune", "--model", f"{model_file}:tiny", "--framework", "fake", "--device", "cpu", "--space", str(space),
            "--study", "killed", "--budget", str(budget), "--trials", "2",
        )  # fmt: skip
        caches = tmp_path / "studies" / "killed" / "caches"
        parent = subprocess.Popen(command, cwd=tmp_path, env=cli_environment(), stderr=subprocess.DEVNULL)
        while parent.poll() is None and not [path for path in caches.glob("0001/*") if path.read_text() == "half"]:
            time.sleep(0.01)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert [path.read_text() for path in caches.glob("0001/*")] == ["half"]
        assert not list(caches.glob("*.whole"))

        study = open_study(tmp_path / "studies", "killed")
        seen = []

        def look(event):
            if isinstance(event, SearchStarted):
                seen.append(sorted(path.name for path in caches.glob("*")))

        search(study, up_to(2), notify=look)
        assert seen == [[]]
        compiled = study.records()[-1]
        assert compiled.measurement.diagnosis.cache_hits == 0
        assert compiled.measurement.compile_s >= 1.5
        assert not caches.exists()


class TestConfirmedPrograms:
    """What ran in the blocks is what the search measured, or it is said."""

    @pytest.mark.parametrize(("in_blocks", "is_noted"), [("p", False), ("q", True)])
    def test_another_program_in_the_confirmation_is_noted(self, study_of, measurement, in_blocks, is_noted):
        """A compiler that chooses otherwise in another process has not been confirmed in what it chose first."""
        study = study_of(ALIASES)
        untuned = study.manifest.space.untuned()

        def outcome_of(name, block, config):
            if config == untuned:
                return with_latency(measurement, 0.010, program="untuned")
            return with_latency(measurement, 0.005, program=in_blocks if block else "p")

        confirmation = Tuner(study, up_to(2), ScriptedTrials(outcome_of)).run()
        noted = "did not run the same program" in (confirmation.note or "")
        assert noted is is_noted


class TestReports:
    """A second name is shown as one."""

    def test_show_marks_the_trial_whose_samples_they_are(self, folder, cli):
        """In the table's column of states; knobs without effect stand in the summary."""
        shown = cli("show", "s", "--studies-dir", str(folder / "studies")).stdout
        assert shown.count("= trial 0") == 2
        assert shown.count("= trial 1") == 2
        assert "no effect   here: execution, mode" in shown

    def test_json_has_program_and_origin(self, folder, cli):
        """For scripts, beside the outcome; and what the study says about each knob."""
        document = json.loads(cli("show", "s", "--studies-dir", str(folder / "studies"), "--json").stdout)
        assert [each["reused_from"] for each in document["trials"][:2]] == [None, None]
        assert sorted(each["reused_from"] for each in document["trials"][2:]) == [0, 0, 1, 1]
        assert {each["program"] for each in document["trials"]} == {"slow", "fast"}
        verdicts = {each["knob"]: each["verdict"] for each in document["effects"]}
        assert verdicts["mode"] == "no effect"
        assert verdicts["program"] == "not compared", "it never changes without latency_ms"

    @pytest.mark.parametrize(
        ("overrides", "words"),
        [
            ({"reused_from": 4}, "the same program as trial 4"),
            ({"compiled_from": 3, "compile_s": 9.0}, "9 s by trial 3"),
        ],
    )
    def test_the_live_line_says_it(self, measurement, study_of, overrides, words):
        """As soon as the trial has ended."""
        study = study_of(ALIASES)
        asked = study.ask(1)
        study.tell(asked, measurement.model_copy(update=overrides))
        console = Console(force_terminal=True, width=200)
        with console.capture() as captured, LiveDisplay(console) as display:
            display(TrialEnded(study.record(asked.number)))
        assert words in captured.get()


def test_configs_are_told_apart_by_value(study_of):
    """The space of these tests is what they take it for."""
    configs = list(study_of(ALIASES).manifest.space.configs())
    assert len(configs) == 6
    assert configs[0] == Config({"execution": "eager", "program": "slow", "latency_ms": 8})
