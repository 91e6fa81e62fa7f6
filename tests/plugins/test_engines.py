"""Engines beside the framework: a third baseline that is timed beside the answer, and changes no verdict."""

from __future__ import annotations

import json
import math
import random
from types import SimpleNamespace

import pytest

from autotune import doctor
from autotune.answer.result import StudyResult
from autotune.answer.sections import sections
from autotune.answer.sections.engines import EnginesSection
from autotune.backends.engine import ENGINES, engines_for
from autotune.measure.measurement import Failure, Measurement, Reason, Stage
from autotune.measure.objective import Objective
from autotune.measure.statistics import Verdict
from autotune.render.html.page import page
from autotune.render.json import document
from autotune.render.live import news
from autotune.render.terminal import facts
from autotune.study.budget import Budget
from autotune.study.records import ENGINE_BLOCK
from autotune.tuning import loop
from autotune.tuning.engines import time_after_verdict
from autotune.tuning.events import EnginesMissing, EnginesStarted
from autotune.tuning.loop import Tuner
from autotune.workload.arguments import Arguments
from tests.conftest import ScriptedTrials, fake_space, reopened, summary_of, with_latency

pytestmark = pytest.mark.usefixtures("in_memory")

ABACUS = """
from autotune.backends.engine import Engine

def run(model, example):
    {body}

ENTRY = Engine("Abacus", "fake", ({package!r},), run)
"""
SPACE = """
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  mode: {doc: "https://e.org", when: {execution: compile}, values: [m0, m1, m2], default: m0}
"""
WRONG = Failure(reason="wrong_result", stage="check", error="its outputs differ by 0.3")


@pytest.fixture
def abacus(install_backend):
    """An engine for models of the fake framework, in a package of its own."""

    def install(body="return model", package="pydantic"):
        install_backend("abacus", "abacus_engine", ABACUS.format(body=body, package=package), ENGINES.group)

    return install


@pytest.fixture
def tune(make_study, measurement):
    """A study of processes that scatter by 2 %: 10 ms untuned, 5 ms for a compiled config, 6 ms in an engine."""

    def tune(*, compiled=2.0, engine=None, on=None, **question):
        study = on or make_study(space=fake_space(SPACE), **question)

        def outcome_of(name, block, config):
            if name == "abacus" and engine is not None:
                return engine
            gain = compiled if config["execution"] == "compile" else 1.0
            scatter = random.Random(f"{name} {block} {config}").gauss(0, 0.01)
            took_s = 0.006 if name == "abacus" else 0.010 / gain * math.exp(scatter)
            return with_latency(measurement, took_s, stage_s={Stage.RUN: 5.0})

        tune.bench, tune.events = ScriptedTrials(outcome_of), []
        Tuner(study, Budget(num_trials=9), tune.bench, tune.events.append).run()
        return study

    return tune


def held(tune):
    return [name for name, _, _ in tune.bench.held]


def words(study):
    return " ".join(summary_of(study).split())


@pytest.mark.parametrize(("compiled", "verdict"), [(2.0, Verdict.FASTER), (1.0, Verdict.TIE)])
def test_beside_the_answer(abacus, tune, compiled, verdict):
    """In one block with the untuned model and what won, in fresh processes; every face says so, and the verdict is the
    one without it."""
    abacus()
    study = tune(compiled=compiled)
    answer = StudyResult(study)
    assert answer.verdict is verdict
    assert held(tune)[-3 if answer.best.config["execution"] == "compile" else -2 :].count("abacus") == 1
    assert held(tune).count("abacus") == 1
    (figure,) = ENGINE_BLOCK.read(study).figures
    assert (figure.title, figure.problem) == ("Abacus", None)
    best = f", trial {answer.best.number} in " if verdict is Verdict.FASTER else ", the untuned model in "
    assert f"engines Abacus runs this model in 6 ms{best}" in words(study)
    told = document(answer)["engines"]
    assert told["figures"][0]["value"] == pytest.approx(0.006)
    assert told["trial"] == (answer.best.number if verdict is Verdict.FASTER else None)
    shown = page(study)
    assert "Other engines" in shown
    assert f"Abacus {figure.release}" in shown
    assert tune.events.count(EnginesStarted(("Abacus",))) == 1
    before = ENGINE_BLOCK.read(study)
    tune(on=reopened(study))  # Its verdict stands.
    assert "abacus" not in held(tune)
    assert ENGINE_BLOCK.read(study) == before


@pytest.mark.parametrize("failure", [WRONG, Failure(reason="compile_error", stage="compile", error="no such operator")])
def test_one_that_cannot_run_the_model(abacus, tune, failure):
    """It is no warning of each run: who asks for detail is told why, in one sentence."""
    abacus()
    study = tune(engine=failure)
    assert StudyResult(study).verdict is Verdict.FASTER
    told = dict(EnginesSection(StudyResult(study)).facts())
    assert told["engines"].startswith(f"Abacus was not timed: {failure.error}")
    found = sections(StudyResult(study))
    assert "engines" in dict(facts(found))
    assert "engines" not in dict(facts(found, why=False))
    assert failure.error in page(study)
    assert document(StudyResult(study))["engines"]["figures"][0]["value"] is None


