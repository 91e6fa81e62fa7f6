"""Every backend of the table keeps the same contract. A new framework is picked up by its line in the table."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from autotune.backends.protocol import Backend
from autotune.backends.registry import BACKENDS, framework_version
from autotune.errors import MissingFrameworkError
from autotune.planning.spaces import bundled_space
from autotune.space.load import Circumstances, load_space
from tests.conftest import REPOSITORY

FRAMEWORKS = [
    pytest.param(name, marks=() if name == "fake" else getattr(pytest.mark, name), id=name)
    for name in (*BACKENDS, "fake")
]

EXPRESSIONS = {
    "torch": {
        "model": "torch.nn.Linear(4, 3), (torch.ones(2, 4),)",
        "training": "torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.25), torch.nn.Dropout(0))",
        "draw": "torch.rand(2)",
        "integers": "torch.arange(3)",
    },
    "mindspore": {
        "model": "mindspore.nn.Dense(4, 3), (mindspore.Tensor(np.ones((2, 4), np.float32)),)",
        "training": "mindspore.nn.SequentialCell(mindspore.nn.Dense(4, 3), mindspore.nn.Dropout(p=0.25),"
        " mindspore.nn.Dropout(p=0.0)).set_train()",
        "draw": "mindspore.ops.rand(2)",
        "integers": "mindspore.Tensor(np.arange(3))",
    },
    "fake": {
        "model": "(lambda x: x @ np.ones((4, 3), np.float32)), (np.ones((2, 4), np.float32),)",
        "training": "type('Model', (), {'dropout': 0.25, 'eval': lambda self: setattr(self, 'dropout', 0)})()",
        "draw": "np.random.rand(2)",
        "integers": "np.arange(3)",
    },
}
"""Framework -> what the script below asks its backend about."""

SCRIPT = """
import importlib, json, random, sys
import numpy as np
from pathlib import Path
from autotune.backends.outputs import output_arrays
from autotune.backends.registry import framework_version, load_backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.planning.spaces import bundled_spaces
from autotune.space.load import Circumstances, load_space
from autotune.planning.spaces import bundled_spaces
from autotune.space.load import Circumstances, load_space
from autotune.workload.workload import Task
from typing import get_args
framework, expressions = sys.argv[1], json.loads(sys.argv[2])
backend = load_backend(framework)
backend.prepare("cpu", 7)
if framework != "fake":
    globals()[framework] = importlib.import_module(framework)
def dropout(model):
    active = backend.active_dropout(model)
    eval(backend.evaluation_call)
    return [active, backend.active_dropout(model)]
def widened(dtype):
    wide_model, wide_input = backend.widen(model, dtype), backend.widen(inputs[0], dtype)
    with backend.inference():
        output = backend.to_array(wide_model(wide_input))
    integers, text = backend.widen(eval(expressions["integers"]), dtype), backend.widen("text", dtype)
    return {
        "float": [str(output.dtype), backend.spec(wide_input).dtype.lower()],
        "parameters": sorted({spec.dtype.lower() for _, spec in backend.parameters(wide_model)}),
        "integers": backend.spec(integers).dtype.lower(),
        "text": text,
        "error": float(np.abs(output - output_arrays(backend, outputs)[0]).max()),
    }
def brought_to_a_size(matrix, integers):
    padded = backend.shapes.pad(matrix, 1, 6, 7)
    parts = [backend.shapes.cut(padded, 1, start, stop) for start, stop in ((0, 4), (4, 6))]
    longer = backend.shapes.pad(integers, 0, 5, 0)
    same = backend.spec(matrix).dtype == backend.spec(padded).dtype
    same &= backend.spec(integers).dtype == backend.spec(longer).dtype
    return [same, *(backend.to_array(each).tolist() for each in (*parts, longer))]
model, inputs = eval(expressions["model"])
model = backend.place(model)
inputs = tuple(backend.place(each) for each in inputs)
spaces = {path.stem: path for path in bundled_spaces()}
untuned = Config({"execution": "eager"})
if framework in spaces:
    version = framework_version(framework)
    here = Circumstances(version=version, device="cpu")
    untuned = load_space(spaces[framework], framework=framework, circumstances=here).untuned()
with backend.inference():
    step = backend.compile(model, untuned, UndoLog())
    outputs = step(*inputs)
    backend.synchronise()
array = backend.to_array(inputs[0])
diagnosis = backend.diagnose(model, untuned)
states = [backend.random_state(), backend.random_state()]
for each in (expressions["draw"], "np.random.rand()", "random.random()"):
    eval(each)
    states.append(backend.random_state())
