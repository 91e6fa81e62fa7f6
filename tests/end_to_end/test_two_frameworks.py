"""One study over two frameworks, by the two that are fake: real processes, the real command line, one answer."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

import autotune
from autotune.answer.export import export, tuned_config
from autotune.bench.runners import Runners
from autotune.errors import HarnessError, InputError, StoreError
from autotune.measure.measurement import Failure, Reason
from autotune.planning.manifest import require_same_question
from autotune.space.combined import join_spaces
from autotune.space.load import Circumstances, load_space
from autotune.study.manifest import Target
from autotune.trial.folder import TrialFolder
from autotune.tuned.tuned_config import load_tuned
from autotune.tuning.loop import Tuner
from autotune.verification.comparison import measure, paired_run_of_trials
from autotune.verification.verify import paired_run_of_configs, paired_run_with_untuned, verify
from autotune.workload.workload import Workload
from tests.conftest import QUICK_BUDGET, REPOSITORY, ScriptedLive, ScriptedTrials, own_children, with_latency

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


@pytest.fixture
def tune_both(cli, frameworks, budget_file):
    """`tune` over both, the base being `fake`; further arguments are appended."""

    def run(*arguments):
        return cli(
            "tune", "--framework", "fake+sham", "--device", "cpu", "--study", "s", "--budget", str(budget_file),
            "--model", "sham=sham_model.py:tiny", "--model", "fake=fake_model.py:tiny",
            "--space", "sham.yaml", "--space", "fake.yaml", *arguments,
        )  # fmt: skip

    return run


@pytest.fixture
def target(frameworks, tmp_path):
    """What is tuned in a framework, as `tune` would find it."""

    def make(name):
        reference = f"{tmp_path / f'{name}_model.py'}:tiny"
        return Target(
            workload=Workload(
                model=reference, reference=reference, framework=name, device="cpu", search_path=str(tmp_path)
            ),
            framework_version="0",
            space_file=str(tmp_path / f"{name}.yaml"),
        )

    return make


@pytest.fixture
def make_both(make_study, target, tmp_path):
    """A study of both frameworks."""

    def make(**overrides):
        here = Circumstances(version="0", device="cpu")
        spaces = [load_space(tmp_path / f"{name}.yaml", framework=name, circumstances=here) for name in LATENCY_MS]
        return make_study(
            workload=target("fake").workload, others=(target("sham"),), space=join_spaces(spaces), **overrides
        )

    return make


def document_of(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


JOB = """
import sys, autotune
tuned = autotune.load("best.yaml")
print(tuned.apply(lambda x: x + 1)(1), tuned.answer.framework)
"""


def test_one_study_one_answer(tune_both, cli, tmp_path, budget_file):
    """The faster framework wins over the base's untuned model, and the whole way to a job and back works."""
    document = document_of(tune_both("--trials", "5", "--json"))
    assert (document["framework"], document["frameworks"]) == ("fake+sham", {"fake": "0", "sham": "0"})
    trials = document["trials"]
    assert [each["config"]["framework"] for each in trials[:4]] == ["fake", "fake", "sham", "sham"]
    assert [each["state"] for each in trials] == ["measured"] * 5
    assert trials[2]["outcome"]["relative_error"] == 0, "the other untuned model is compared, it is no reference"
    assert document["verdict"] == "faster"
    assert document["best"]["config"]["framework"] == "sham"
    assert document["best"]["config"]["sham.latency_ms"] == 15
    assert document["baseline"]["config"]["framework"] == "fake"
    assert document["confirmation"]["contestants"][0] == 0, "all are compared with the base's untuned model"

    assert cli("export", "s", "-o", "best.yaml").returncode == 0
    exported = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert exported["framework"] == "sham"
    assert exported["config"] == {"execution": document["best"]["config"]["sham.execution"], "latency_ms": 15}
    assert exported["untuned"] == {"execution": "eager", "latency_ms": 40}
    assert exported["workload"]["model"] == "sham_model.py:tiny"
    assert exported["baseline"]["framework"] == "fake"
    assert exported["baseline"]["config"] == {"execution": "eager", "latency_ms": 60}
    job = subprocess.run(
        [sys.executable, "-c", JOB], cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert job.stdout.split() == ["2", "sham"]

    shown = cli("show", "s").stdout
    assert "framework=sham latency_ms=15" in shown
    assert "fake        trial" in shown, "the fastest of the framework that lost"
    (row,) = json.loads(cli("studies", "--json").stdout)
    assert row["framework"] == "fake+sham"
    verified = document_of(cli("verify", "best.yaml", "--budget", str(budget_file), "--json"))
    assert verified["outcome"] == "holds"
    again = cli("run", "s", "3")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "SHAM=1" in again.stdout, "the command is that of the trial's framework"


class TestAfterwards:
    """What can be done with a study of two frameworks, and with its answer; by figures alone."""

    @pytest.fixture
    def study(self, make_both, measurement):
        """The four anchors, tried by scripted processes that take as long as the config says."""
        study = make_both()
        Tuner(study, QUICK_BUDGET.model_copy(update={"num_trials": 4}), scripted(measurement)).run()
        yield study
        study.close()

    @pytest.fixture
    def exported(self, study, tmp_path):
        """The answer, which is the second framework's."""
        export(study, tmp_path / "best.yaml")
        return tmp_path / "best.yaml"

    def test_a_verification_is_against_the_base(self, exported, tmp_path, measurement):
        """The promise was made against the other framework's untuned model; so is the comparison of today."""
        tuned = load_tuned(exported)
        duel = paired_run_with_untuned(tuned, tmp_path / "duel")
        assert [each.workload.framework for each in (duel.untuned, duel.first, duel.second)] == ["fake", "fake", "sham"]
        assert duel.first == duel.untuned
        found = verify(tuned, duel, scripted(measurement), QUICK_BUDGET, lambda *_: None)
        assert (found.outcome, found.result.values) == ("holds", (60e-3, 15e-3))

    @pytest.mark.parametrize("framework", ["fake", "sham"])
    def test_a_verification_of_another_model(self, exported, tmp_path, measurement, framework):
        """Either framework's model must look as it did when it was tuned."""
        other = measurement.signature.model_copy(update={"num_parameters": 7})

        def trials(request_framework):
            return {"signature": other} if request_framework == framework else {}

        duel = paired_run_with_untuned(load_tuned(exported), tmp_path / "duel")
        with pytest.raises(HarnessError, match=f"{framework}_model.py:tiny is not the model that was tuned"):
            measure(duel, scripted(measurement, trials), QUICK_BUDGET)

    def test_two_trials_of_two_frameworks(self, study, tmp_path, measurement):
        """`compare` runs each in its own framework, both against the base's outputs."""
        duel = paired_run_of_trials(study, 1, 3, tmp_path / "duel")
        assert [each.workload.framework for each in (duel.untuned, duel.first, duel.second)] == ["fake", "fake", "sham"]
        assert measure(duel, scripted(measurement), QUICK_BUDGET).values == (56e-3, 15e-3)

    def test_two_answers_of_two_frameworks(self, exported, tmp_path, measurement):
        """Exports are comparable across frameworks, though each has its own function for the model."""
        content = yaml.safe_load(exported.read_text())
        content.update(framework="fake", config={"execution": "compile", "latency_ms": 56}, baseline=None)
        content["workload"]["model"] = f"{tmp_path / 'fake_model.py'}:tiny"
        (tmp_path / "other.yaml").write_text(yaml.safe_dump(content))
        answers = (load_tuned(tmp_path / "other.yaml"), load_tuned(exported))
        duel = paired_run_of_configs(*answers, tmp_path / "duel")
        assert measure(duel, scripted(measurement), QUICK_BUDGET).values == (56e-3, 15e-3)

    @pytest.mark.torch
    def test_the_sentence_for_a_model_of_the_wrong_framework(self, exported):
        """It names the framework that the answer is for, and the one that it was faster than."""
        pytest.importorskip("torch")
        content = yaml.safe_load(exported.read_text())
        exported.write_text(yaml.safe_dump({**content, "framework": "torch"}))
        with pytest.raises(
            InputError, match=r"tuned for torch, which was faster than fake; it was to be applied to a str"
        ):
            autotune.load(exported).apply("no model", on_mismatch="raise")

    def test_where_the_base_wins_the_answer_is_an_ordinary_one(self, make_both, measurement):
        """Nothing of the other framework is in the export; and an untuned answer leaves any model as it is."""
        study = make_both()
        budget = QUICK_BUDGET.model_copy(update={"num_trials": 4})
        Tuner(study, budget, scripted(measurement, slower_ms={"sham": 100})).run()
        tuned = tuned_config(study)
        study.close()
        assert (tuned.framework, tuned.baseline) == ("fake", None)
        assert tuned.config.root == {"execution": "compile", "latency_ms": 56}

    def test_the_untuned_model_of_the_other_framework_can_win(self, make_both, measurement):
        """Faster than the base as it is: that framework, nothing compiled, is an answer like any other."""
        study = make_both()
        budget = QUICK_BUDGET.model_copy(update={"num_trials": 3})
        Tuner(study, budget, scripted(measurement)).run()
        tuned = tuned_config(study)
        study.close()
        assert (tuned.framework, tuned.is_untuned) == ("sham", False)
        assert tuned.config == tuned.untuned

    def test_a_change_in_either_framework_is_noticed(self, study, tmp_path):
        """`resume` asks about the second framework's model file too."""
        manifest = as_planned(study.manifest)
        require_same_question(manifest)
        with (tmp_path / "sham_model.py").open("a") as file:
            file.write("# another file\n")
        with pytest.raises(StoreError, match="was created with different settings: the model's source file"):
            require_same_question(manifest)


def as_planned(manifest):
    """The manifest with the digests of the model files, which a plan writes down."""

    def known(workload):
        path = Path(workload.reference.rpartition(":")[0])
        return workload.model_copy(update={"source_sha256": hashlib.sha256(path.read_bytes()).hexdigest()})

    others = tuple(each.model_copy(update={"workload": known(each.workload)}) for each in manifest.others)
    return manifest.model_copy(update={"workload": known(manifest.workload), "others": others})


class PlainTrials(ScriptedTrials):
    """Scripted processes that see the framework as well: `outcome_of(framework, name, config)`."""

    def run(self, folder, request, **_):
        return self.outcome_of(request.workload.framework, folder.path.name, request.config)

    def hold(self, folder, request, **_):
        return ScriptedLive(self.run(folder, request))


def scripted(measurement, overrides=lambda framework: {}, slower_ms=None):
    """Processes that take as long as their config says (and in a framework longer, if told so)."""

    def outcome_of(framework, name, config):
        latency_s = (config["latency_ms"] + (slower_ms or {}).get(framework, 0)) / 1e3
        return with_latency(measurement, latency_s, **overrides(framework))

    return PlainTrials(outcome_of)


class TestCounterpart:
    """The model in the second framework must compute what it computes in the first."""

    def test_another_function_stops_the_study(self, tune_both, frameworks):
        """No config is blamed for it: the study stops after the second framework's untuned model."""
        frameworks(error=1.0)
        result = tune_both("--trials", "8")
        assert result.returncode == 2
        assert "the untuned model in sham does not give what it gives in fake: " in result.stderr
        assert "on input 1 of 3, output 1: " in result.stderr
        assert "same weights and inputs" in result.stderr

    @pytest.mark.slow
    def test_other_numbers_of_inputs_are_a_sentence(self, tune_both, tmp_path):
        """One author gives further inputs to compare on, the other does not: the outputs cannot be paired."""
        path = tmp_path / "sham_model.py"
        path.write_text(path.read_text().replace("size=(rows, 8))", "size=(rows, 8)), [np.ones((2, 8))] * 3"))
        result = tune_both("--trials", "8")
        assert result.returncode == 2
        assert "4 sets of inputs instead of 2" in result.stderr

    def test_one_that_crashes_is_a_result(self, make_both, measurement):
        """Only another output is a reason to stop: a framework that fails in another way loses, and no more."""

        def outcome_of(framework, name, config):
            if framework == "sham":
                return Failure(reason=Reason.CRASH, stage="compile", error="died by SIGSEGV", evidence="")
            return with_latency(measurement, config["latency_ms"] / 1e3)

        study = make_both()
        Tuner(study, QUICK_BUDGET.model_copy(update={"num_trials": 5}), PlainTrials(outcome_of)).run()
        states = [each.state for each in study.records()]
        study.close()
        assert states[:4] == ["measured", "measured", "failed", "failed"]

    def test_one_that_changed_is_found_when_the_study_goes_on(self, make_both, measurement):
        """Its imports or weights are no part of its file: it is run again before more of its configs are tried."""
        changed = False

        def outcome_of(framework, name, config):
            if (framework, name) == ("sham", "untuned-sham") and changed:
                return Failure(reason=Reason.WRONG_RESULT, stage="check", error="relative error 3", evidence="")
            return with_latency(measurement, config["latency_ms"] / 1e3)

        study = make_both()
        study.reference.write_bytes(b"")
        budget = QUICK_BUDGET.model_copy(update={"num_trials": 4})
        Tuner(study, budget, PlainTrials(outcome_of)).run()
        changed = True
        with pytest.raises(HarnessError, match="in sham does not give what it gave when the study began"):
            Tuner(study, budget.model_copy(update={"num_trials": 5}), PlainTrials(outcome_of)).run()
        study.close()


class TestRunners:
    """Two supervisors, one for each framework."""

    def test_each_is_started_when_it_is_needed_and_all_are_closed(self, tmp_path, make_request, target):
        """One framework's trial starts one supervisor; leaving the context leaves no process of either."""
        fake = make_request({"execution": "eager"}, workload=target("fake").workload, untuned=True)
        sham = make_request({"execution": "eager"}, workload=target("sham").workload)
        with Runners({}, preload=True, log=tmp_path / "log") as runners:
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
            request = make_request({"execution": "eager"}, workload=target(name).workload, untuned=name == "fake")
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
from autotune.bench.runners import Runners
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
home = Path(sys.argv[1])
with Runners({}, preload=True, log=home / "log") as runners:
    for name in ("fake", "sham"):
        request = TrialRequest.model_validate_json((home / f"{name}.json").read_text())
        assert runners.hold(TrialFolder(home / name), request).outcome is None
    print("held", flush=True)
    time.sleep(600)
"""
