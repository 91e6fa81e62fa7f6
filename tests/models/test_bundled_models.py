"""The bundled models: what the table promises, and that both frameworks compute the same function."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from autotune import models
from autotune.backends.registry import load_backend
from autotune.errors import InputError
from autotune.models import weights
from tests.models.built import (
    IN_TORCH,
    MODELS,
    SMALL,
    builder,
    call,
    every_common_model,
    every_model,
    mark,
    mindspore_only,
    outputs_of,
    relative_difference,
    torch_only,
)

OUTPUT_SHAPES: dict[str, list[tuple[int, ...]]] = {
    "vit": [(2, 10)],
    "tanh_matmul": [(32, 32)],
    "resnet18": [(2, 10)],
    "yolo_tiny": [(2, 24, 8, 8), (2, 24, 4, 4), (2, 24, 2, 2)],
    "bert_small": [(3, 16, 32), (3, 32)],
    "swiglu": [(2, 8, 32)],
    "planner": [(2, 3, 4)],
    "intersection": [(2, 4), (2, 5, 3, 2)],
    "temporal_decision": [(2, 3), (2, 6, 8)],
    "branching": [(2, 5)],
    "mixed_attention": [(3, 16)],
}
IN_PIECES = {"planner", "intersection", "branching", "mixed_attention"}
"""Written so that no compiler takes them as one graph."""
INDIVISIBLE = [
    ("vit", {"image": 30, "patch": 8}),
    ("vit", {"dim": 32, "heads": 3}),
    ("bert_small", {"dim": 32, "heads": 3}),
    ("yolo_tiny", {"image": 100}),
    ("temporal_decision", {"dim": 32, "heads": 3}),
    ("mixed_attention", {"dim": 32, "heads": 3}),
]


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """At these sizes threads gain little, and on a busy machine their barriers cost seconds."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# The table


@every_model
def test_every_listed_model_can_be_imported(name: str, framework: str) -> None:
    """Each entry of the table names a builder that exists, with a default for every size."""
    parameters = inspect.signature(builder(name, framework)).parameters.values()
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)
    assert all(isinstance(parameter.default, int) or parameter.name == "dtype" for parameter in parameters)


@pytest.mark.parametrize("framework", [pytest.param(f, marks=mark(f)) for f in ("torch", "mindspore")])
def test_every_builder_is_listed(framework: str) -> None:
    """A module that has a function of its own name is a bundled model, and the table lists it."""
    pytest.importorskip(framework)
    package = importlib.import_module(f"autotune.models.{framework}")
    found = {
        module.name
        for module in pkgutil.iter_modules(package.__path__)
        if hasattr(importlib.import_module(f"{package.__name__}.{module.name}"), module.name)
    }
    assert found == set(models.names(framework))


@pytest.mark.parametrize(("name", "framework"), [("planner", "torch"), ("nothing", "torch"), ("vit", "jax")])
def test_reference_to_an_absent_model_is_a_key_error(name: str, framework: str) -> None:
    """There is no reference to an unknown model, nor to one in a framework that it is not written for, nor a name."""
    assert models.names() == models.names("torch") == models.names("mindspore") == tuple(models.BUNDLED)
    assert models.names("jax") == ()
    with pytest.raises(KeyError):
        models.reference(name, framework)


def test_the_table_and_the_weights_import_no_framework() -> None:
    """Models can be listed, and values computed, where no framework is installed."""
    script = "import sys, autotune.models.weights; assert not {'torch', 'mindspore'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


# Weights and inputs


def test_a_value_depends_on_name_shape_and_seed_only() -> None:
    """The same name, shape and seed give the same values; another name or seed gives others."""
    values = weights.value("head.weight", (4, 8), 0)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, weights.value("head.weight", (4, 8), 0))
    assert not np.array_equal(values, weights.value("tail.weight", (4, 8), 0))
    assert not np.array_equal(values, weights.value("head.weight", (4, 8), 1))


