"""The torch backend with the real compiler."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from autotune.config import Config
from autotune.errors import InvalidConfigError
from autotune.measurement import Failure, Measurement, Reason
from autotune.runner import Runner
from autotune.trial import TrialFolder
from tests.conftest import REPOSITORY

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

DEFAULT = {"execution": "compile", "backend": "inductor", "mode": "default", "dynamic": None, "fullgraph": False}
CHEAP = {"execution": "compile", "backend": "aot_eager", "dynamic": None, "fullgraph": False}

MODEL_FILE = """
import torch

class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        if y.mean() > 0:  # BREAK
            y = y + 1
        return torch.nn.functional.gelu(y)

def mlp(width=8):
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()).eval(), torch.randn(4, width)

def branching():
    return Branching().eval(), torch.randn(4, 8)

def wide():
    return torch.nn.Linear(8, 8).eval(), {"input": torch.randn(2, 8)}

class TooMuch(torch.nn.Module):
    def forward(self, x):
        return x + torch.empty(2**50).sum()

def too_much():
    return TooMuch(), torch.randn(4, 8)

def no_module():
    return (lambda x: x), torch.randn(4, 8)
"""


@pytest.fixture
def run_torch(tmp_path, make_request, workload):
    """The untuned model, then one config, each in a real child."""
    path = tmp_path / "models_of_tests.py"
    path.write_text(MODEL_FILE)

    def run(function, settings, *, preload=True):
        model = workload.model_copy(update={"framework": "torch", "reference": f"{path}:{function}", "model": function})
        with Runner("torch", {}, preload=preload, log=tmp_path / "log") as runner:
            untuned = make_request(None, workload=model, config=Config({"execution": "eager"}))
            first = runner.run(TrialFolder(tmp_path / "untuned"), untuned)
            request = make_request(settings, workload=model)
            return first, runner.run(TrialFolder(tmp_path / "trial"), request)

    return run, path


def test_inductor_compiles_and_agrees(run_torch):
    """The default compile gives one graph, no break, a cold compile time and the untuned model's numbers."""
    run, _ = run_torch
    untuned, compiled = run("mlp", DEFAULT)
    assert isinstance(untuned, Measurement)
    assert isinstance(compiled, Measurement)
    assert (untuned.diagnosis.compiled, untuned.diagnosis.num_graphs) == (False, 0)
    assert (compiled.diagnosis.compiled, compiled.diagnosis.num_graphs) == (True, 1)
    assert compiled.diagnosis.graph_breaks == ()
    assert compiled.diagnosis.cache_hits == 0, "the caches were cold"
    assert compiled.relative_error < 1e-5
    assert compiled.compile_s > 0
    assert compiled.signature.num_parameters == 72
    assert compiled.environment.packages["torch"] == torch.__version__


def test_a_graph_break_names_the_users_line(run_torch):
    """Reason and file:line of the user's own code, both branches counted as graphs, and right on either branch."""
    run, path = run_torch
    _, outcome = run("branching", CHEAP)
    line = next(i for i, text in enumerate(MODEL_FILE.splitlines(), 1) if "# BREAK" in text)
    assert isinstance(outcome, Measurement)
    assert {each.location for each in outcome.diagnosis.graph_breaks} == {f"{path}:{line}"}
    assert all(each.reason for each in outcome.diagnosis.graph_breaks)
    assert outcome.diagnosis.num_graphs >= 3


def test_fullgraph_of_a_breaking_model_is_a_compile_error(run_torch):
    """`fullgraph` fails on a break, with dynamo's own words."""
    run, _ = run_torch
    _, outcome = run("branching", {**CHEAP, "fullgraph": True})
    assert isinstance(outcome, Failure)
    assert outcome.reason is Reason.COMPILE_ERROR
    assert "Data-dependent branching" in outcome.error


def test_inputs_may_be_keywords(run_torch):
    """A dict of inputs is passed by keyword."""
    run, _ = run_torch
    _, outcome = run("wide", CHEAP)
    assert isinstance(outcome, Measurement)


def test_exhausted_memory_is_recognised(run_torch):
    """The CPU allocator's error is `out_of_memory`, in a fresh process as in a forked one."""
    run, _ = run_torch
    untuned, _ = run("too_much", CHEAP, preload=False)
    assert untuned.reason is Reason.OUT_OF_MEMORY


def test_what_is_no_module_is_refused(run_torch):
    """A plain function is the model file's mistake."""
    run, _ = run_torch
    untuned, _ = run("no_module", CHEAP)
    assert untuned.reason is Reason.HARNESS
    assert "needs a torch.nn.Module" in untuned.error


def test_compile_arguments_are_pure_and_complete():
    """A config maps to torch.compile's arguments, the untuned model to None, anything else to a sentence."""
    from autotune.backends.torch_compile import compile_arguments

    assert compile_arguments(Config({"execution": "eager"})) is None
    assert compile_arguments(Config(DEFAULT)) == {
        "backend": "inductor",
        "mode": "default",
        "dynamic": None,
        "fullgraph": False,
    }
    with pytest.raises(InvalidConfigError, match="knob turbo"):
        compile_arguments(Config({"execution": "compile", "turbo": True}))
    with pytest.raises(InvalidConfigError, match="knob execution"):
        compile_arguments(Config({"mode": "default"}))


@pytest.mark.parametrize(("knob", "value"), [("mode", "ludicrous"), ("backend", "steam")])
def test_a_setting_that_this_release_lacks_is_invalid(knob, value):
    """Unknown modes and backends are refused before anything is compiled, with those that there are."""
    from autotune.backends.torch_compile import TorchBackend

    with pytest.raises(InvalidConfigError, match=f"knob {knob}: torch .* has no '{value}', only"):
        TorchBackend().compile(torch.nn.Linear(2, 2), Config({**DEFAULT, knob: value}))


EXPORT = """
import json, sys, torch, autotune
given = []
compile = torch.compile
torch.compile = lambda model, **arguments: given.append(arguments) or compile(model, **arguments)
model, (inputs,) = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval(), (torch.ones(4, 8),)
with torch.no_grad():
    tuned = autotune.load(sys.argv[1]).apply(model)
    error = float((tuned(inputs) - model(inputs)).abs().max())
print(json.dumps({"given": given, "error": error, "same": tuned is model}))
"""


@pytest.mark.parametrize("verdict", ["faster", "tie"])
def test_the_exported_config_reaches_torch_compile_in_a_fresh_job(tmp_path, verdict):
    """What a job's torch.compile is called with is what the trial's was; unless faster, it is not called at all."""
    import yaml

    from autotune.backends.torch_compile import compile_arguments

    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content.update(framework="torch", verdict=verdict, config=DEFAULT)
    content["environment"]["framework_version"] = str(torch.__version__)
    path = tmp_path / "best.yaml"
    path.write_text(yaml.safe_dump(content))
    child = subprocess.run(
        [sys.executable, "-c", EXPORT, str(path)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    said = json.loads(child.stdout)
    if verdict == "faster":
        assert said["given"] == [compile_arguments(Config(DEFAULT))]
        assert said["error"] < 1e-5
    else:
        assert (said["given"], said["same"]) == ([], True)


def test_apply_refuses_another_frameworks_model(tmp_path):
    """A config tuned for torch and a model that is none: a sentence."""
    import yaml

    import autotune
    from autotune.errors import InputError

    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content.update(framework="torch", config=DEFAULT)
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match=r"tuned for torch; apply\(\) was given a function"):
        autotune.load(tmp_path / "best.yaml").apply(lambda x: x)