def test_without_time_it_is_left_out_and_named(abacus, tune, monkeypatch):
    """A run that has a time ends in it."""
    abacus()
    full = SimpleNamespace(engines_s=lambda best: 9.0, left_s=8.0)
    monkeypatch.setattr(
        loop, "time_after_verdict", lambda session, _, verdict: time_after_verdict(session, full, verdict)
    )
    study = tune()
    assert StudyResult(study).verdict is Verdict.FASTER
    assert "abacus" not in held(tune)
    assert "engines Abacus was not timed: no time was left for it" in words(study)


def test_one_that_is_not_installed(abacus, tune, monkeypatch, tmp_path):
    """The first lines of a run and `doctor` say how to install it."""
    abacus(package="no-such-package")
    study = tune()
    assert (ENGINE_BLOCK.read(study), held(tune).count("abacus")) == (None, 0)
    (line,) = news(EnginesMissing(("Abacus",)))
    assert tune.events[1] == EnginesMissing(("Abacus",))
    assert "Abacus could be timed beside the answer: pip install" in line
    assert "[backends]" in line
    monkeypatch.setattr(doctor, "framework_names", lambda: ("fake",))
    (found,) = (one for one in doctor.examine(tmp_path) if one.what == "Abacus for fake on cpu")
    assert (found.ok, found.found, found.cure) == (False, "not installed", line.partition("answer: ")[2])


@pytest.mark.parametrize("of", ["memory", "another device", "another framework", "a broken package"])
def test_what_it_is_not_for(abacus, install_backend, tune, workload, of):
    """Steady calls of one model on a CPU alone."""
    if of == "a broken package":
        install_backend("abacus", "abacus_engine", "import no_such_module", ENGINES.group)
    elif of == "another framework":
        install_backend(
            "abacus", "abacus_engine", ABACUS.format(body="pass", package="pydantic").replace('"fake"', '"mindspore"'),
            ENGINES.group,
        )  # fmt: skip
        assert engines_for("mindspore").keys() == {"abacus"}
    else:
        abacus()
    objectives = {"objectives": (Objective.parse("memory"),)} if of == "memory" else {}
    device = {"workload": workload.model_copy(update={"device": "gpu"})} if of == "another device" else {}
    study = tune(**objectives, **device)
    assert ENGINE_BLOCK.read(study) is None
    assert not any(isinstance(event, (EnginesMissing, EnginesStarted)) for event in tune.events)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return model", None),
        ("return lambda *inputs: [output + 1 for output in [model(*inputs)]][0]", Reason.WRONG_RESULT),
        ("raise ValueError('no such operator')", Reason.COMPILE_ERROR),
    ],
)
def test_its_process_is_that_of_a_trial(abacus, run_trial, body, reason):
    """Held to the reference that the untuned model left; what it raises is a failure like any other."""
    abacus(body)
    outcome = run_trial({"execution": "eager"}, engine="abacus", fresh=True)
    if reason is None:
        assert isinstance(outcome, Measurement)
    else:
        assert (outcome.reason, "no such operator" in outcome.error) == (reason, reason is Reason.COMPILE_ERROR)


# The real ones.


@pytest.fixture(params=["onnxruntime", "openvino"])
def engine(request):
    """One of those that take models of PyTorch, where it is installed. It is not imported here: at its first import
    OpenVINO is kept from telling its maker of what it converts."""
    found = ENGINES.require(request.param)
    if not found.is_installed:
        pytest.skip(f"{found.title} is not installed")
    pytest.importorskip("torch")
    return found


@pytest.mark.torch
def test_a_real_engine(engine):
    """It is called as the model is, with keywords and nested outputs, and gives what that gives, in tensors that later
    calls leave alone."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.linear = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 3)

        def forward(self, tokens, *, mask=None, scale=2.0):
            hidden = self.linear(self.embedding(tokens)) * scale
            return {"hidden": hidden, "pair": (hidden.sum(-1), mask)}

    model = Model().eval()
    tokens, mask = torch.arange(6).reshape(2, 3), torch.ones(2, 3)
    with torch.no_grad():
        run = engine.run(model, Arguments((tokens,), {"mask": mask}))
        first, second = run(tokens, mask=mask), run(tokens + 1, mask=mask)
        for found, given in ((first, tokens), (second, tokens + 1)):
            expected = model(given, mask=mask)
            torch.testing.assert_close(found["hidden"], expected["hidden"])
            torch.testing.assert_close(found["pair"], expected["pair"])


@pytest.mark.torch
@pytest.mark.slow
def test_a_study_with_a_real_engine(engine, cli, tmp_path):
    """From the model's file to the line beside the verdict."""
    (tmp_path / "small.py").write_text(
        "import torch\ndef build():\n    return torch.nn.Conv2d(3, 8, 3).eval(), torch.randn(1, 3, 16, 16)\n"
    )
    done = cli("tune", "small.py:build", "--device", "cpu", "--trials", "2", "--study", "s", "--json")
    figures = {one["title"]: one for one in json.loads(done.stdout)["engines"]["figures"]}
    assert figures[engine.title]["problem"] is None
    assert figures[engine.title]["value"] > 0