def test_the_role_of_a_parameter_sets_its_scale() -> None:
    """Matrices and kernels are scaled by gain / sqrt(fan_in), norm weights are near 1, biases small."""
    assert weights.value("linear.weight", (256, 400), 0).std() == pytest.approx(1 / 20, rel=0.05)
    assert weights.value("conv.weight", (256, 16, 5, 5), 0, gain=2.0).std() == pytest.approx(2 / 20, rel=0.05)
    assert weights.value("norm.weight", (1000,), 0).mean() == pytest.approx(1, abs=0.05)
    assert np.abs(weights.value("linear.bias", (1000,), 0)).max() < 0.2
    assert np.abs(weights.value("norm.running_mean", (1000,), 0)).max() < 1
    variance = weights.value("norm.running_var", (1000,), 0)
    assert variance.min() > 0.5
    assert variance.max() < 2


def test_inputs_are_centred_images_and_ids_within_the_vocabulary() -> None:
    """Float inputs are standard normal, so that their negation is as likely; token ids lie in [0, vocab)."""
    image = weights.normal_input((3, 64, 64), 0)
    assert image.dtype == np.float32
    assert image.shape == (3, 64, 64)
    assert image.mean() == pytest.approx(0, abs=0.05)
    assert image.std() == pytest.approx(1, abs=0.05)
    ids = weights.token_input((50, 50), 10, 0)
    assert ids.dtype == np.int64
    assert ids.shape == (50, 50)
    assert set(np.unique(ids)) == set(range(10))


# Every model


@every_model
def test_sizes_are_respected(name: str, framework: str) -> None:
    """They determine the shapes of the outputs; a model is built in evaluation mode, with a tuple of inputs."""
    model, inputs = builder(name, framework)(**SMALL[name])
    assert not model.training
    assert isinstance(inputs, tuple)
    assert [output.shape for output in call(framework, model, inputs)] == OUTPUT_SHAPES[name]


