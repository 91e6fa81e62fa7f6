"""The bundled models: what the table promises, and that both frameworks compute the same function."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune import models
from autotune.backends.registry import load_backend
from autotune.models import weights

os.environ.setdefault("GLOG_v", "3")  # MindSpore reads its log level once, when it is imported

SMALL: dict[str, dict[str, int]] = {
    "vit": {"image": 32, "patch": 8, "dim": 32, "depth": 2, "heads": 2, "classes": 10, "batch": 2},
    "tanh_matmul": {"size": 32, "repeats": 10},
    "resnet18": {"image": 32, "width": 8, "classes": 10, "batch": 2},
    "yolo_tiny": {"image": 64, "width": 8, "depth": 2, "classes": 3, "batch": 2},
    "bert_small": {"seq": 16, "dim": 32, "depth": 2, "heads": 2, "vocab": 50, "batch": 3},
    "swiglu": {"length": 8, "dim": 32, "depth": 2, "heads": 2, "hidden": 48, "batch": 2},
    "planner": {"features": 8, "hidden": 16, "horizon": 3, "actions": 4, "batch": 2},
    "intersection": {"agents": 5, "history": 4, "horizon": 3, "dim": 16, "batch": 2},
    "temporal_decision": {"features": 8, "history": 6, "dim": 16, "depth": 1, "heads": 2, "actions": 3, "batch": 2},
    "branching": {"length": 16, "features": 8, "dim": 16, "classes": 5, "batch": 2},
    "mixed_attention": {"length": 8, "dim": 16, "heads": 2, "batch": 3},
}
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

torch_only = pytest.mark.torch
mindspore_only = pytest.mark.mindspore


def mark(framework: str) -> pytest.MarkDecorator:
    return torch_only if framework == "torch" else mindspore_only


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


every_model = pytest.mark.parametrize(
    ("name", "framework"),
    [
        pytest.param(name, framework, marks=mark(framework))
        for name in models.names()
        for framework in models.BUNDLED[name].frameworks
    ],
)
every_common_model = pytest.mark.parametrize(
    "name", [name for name, model in models.BUNDLED.items() if set(model.frameworks) == {"torch", "mindspore"}]
)


def builder(name: str, framework: str) -> Callable[..., tuple[Any, tuple[Any, ...]]]:
    pytest.importorskip(framework)
    module, _, function = models.reference(name, framework).partition(":")
    build = getattr(importlib.import_module(module), function)

    @functools.wraps(build)
    def pair(**sizes: int) -> tuple[Any, tuple[Any, ...]]:
        built = build(**sizes)
        return (built["model"], built["inputs"]) if isinstance(built, dict) else built

    return pair


def further_inputs(name: str, framework: str, **sizes: int) -> list[tuple[Any, ...]]:
    """The `more_inputs` of a builder, none where it gives none."""
    built = builder(name, framework).__wrapped__(**sizes)  # type: ignore[attr-defined]
    return list(built.get("more_inputs", [])) if isinstance(built, dict) else []


def variant(name: str, framework: str, function: str, **sizes: int) -> tuple[Any, tuple[Any, ...]]:
    """A bundled model with one of its variants, and its inputs."""
    model, inputs = builder(name, framework)(**sizes)
    module = importlib.import_module(f"autotune.models.{framework}.{name}")
    getattr(module, function)(model)
    return model, inputs


def call(framework: str, model: Any, inputs: tuple[Any, ...]) -> list[NDArray[np.float32]]:
    if framework == "torch":
        import torch

        with torch.no_grad():
            outputs = model(*inputs)
    else:
        outputs = model(*inputs)
    tensors = outputs if isinstance(outputs, tuple) else (outputs,)
    return [tensor.numpy() if framework == "torch" else tensor.asnumpy() for tensor in tensors]


def outputs_of(name: str, framework: str, **sizes: int) -> list[NDArray[np.float32]]:
    return call(framework, *builder(name, framework)(**sizes))


def relative_difference(outputs: list[NDArray[np.float32]], references: list[NDArray[np.float32]]) -> float:
    """The largest absolute difference over the largest absolute reference, at the worst output."""
    assert [output.shape for output in outputs] == [reference.shape for reference in references]
    pairs = zip(outputs, references, strict=True)
    return max(float(np.abs(one - reference).max() / np.abs(reference).max()) for one, reference in pairs)


# The table


@every_model
def test_every_listed_model_can_be_imported(name: str, framework: str) -> None:
    """Each entry of the table names a builder that exists, with a default for every size."""
    parameters = inspect.signature(builder(name, framework)).parameters.values()
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)
    assert all(isinstance(parameter.default, int) for parameter in parameters)


@pytest.mark.parametrize("framework", [pytest.param(f, marks=mark(f)) for f in ("torch", "mindspore")])
def test_every_builder_is_listed(framework: str) -> None:
    """A module that has a function of its own name is a bundled model, and the table lists it."""
    pytest.importorskip(framework)
    package = importlib.import_module(f"autotune.models.{framework}")
    of_hubs = {"hugging_face", "timm_models"}  # They import what may be missing.
    found = {
        module.name
        for module in pkgutil.iter_modules(package.__path__)
        if module.name not in of_hubs
        and hasattr(importlib.import_module(f"{package.__name__}.{module.name}"), module.name)
    }
    assert found == set(models.names(framework))


def test_reference_has_the_form_module_colon_function() -> None:
    """A reference is the module, a colon and the builder."""
    assert models.reference("vit", "torch") == "autotune.models.torch.vit:vit"


@pytest.mark.parametrize(("name", "framework"), [("planner", "mindspore"), ("nothing", "torch"), ("vit", "jax")])
def test_reference_to_an_absent_model_is_a_key_error(name: str, framework: str) -> None:
    """There is no reference to an unknown model, nor to a model in a framework it is not written for."""
    with pytest.raises(KeyError):
        models.reference(name, framework)


def test_names_are_filtered_by_framework() -> None:
    """`names` gives every model without argument, and only those of one framework with it."""
    assert models.names() == tuple(models.BUNDLED)
    assert set(models.names()) - set(models.names("torch")) == {"mixed_attention"}
    assert set(models.names()) - set(models.names("mindspore")) == {
        "planner",
        "intersection",
        "temporal_decision",
        "branching",
    }
    assert models.names("jax") == ()


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
    """The size arguments determine the shapes of the outputs."""
    assert [output.shape for output in outputs_of(name, framework, **SMALL[name])] == OUTPUT_SHAPES[name]


@every_model
def test_a_model_is_built_for_inference(name: str, framework: str) -> None:
    """The builder returns the model in evaluation mode and a tuple of inputs."""
    model, inputs = builder(name, framework)(**SMALL[name])
    assert not model.training
    assert isinstance(inputs, tuple)


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
@pytest.mark.parametrize("name", models.names("torch"))
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
        for framework in models.BUNDLED[name].frameworks
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
    """The keyword arguments and their defaults are the same in both frameworks."""
    assert _defaults(builder(name, "mindspore")) == _defaults(builder(name, "torch"))


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


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
@pytest.mark.parametrize("name", [name for name in models.names("torch") if name not in IN_PIECES])
def test_torch_captures_the_whole_model(name: str) -> None:
    """Dynamo captures every model that is not there for its breaks as one graph, and the outputs stay the same."""
    model, inputs = builder(name, "torch")(**SMALL[name])
    import torch

    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert relative_difference(call("torch", compiled, inputs), call("torch", model, inputs)) < 1e-5


# The planner


@torch_only
def test_negated_observations_take_the_other_branch() -> None:
    """The sign of the score picks the layer that is called, and negating the observations flips it."""
    model, (observations,) = builder("planner", "torch")()
    calls: list[str] = []
    model.advance.register_forward_hook(lambda *_: calls.append("advance"))
    model.retreat.register_forward_hook(lambda *_: calls.append("retreat"))
    plan, other_plan = (call("torch", model, (sign * observations,)) for sign in (1, -1))
    assert sorted(calls) == ["advance", "retreat"]
    assert relative_difference(other_plan, plan) > 0.1


@torch_only
def test_the_planner_prints_one_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A call prints one line, since printing is one of the reasons for which the graph breaks."""
    outputs_of("planner", "torch")
    (line,) = capsys.readouterr().out.splitlines()
    assert len(line) < 40