print(json.dumps({
    "missing": [name for name in expressions["methods"] if not hasattr(backend, name)],
    "same_object": step is model,
    "output_shape": output_arrays(backend, outputs)[0].shape,
    "spec": backend.spec(inputs[0]).model_dump(),
    "round_trip": bool((backend.to_array(backend.like(array, inputs[0])) == array).all()),
    "no_tensor": [backend.to_array("text"), backend.spec("text"), backend.place("text")],
    "model_ok": backend.check_model(model),
    "parameters": [name for name, _ in backend.parameters(model)],
    "peak": backend.peak_memory_bytes(),
    "caches": list(backend.cache_variables("/somewhere").values()),
    "classify": backend.classify(ValueError("no")),
    "hints": [backend.hint(ValueError("no"), task) for task in get_args(Task)],
    "device": backend.device_name(),
    "compiled": diagnosis.compiled,
    "num_graphs": diagnosis.num_graphs,
    "compilations": backend.shapes.compilations(model, untuned).model_dump(),
    "states_differ": [one != other for one, other in zip(states, states[1:])],
    "dropout": dropout(eval(expressions["training"])),
    "brought_to_a_size": brought_to_a_size(inputs[0], backend.place(eval(expressions["integers"]))),
    "wide": {dtype: widened(dtype) for dtype in ("float32", "float64")},
}))
"""


@pytest.fixture(scope="module", params=FRAMEWORKS)
def said(request):
    """What a backend answers in a process of its own."""
    name = request.param
    require(name)
    child = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, json.dumps(EXPRESSIONS[name] | {"methods": _methods()})],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return name, json.loads(child.stdout.splitlines()[-1])


def test_a_release_that_is_too_old_is_said_so(monkeypatch):
    """Older than the table's oldest: a sentence with both versions and what to run, before anything is imported."""
    monkeypatch.setattr("autotune.backends.registry.package_version", lambda _: "1.13.1+cu117")
    with pytest.raises(MissingFrameworkError, match=r"torch 1\.13\.1\+cu117 is too old: 2\.6 is the oldest"):
        framework_version("torch")


def require(name):
    try:
        framework_version(name)
    except MissingFrameworkError as error:
        pytest.skip(str(error))


def test_the_untuned_model_runs_uncompiled(said):
    """Under the untuned config the model runs as it is, and the diagnosis says that nothing was compiled."""
    name, answers = said
    assert answers["output_shape"] == [2, 3]
    assert answers["compiled"] is False
    assert answers["compilations"] == {"num_graphs": 0, "num_given_up": 0}
    assert answers["same_object"] or name == "fake"


def test_arrays_go_both_ways(said):
    """Tensors become arrays and come back with the same values; what is no tensor passes through."""
    _, answers = said
    assert answers["spec"]["shape"] == [2, 4]
    assert "float32" in answers["spec"]["dtype"].lower()
    assert answers["round_trip"]
    assert answers["no_tensor"] == [None, None, "text"]


def test_on_a_cpu_there_is_no_device_peak(said):
    """None, not 0: the resident set is measured instead."""
    assert said[1]["peak"] is None


def test_caches_go_where_told(said):
    """Every variable that names a folder points into the one that was asked for."""
    folders = [value for value in said[1]["caches"] if "/" in value]
    assert folders
    assert all(value.startswith("/somewhere") for value in folders)


def test_an_ordinary_error_is_not_classified(said):
    """Only what a type tells is classified; the rest is the stage's business."""
    assert said[1]["classify"] is None


def test_an_ordinary_error_stays_the_user_s_own(said):
    """Whatever is done with the model: there is nothing to advise, and nothing raised in its place."""
    assert said[1]["hints"] == [None, None, None]


def test_models_and_parameters(said):
    """A proper model is accepted and its parameters are listed."""
    name, answers = said
    assert answers["model_ok"] is None
    assert len(answers["parameters"]) == (0 if name == "fake" else 2)


def test_tensors_are_brought_to_a_size(said):
    """Padded and cut along an axis: with the values asked for, in the same type."""
    ones, sevens = [1.0] * 4, [7.0] * 2
    rows = [[each] * 2 for each in (ones, sevens)]
    assert said[1]["brought_to_a_size"] == [True, *rows, [0, 1, 2, 0, 0]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_wider_model_computes_the_same_function(said, dtype):
    """Floats of parameters and inputs are in the wider type, and so is the output; integers and other values stay."""
    name, answers = said
    wide = answers["wide"][dtype]
    assert wide["float"] == [dtype, dtype]
    assert wide["parameters"] == ([] if name == "fake" else [dtype])
    assert (wide["integers"], wide["text"]) == ("int64", "text")
    assert wide["error"] < 1e-5


def test_active_dropout_is_named(said):
    """Dropout that drops is named with its place and its share; one of p=0, or turned off as advised, is not."""
    name, answers = said
    active, turned_off = answers["dropout"]
    assert active == [f"Dropout '{'drop' if name == 'fake' else '1'}' (p=0.25)"]
    assert turned_off == []


def test_drawing_random_numbers_shows(said):
    """The state stays while nothing is drawn, and changes with a number of the framework's, NumPy's or Python's."""
    assert said[1]["states_differ"] == [False, True, True, True]


def test_the_class_has_the_whole_contract(said):
    """No method of the protocol is missing."""
    assert said[1]["missing"] == []


def _methods():
    return sorted(name for name in (*vars(Backend), *Backend.__annotations__) if not name.startswith("_"))


@pytest.mark.parametrize("name", BACKENDS)
def test_the_table_calls_untuned_what_the_search_space_calls_so(name):
    """A job leaves a model as it is by the table, a study compares with what its space calls untuned: the same way."""
    for version in ("2.10.0", "2.13.0"):
        for device in ("cpu", "gpu", "ascend"):
            here = Circumstances(version=version, device=device)
            space = load_space(bundled_space(name), framework=name, circumstances=here)
            assert space.untuned().matches(BACKENDS[name].untuned)
