"""Configs that run the same program, and compile caches that trials take over. On real child processes."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest
from rich.console import Console

from autotune.answer.export import tuned_config
from autotune.answer.result import StudyResult
from autotune.measure.measurement import Stage
from autotune.measure.objective import Objective
from autotune.measure.statistics import Verdict
from autotune.render.live import LiveDisplay
from autotune.study.folder import FolderStudies
from autotune.trial.folder import TrialFolder
from autotune.tuning.cache_store import MAX_DONORS, MAX_FASTEST
from autotune.tuning.events import BlockMeasured, BlockStarted, SearchEnded, SearchStarted, TrialEnded
from autotune.tuning.loop import Tuner
from tests.asking import ask
from tests.conftest import (
    MODEL_FILE,
    QUICK_BUDGET,
    ScriptedTrials,
    cli_command,
    cli_environment,
    fake_space,
    run_here,
    with_latency,
)
from tests.tuning.test_loop import EXHAUSTIVE, tune

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


@pytest.fixture
def study_of(make_study):
    def make(space, **overrides):
        return make_study(space=fake_space(space), **overrides)

    return make


def up_to(num_trials):
    return QUICK_BUDGET.model_copy(update={"num_trials": num_trials})


def by_program(study):
    programs = {}
    for record in study.records():
        programs.setdefault(record.measurement.program, []).append(record)
    return programs


def search(study, budget=EXHAUSTIVE, notify=lambda _: None):
    """Tune, and stop where the search ends."""

    def stop(event):
        notify(event)
        if isinstance(event, SearchEnded):
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
    tuned = run_here(folder, *arguments)
    assert tuned.returncode == 0, tuned.stderr
    return folder


@pytest.fixture
def tuned(folder):
    study = FolderStudies(folder / "studies").open("s")
    yield study
    study.close()


class TestAClassIsOneConfig:
    """Two configs that come to the same program are one config with two names."""

    def test_each_is_compiled_checked_and_sampled_itself(self, tuned):
        """Trials that ran the same program are measurements of their own."""
        assert tuned.num_recorded() == 6
        for records in by_program(tuned).values():
            assert len(records) == 3
            assert all(Stage.RUN in each.measurement.stage_s for each in records)
            assert len({each.measurement.samples for each in records}) == 3

    def test_a_class_is_one_contestant_under_its_simplest_name(self, tuned):
        """Of the fast program's three names the default takes part; the untuned model's names do not."""
        confirmation, space = tuned.confirmation, tuned.manifest.space
        assert [tuned.record(n).config for n in confirmation.contestants] == [space.untuned(), space.default()]
        assert confirmation.verdict is Verdict.FASTER
        assert tuned_config(tuned).config == space.default()

    def test_names_of_the_untuned_model_are_never_faster(self, study_of):
        """A capture that compiles nothing is the untuned model: nothing is confirmed, and it is said why."""
        study = study_of(ONE_PROGRAM)
        events = []
        confirmation = tune(study, notify=events.append)
        assert confirmation.verdict is Verdict.KEEP_UNTUNED
        assert "the untuned model under another name" in confirmation.note
        assert not any(isinstance(each, BlockStarted) for each in events)
        assert StudyResult(study).best.number == 0

    def test_the_leader_has_its_simplest_name(self, study_of, measurement):
        """Before the confirmation too: the fastest program was met under a name far from the default first."""
        study = study_of(RUNTIME.replace("[300, 301]", "[300, 301, 302, 303]"))
        space = study.manifest.space
        far = []
        while (asked := ask(study, 1)) is not None:
            is_far, is_untuned = space.simplicity(asked.config)[0] == 2, asked.config == space.untuned()
            if is_far or (far and not is_untuned):
                study.tell(asked, with_latency(measurement, 0.001, program="fast", compile_s=1.0))
                far += [asked.number] * is_far
            else:
                study.tell(asked, with_latency(measurement, 0.002, program="slow", compile_s=1.0))
        best = StudyResult(study).best
        assert best.measurement.program == "fast"
        assert best.number > far[0]
        assert space.simplicity(best.config)[0] == 1


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

    @pytest.mark.parametrize("moment", [TrialEnded, BlockStarted, BlockMeasured])
    def test_nothing_is_left_on_abort(self, study_of, moment):
        """Ctrl-C in the search, as a block starts and when it is measured."""
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
        """Where no knob is a runtime knob those of the fastest trials; never the untuned model's."""
        latencies = RUNTIME.replace("values: [16, 1]", "values: [16, 1, 4, 8]").replace("default: 1}", "default: 4}")
        study = study_of(
            latencies.replace("[300, 301]", "[300]").replace("[1, 2, 4], default: 1, runtime: true", "[1], default: 1")
        )
        kept = []

        def look(event):
            if isinstance(event, SearchEnded):
                kept.extend(sorted(path.name for path in (study.folder / "caches").glob("*.whole")))

        search(study, notify=look)
        fastest = next(each.number for each in study.records() if each.config.get("latency_ms") == 1)
        assert {"0001.whole", f"{fastest:04d}.whole"} <= set(kept)
        assert "0000.whole" not in kept
        assert len(kept) <= MAX_FASTEST + 1

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
        # The fastest are kept besides: blocks may begin with any of them.
        assert MAX_DONORS <= max(most) <= MAX_DONORS + MAX_FASTEST

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

        study = FolderStudies(tmp_path / "studies").open("killed")
        seen = []

        def look(event):
            if isinstance(event, SearchStarted):
                # Kernels that trials share are content-addressed, and stay.
                names = (path.name for path in caches.glob("*"))
                seen.append(sorted(name for name in names if not name.startswith("kernels-")))

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

    def test_the_live_line_says_whose_cache_it_was(self, measurement, study_of):
        """As soon as the trial has ended."""
        study = study_of(ALIASES)
        asked = ask(study, 1)
        study.tell(asked, measurement.model_copy(update={"compiled_from": 3, "compile_s": 9.0}))
        console = Console(force_terminal=True, width=200)
        with console.capture() as captured, LiveDisplay(console) as display:
            display(TrialEnded(study.record(asked.number)))
        assert "9 s by trial 3" in captured.get()