@torch_only
def test_the_planner_breaks_graphs() -> None:
    """Dynamo splits the planner into several graphs, which compute the same on both branches."""
    model, (observations,) = builder("planner", "torch")()
    import torch
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, backend="eager", fullgraph=False)
    for inputs in ((observations,), (-observations,)):
        assert relative_difference(call("torch", compiled, inputs), call("torch", model, inputs)) < 1e-5
    assert sum(counters["graph_break"].values()) >= 2
    assert counters["stats"]["unique_graphs"] >= 3


@torch_only
@pytest.mark.fast_cases("planner")
@pytest.mark.parametrize("name", sorted(IN_PIECES & set(models.names("torch"))))
def test_a_model_in_pieces_is_no_full_graph(name: str) -> None:
    """Asked for one graph, Dynamo refuses a model that is there for its breaks."""
    model, inputs = builder(name, "torch")(**SMALL[name])
    import torch

    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        call("torch", torch.compile(model, backend="eager", fullgraph=True), inputs)


# The networks that break or recompile: each does so where it says, and computes the same compiled


KINDS_OF_BREAKS = {
    "intersection": {"disabled", "operator"},
    "branching": {"tensor_branch", "data_shape", "scalar"},
    "temporal_decision": set(),
}


@torch_only
@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS_OF_BREAKS)
def test_a_network_breaks_for_the_reasons_that_it_names(cli: Callable[..., Any], name: str) -> None:
    """The doctor finds the kinds of breaks that the model's own text promises, in its own file, and no others."""
    pytest.importorskip("torch")
    sizes = [f"--model-arg={size}={value}" for size, value in SMALL[name].items()]
    asked = ("--model", name, "--framework", "torch", "--knob", "backend=aot_eager", "--json", *sizes)
    told = json.loads(cli("diagnose", *asked).stdout)
    broken = [each for each in told["findings"] if each["kind"] == "graph_break"]
    assert {each["ailment"] for each in broken} == KINDS_OF_BREAKS[name]
    assert all(f"{name}.py:" in each["location"] for each in broken)