@pytest.mark.fast_cases("swiglu", "vit-torch")
@every_model
def test_the_seed_determines_the_outputs(name: str, framework: str) -> None:
    """Two builds from one seed give bitwise equal outputs, and another seed gives clearly different ones."""
    first, again = (outputs_of(name, framework, **SMALL[name], seed=3) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert relative_difference(outputs_of(name, framework, **SMALL[name], seed=4), first) > 0.05


@torch_only
@pytest.mark.fast_cases("swiglu")
@pytest.mark.parametrize("name", IN_TORCH)
def test_every_output_answers_to_the_input(name: str) -> None:
    """At default sizes each output is finite and changes clearly with the input: no model is a constant."""
    build = builder(name, "torch")
    (model, inputs), (_, others) = build(seed=0), build(seed=1)
    for output, other in zip(call("torch", model, inputs), call("torch", model, others), strict=True):
        assert np.isfinite(output).all()
        assert relative_difference([other], [output]) > 0.1


@pytest.mark.parametrize(
    ("name", "framework", "sizes"),
    [
        pytest.param(name, framework, sizes, marks=mark(framework))
        for name, sizes in INDIVISIBLE
        for framework in MODELS[name]
    ],
)
def test_sizes_that_do_not_divide_are_refused(name: str, framework: str, sizes: dict[str, int]) -> None:
    """A size that is not the multiple it has to be is a ValueError which names it."""
    with pytest.raises(ValueError, match="is not a multiple of"):
        builder(name, framework)(**sizes)


# One function in two frameworks


@torch_only
@mindspore_only
@every_common_model
def test_builders_take_the_same_sizes(name: str) -> None:
    """The keyword arguments and their defaults are the same in both frameworks; PyTorch's have an element type too."""
    assert _defaults(builder(name, "mindspore")) == _defaults(builder(name, "torch"))


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.items()
    return {name: parameter.default for name, parameter in parameters if name != "dtype"}


@torch_only
@pytest.mark.parametrize("name", ["vit", "resnet18", "yolo_tiny", "bert_small"])
def test_an_element_type_is_that_of_weights_and_inputs(name: str) -> None:
    """Ids stay whole numbers."""
    import torch

    model, inputs = builder(name, "torch")(**SMALL[name], dtype="bfloat16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert {one.dtype for one in inputs} <= {torch.bfloat16, torch.int64}
    with pytest.raises(InputError, match="no type of weights"):
        builder(name, "torch")(**SMALL[name], dtype="int64")


@torch_only
@mindspore_only
@every_common_model
def test_parameters_have_the_same_names_and_values(name: str) -> None:
    """Under canonical names, the MindSpore and the PyTorch model have the same parameters, bit by bit."""
    model, _ = builder(name, "torch")(**SMALL[name])
    cell, _ = builder(name, "mindspore")(**SMALL[name])
    from autotune.models.mindspore.filling import canonical_name

    state = {key: tensor.numpy() for key, tensor in model.state_dict().items() if tensor.is_floating_point()}
    parameters = {canonical_name(key): parameter.asnumpy() for key, parameter in cell.parameters_and_names()}
    assert state.keys() == parameters.keys()
    for key, values in state.items():
        np.testing.assert_array_equal(parameters[key], values)


@torch_only
@mindspore_only
@pytest.mark.fast_cases("swiglu")
@pytest.mark.parametrize("size", ["small", "default"])
@every_common_model
def test_frameworks_agree(name: str, size: str) -> None:
    """MindSpore's eager outputs equal PyTorch's to 1e-4 of the largest value."""
    sizes = SMALL[name] if size == "small" else {}
    outputs, references = (outputs_of(name, framework, **sizes) for framework in ("mindspore", "torch"))
    assert relative_difference(outputs, references) < 1e-4


@mindspore_only
@pytest.mark.fast_cases("swiglu")
@every_common_model
def test_mindspore_compiles_the_whole_model(name: str) -> None:
    """MindSpore captures the model without falling back to Python, and the outputs stay the same."""
    model, inputs = builder(name, "mindspore")(**SMALL[name])
    import mindspore

    eager = call("mindspore", model, inputs)
    compiled = mindspore.jit(model, fullgraph=True)
    assert relative_difference(call("mindspore", compiled, inputs), eager) < 1e-5


@torch_only
@pytest.mark.fast_cases("swiglu")
@pytest.mark.parametrize("name", [name for name in IN_TORCH if name not in IN_PIECES])
def test_torch_captures_the_whole_model(name: str) -> None:
    """Dynamo captures every model that is not there for its breaks as one graph, and the outputs stay the same."""
    model, inputs = builder(name, "torch")(**SMALL[name])
    import torch

    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert relative_difference(call("torch", compiled, inputs), call("torch", model, inputs)) < 1e-5


PADDED: dict[str, dict[str, int]] = {
    **{name: SMALL[name] for name in ("vit", "resnet18", "yolo_tiny", "bert_small")},
    "bert_small masked": {**SMALL["bert_small"], "masked": True},
}
AXES = {"batch": 0, "seq": 1}


@pytest.mark.fast_cases("vit")
@pytest.mark.parametrize("framework", [pytest.param(f, marks=mark(f)) for f in ("torch", "mindspore")])
@pytest.mark.parametrize("case", PADDED)
def test_what_may_be_appended_changes_nothing(case: str, framework: str) -> None:
    """Inputs that are longer by what a model declares give the same outputs, with more behind them."""
    name = case.partition(" ")[0]
    sizes = {**PADDED[case], "seq": 16} if name == "bert_small" else PADDED[case]
    built = builder(name, framework).__wrapped__(**sizes)  # type: ignore[attr-defined]
    assert set(built["padding"]) == ({"batch", "seq"} if "masked" in case else {"batch"})
    backend = load_backend(framework)
    # Shorter than the positions that the model has: what is appended must not be what is left of them.
    inputs = [backend.shapes.cut(each, 1, 0, 11) if name == "bert_small" else each for each in built["inputs"]]
    outputs = call(framework, built["model"], tuple(inputs))
    for dimension, fill in built["padding"].items():
        axis = AXES[dimension]
        longer = tuple(backend.shapes.pad(each, axis, each.shape[axis] + 3, fill) for each in inputs)
        for got, expected in zip(call(framework, built["model"], longer), outputs, strict=True):
            cut = got[tuple(slice(size) for size in expected.shape)]
            assert relative_difference([cut], [expected]) < 1e-5, dimension
