"""The demonstrations in `examples/models`: each breaks, recompiles and declares what its own text says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.models.built import (
    SMALL,
    builder,
    call,
    further_inputs,
    mindspore_only,
    module_of,
    outputs_of,
    relative_difference,
    torch_only,
)

# The planner


@torch_only
@pytest.mark.fast_cases("planner")
@pytest.mark.parametrize("name", ["branching", "intersection", "planner"])
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
    model = f"{REPOSITORY}/examples/models/{name}.py:{name}"
    asked = ("--model", model, "--framework", "torch", "--knob", "backend=aot_eager", "--json", *sizes)
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
def test_every_declared_part_is_a_graph() -> None:
    """Each part that `intersection` names as a region is captured, alone, as one graph."""
    model, inputs = builder("intersection", "torch")(**SMALL["intersection"])
    import torch
    from torch._dynamo.utils import counters

    reference = call("torch", model, inputs)
    parts, _ = builder("intersection", "torch").__wrapped__()["regions"]
    for part in parts.split(", "):
        torch._dynamo.reset()
        counters.clear()
        compiled, _ = builder("intersection", "torch")(**SMALL["intersection"])
        compiled.get_submodule(part).compile(backend="eager", fullgraph=True)
        assert relative_difference(call("torch", compiled, inputs), reference) < 1e-5
        assert counters["stats"]["unique_graphs"] == 1, part


@mindspore_only
def test_mixed_attention_compiled_computes_the_same() -> None:
    """Compiled as a whole, both lengths give the untuned outputs."""
    model, inputs = builder("mixed_attention", "mindspore")(**SMALL["mixed_attention"])
    import mindspore

    each_inputs = (inputs, *further_inputs("mixed_attention", "mindspore", **SMALL["mixed_attention"]))
    references = [call("mindspore", model, each) for each in each_inputs]
    compiled = mindspore.jit(model)
    for each, reference in zip(each_inputs, references, strict=True):
        assert relative_difference(call("mindspore", compiled, each), reference) < 1e-5


# Variants


every_variant = pytest.mark.parametrize(
    ("framework", "function"),
    [
        pytest.param("torch", "use_fused_swish", marks=torch_only),
        pytest.param("torch", "use_math_attention", marks=torch_only),
        pytest.param("mindspore", "use_fused_swish", marks=mindspore_only),
    ],
)


def variant(name: str, framework: str, function: str, **sizes: int) -> tuple[Any, tuple[Any, ...]]:
    """A model with one of its variants, and its inputs."""
    model, inputs = builder(name, framework)(**sizes)
    getattr(module_of(name, framework), function)(model)
    return model, inputs


@every_variant
def test_a_variant_computes_the_same(framework: str, function: str) -> None:
    """Another implementation of the same function, to 1e-5 of the largest value; and it is another one."""
    references = outputs_of("swiglu", framework, **SMALL["swiglu"])
    model, inputs = variant("swiglu", framework, function, **SMALL["swiglu"])
    assert relative_difference(call(framework, model, inputs), references) < 1e-5
    plain, _ = builder("swiglu", framework)(**SMALL["swiglu"])
    assert functions_of(model) != functions_of(plain)


def functions_of(model: Any) -> list[Any]:
    """What its modules are told to call, in the model's order."""
    named = model.named_modules() if hasattr(model, "named_modules") else model.cells_and_names()
    return [vars(each).get(key) for _, each in named for key in ("swish", "attend")]


@torch_only
def test_the_custom_operator_is_registered_in_full() -> None:
    """Schema, shapes for the compiler and gradients of the fused Swish: by PyTorch's own check."""
    torch = pytest.importorskip("torch")
    from examples.models.swiglu_torch import fused_swish

    torch.library.opcheck(fused_swish, (torch.randn(4, 8, requires_grad=True),))