@torch_only
@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS_OF_BREAKS)
def test_a_network_in_pieces_computes_the_same_on_every_path(name: str) -> None:
    """Compiled once, it gives the untuned outputs for its example, the negated one and its further inputs."""
    model, inputs = builder(name, "torch")(**SMALL[name])
    import torch

    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    for each in (inputs, tuple(-one for one in inputs), *further_inputs(name, "torch", **SMALL[name]), inputs):
        assert relative_difference(call("torch", compiled, each), call("torch", model, each)) < 1e-5


@torch_only
def test_signals_of_the_other_sign_take_the_other_branch() -> None:
    """`branching` at its default sizes runs one of its two paths, and pools to another number of windows."""
    model, (signals,) = builder("branching", "torch")()
    taken: list[str] = []
    for path in ("calm", "alert"):
        getattr(model, path).register_forward_hook(lambda *_, path=path: taken.append(path))
    for each in (signals, -signals):
        call("torch", model, (each,))
    assert sorted(taken) == ["alert", "calm"]
    windows = {1 + int((each[:, :, 0] > 0).sum()) // len(each) // 4 for each in (signals, -signals)}
    assert len(windows) == 2


@torch_only
def test_the_table_lists_the_regions_that_a_model_declares() -> None:
    """`tune` takes them from the table, without building the model: both say the same."""
    built = builder("intersection", "torch").__wrapped__()  # type: ignore[attr-defined]
    assert models.declared("intersection", "torch")["regions"] == tuple(built["regions"])


@torch_only
def test_every_declared_part_is_a_graph() -> None:
    """Each part that `intersection` names as a region is captured, alone, as one graph."""
    model, inputs = builder("intersection", "torch")(**SMALL["intersection"])
    import torch
    from torch._dynamo.utils import counters

    reference = call("torch", model, inputs)
    parts, _ = models.declared("intersection", "torch")["regions"]
    for part in parts.split(", "):
        torch._dynamo.reset()
        counters.clear()
        compiled, _ = builder("intersection", "torch")(**SMALL["intersection"])
        compiled.get_submodule(part).compile(backend="eager", fullgraph=True)
        assert relative_difference(call("torch", compiled, inputs), reference) < 1e-5
        assert counters["stats"]["unique_graphs"] == 1, part


@torch_only
def test_an_agent_out_of_reach_is_not_heard() -> None:
    """In `intersection` what one agent does changes what those near it know, and nothing for those far away."""
    model, (tracks,) = builder("intersection", "torch")(**SMALL["intersection"])
    import torch

    tracks = tracks.clone()
    tracks[:, :, :, 0] = torch.tensor([0.0, 0.5, 10.0, 20.0, 30.0]).unsqueeze(-1)
    known = torch.randn(2, 5, 16)
    louder = known.clone()
    louder[:, 1] += 1
    with torch.no_grad():
        changed = (model.scene.hear(louder, tracks[:, :, -1, :2]) - model.scene.hear(known, tracks[:, :, -1, :2])).abs()
    assert changed[:, :2].amax() > 0
    assert changed[:, 2:].amax() == 0


@torch_only
def test_an_agent_gives_way_to_the_quarter_beside_it_alone() -> None:
    """Of the four quarters, each gives way to exactly one, in a ring."""
    torch = pytest.importorskip("torch")
    model, _ = builder("intersection", "torch")(**SMALL["intersection"])
    table = model.rules.gives_way
    assert table.sum(dim=1).tolist() == [1, 1, 1, 1]
    ring = torch.linalg.matrix_power(table.double(), 4)
    assert torch.equal(ring, torch.eye(4, dtype=torch.double))


@torch_only
def test_the_history_fills_up_and_rolls_over() -> None:
    """`temporal_decision` hands its buffer back one tick longer until it is full, then without its oldest tick."""
    import torch

    model, (observation, full) = builder("temporal_decision", "torch")(**SMALL["temporal_decision"])
    buffer = full[:, :0]
    for tick in range(8):
        _, buffer = model(observation + tick, buffer)
        assert buffer.shape[1] == min(tick + 1, 6)
    assert torch.equal(buffer[:, 0], observation + 2)
    assert torch.equal(buffer[:, -1], observation + 7)


@torch_only
def test_another_length_of_the_history_is_another_graph() -> None:
    """With static shapes, each of the three lengths that `temporal_decision` is checked on is compiled by itself."""
    model, inputs = builder("temporal_decision", "torch")(**SMALL["temporal_decision"])
    import torch
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, backend="eager", dynamic=False)
    for each in (inputs, *further_inputs("temporal_decision", "torch", **SMALL["temporal_decision"]), inputs):
        call("torch", compiled, each)
    assert counters["stats"]["unique_graphs"] == 3


@mindspore_only
def test_mixed_attention_compiles_its_core_for_each_longest_row() -> None:
    """Untuned, its core is compiled already: for the example, and again for inputs whose longest row is longer."""
    sizes = SMALL["mixed_attention"] | {"length": 12}  # What other tests compile is found in the same table.
    model, inputs = builder("mixed_attention", "mindspore")(**sizes)
    from mindspore.graph import api

    before = len(api.ms_compile_cache)
    call("mindspore", model, inputs)
    assert len(api.ms_compile_cache) == before + 1
    for each in (*further_inputs("mixed_attention", "mindspore", **sizes), inputs):
        call("mindspore", model, each)
    assert len(api.ms_compile_cache) == before + 2


@mindspore_only
@pytest.mark.parametrize("capture_mode", ["ast", "bytecode"])
def test_mixed_attention_compiled_computes_the_same(capture_mode: str) -> None:
    """Compiled as a whole, both lengths give the untuned outputs."""
    model, inputs = builder("mixed_attention", "mindspore")(**SMALL["mixed_attention"])
    import mindspore

    each_inputs = (inputs, *further_inputs("mixed_attention", "mindspore", **SMALL["mixed_attention"]))
    references = [call("mindspore", model, each) for each in each_inputs]
    compiled = mindspore.jit(model, capture_mode=capture_mode)
    for each, reference in zip(each_inputs, references, strict=True):
        assert relative_difference(call("mindspore", compiled, each), reference) < 1e-5


@mindspore_only
def test_padding_does_not_change_mixed_attention() -> None:
    """What stands behind the end of a row has no part in its result."""
    model, (tokens, lengths) = builder("mixed_attention", "mindspore")(**SMALL["mixed_attention"])
    from mindspore import Tensor

    padded = tokens.asnumpy().copy()
    for row, length in enumerate(lengths.asnumpy()):
        padded[row, length:] = 7
    assert (padded != tokens.asnumpy()).any()
    references = call("mindspore", model, (tokens, lengths))
    assert relative_difference(call("mindspore", model, (Tensor(padded), lengths)), references) < 1e-6


# Variants


every_variant = pytest.mark.parametrize(
    ("name", "framework", "function"),
    [
        pytest.param(name, framework, place.partition(":")[2], marks=mark(framework))
        for name, model in models.BUNDLED.items()
        for framework, declared in model.variants.items()
        for values in declared.values()
        for place in values.values()
        if place is not None
    ],
)


@every_variant
def test_a_variant_computes_the_same(name: str, framework: str, function: str) -> None:
    """Another implementation of the same function, to 1e-5 of the largest value; and it is another one."""
    references = outputs_of(name, framework, **SMALL[name])
    model, inputs = variant(name, framework, function, **SMALL[name])
    assert relative_difference(call(framework, model, inputs), references) < 1e-5
    plain, _ = builder(name, framework)(**SMALL[name])
    assert functions_of(model) != functions_of(plain)


def functions_of(model: Any) -> list[Any]:
    """What its modules are told to call, in the model's order."""
    named = model.named_modules() if hasattr(model, "named_modules") else model.cells_and_names()
    return [vars(each).get(key) for _, each in named for key in ("swish", "attend")]


@torch_only
def test_the_custom_operator_is_registered_in_full() -> None:
    """Schema, shapes for the compiler and gradients of the fused Swish: by PyTorch's own check."""
    torch = pytest.importorskip("torch")
    from autotune.models.torch.swiglu import fused_swish

    torch.library.opcheck(fused_swish, (torch.randn(4, 8, requires_grad=True),))


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
