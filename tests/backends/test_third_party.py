"""Backends of torch.compile that other packages bring: what a job is kept from, whatever such a backend does.

Those of most tests are registered here, and do on purpose what inductor never does. OpenVINO and zentorch are run for
real where they are installed, which needs a release of PyTorch that fits.
"""

from __future__ import annotations

import importlib
import sys
import threading
from importlib import metadata
from types import ModuleType, SimpleNamespace

import pytest
import yaml

import autotune
from autotune import environment
from autotune.backends.torch.knobs import settings_of
from autotune.backends.torch.plain import plain_code
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.environment import vector_instructions
from autotune.errors import InvalidConfigError, UnsuitableCallError
from autotune.planning.spaces import bundled_space
from autotune.space import load as space_load
from autotune.space.load import Circumstances, load_space
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")

import torch._dynamo as dynamo  # noqa: E402
import torch._dynamo.config as dynamo_config  # noqa: E402
import torch._inductor.config as inductor_config  # noqa: E402

from autotune.backends.torch import third_party  # noqa: E402
from autotune.backends.torch.backend import TorchBackend  # noqa: E402

pytestmark = pytest.mark.torch
COMPILE = {"execution": "compile"}


class Rude:
    """A compiled graph with one place for its outputs and constant weights, which no two threads may enter at once."""

    def __init__(self, graph):
        self.graph = graph
        self.weights = {}
        self.places = None
        self.inside = threading.Semaphore(1)

    def __call__(self, *args):
        assert self.inside.acquire(blocking=False), "entered by two threads"
        for number, arg in enumerate(args):
            if isinstance(arg, torch.nn.Parameter):
                self.weights.setdefault(number, arg.detach().clone())
        with torch.no_grad():
            outputs = self.graph.forward(*(self.weights.get(number, arg) for number, arg in enumerate(args)))
        self.places = self.places or [torch.empty_like(output) for output in outputs]
        for place, output in zip(self.places, outputs, strict=True):
            place.copy_(output)
        self.inside.release()
        return self.places


@pytest.fixture
def rude():
    """Registers a backend `rude`, as a package does when it is imported."""
    registry = importlib.import_module("torch._dynamo.backends.registry")
    dynamo.reset()
    dynamo.register_backend(lambda graph, inputs: Rude(graph), name="rude")
    yield "rude"
    del registry._BACKENDS["rude"], registry._COMPILER_FNS["rude"]
    dynamo.reset()


def model_of(kind=torch.nn.Linear):
    torch.manual_seed(0)
    return kind(4, 4).eval()


def step_of(model, **settings):
    return TorchBackend().compile(model, Config({**COMPILE, **settings}), UndoLog())


def test_outputs_are_the_callers_own(rude):
    """A call does not overwrite what an earlier one gave, though the backend does."""
    model = model_of()
    step = step_of(model, backend=rude)
    with torch.no_grad():
        first, second = step(torch.ones(2, 4)), step(torch.zeros(2, 4))
        assert torch.equal(first, model(torch.ones(2, 4)))
        assert torch.equal(second, model(torch.zeros(2, 4)))


def test_the_backend_of_these_tests_is_rude(rude):
    """Without what is put around it, it overwrites outputs and keeps weights: the other tests would see it."""
    model = model_of()
    step = torch.compile(model, backend=rude)
    with torch.no_grad():
        kept = step(torch.ones(2, 4))
        step(torch.zeros(2, 4))
        assert torch.equal(kept, model(torch.zeros(2, 4)))
        model.weight.zero_()
        assert not torch.equal(step(torch.ones(2, 4)), model(torch.ones(2, 4)))


def test_weights_that_change_end_it(rude):
    """The backend may have made constants of them: no call is answered by the former ones."""
    model = model_of()
    step = step_of(model, backend=rude)
    with torch.no_grad():
        step(torch.ones(2, 4))
        model.weight.zero_()
        with pytest.raises(UnsuitableCallError, match="weights changed") as refused:
            step(torch.ones(2, 4))
    assert refused.value.lasting


def test_weights_around_a_function_are_watched(rude):
    """A function's model is around it, and none of its own parameters."""
    model = model_of()
    backend = TorchBackend()
    given = backend.as_model(lambda x: model(x) + 1).eval()
    step = backend.compile(given, Config({**COMPILE, "backend": rude}), UndoLog())
    with torch.no_grad():
        step(torch.ones(2, 4))
        model.weight.zero_()
        with pytest.raises(UnsuitableCallError, match="weights changed"):
            step(torch.ones(2, 4))


def test_no_gradients_are_promised(rude):
    """A call that records them is not answered, and neither a training step nor a step of generation takes it."""
    model = model_of()
    with pytest.raises(UnsuitableCallError, match="records gradients"):
        step_of(model, backend=rude)(torch.ones(2, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidConfigError, match="rude is for inference"):
        TorchBackend.training.training_step(
            model, lambda m, x: m(x).sum(), optimizer, Config({**COMPILE, "backend": rude}), UndoLog()
        )


def test_threads_wait_for_each_other(rude):
    """Two threads call it at a time; each gets its own answer."""
    model, wrong = model_of(), []
    step = step_of(model, backend=rude)
    with torch.no_grad():
        step(torch.ones(2, 4))

    def calls(value):
        given = torch.full((2, 4), float(value))
        with torch.no_grad():
            expected = model(given)
            wrong.extend(value for _ in range(200) if not torch.equal(step(given), expected))

    threads = [threading.Thread(target=calls, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_it_does_not_tell_is_said(rude):
    """The program, kernels and cache hits are unknown, and no zeros."""
    model, backend = model_of(), TorchBackend()
    backend.prepare("cpu", 0)
    config = Config({**COMPILE, "backend": rude})
    step = backend.compile(model, config, UndoLog())
    with torch.no_grad():
        step(torch.ones(2, 4))
    said = backend.diagnose(model, config)
    assert backend.program(model, config) is None
    assert (said.compiled, said.num_graphs, said.graph_breaks) == (True, 1, ())
    assert (said.cache_hits, said.num_kernels, said.num_fused) == (None, None, None)
    assert said.note == "rude does not tell of kernels, fusions and caches"


def test_a_graph_with_outputs_that_were_given(rude):
    """What a call was given comes back as the same tensor."""

    class Passes(torch.nn.Module):
        def forward(self, x):
            return x, x + 1

    given = torch.ones(2)
    with torch.no_grad():
        same, more = step_of(Passes().eval(), backend=rude)(given)
    assert same is given
    assert more.tolist() == [2.0, 2.0]


REFUSED = [
    ({"backend": "nowhere"}, "has no 'nowhere', only"),
    ({"backend": "nowhere", "mode": "default"}, "knob mode: is for backend=inductor only"),
    ({"backend": "nowhere", "freezing": True}, "knob freezing: is for backend=inductor only"),
    ({"backend": "zentorch", "freezing": True}, "knob freezing: is for backend=inductor only"),
    ({"zentorch_freezing": True}, "knob zentorch_freezing: is for backend=zentorch only"),
    ({"openvino_precision": "f32"}, "knob openvino_precision: is for backend=openvino only"),
    ({"backend": "openvino", "openvino_precision": "f64"}, "knob openvino_precision: 'f64' is none of f32, bf16, f16"),
    ({"backend": "openvino", "dynamic": True}, "knob dynamic: code of openvino is for one shape"),
    ({"backend": "openvino", "shapes": "marked"}, "knob shapes: code of openvino is for one shape"),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED, ids=str)
def test_what_means_nothing_is_refused(settings, words):
    """One sentence, before anything is changed."""
    with pytest.raises(InvalidConfigError) as refused:
        step_of(model_of(), **settings)
    assert words in str(refused.value)


def test_what_the_settings_of_a_package_come_to():
    """zentorch's freezing is inductor's, and both are asked for one shape where only one is known."""
    frozen = settings_of(Config({**COMPILE, "backend": "zentorch", "zentorch_freezing": True}))
    assert (frozen.compiler_options, frozen.freezes, frozen.dynamic) == ({"freezing": True}, True, False)
    plain = settings_of(Config({**COMPILE, "backend": "zentorch", "shapes": "automatic"}))
    assert (plain.freezes, plain.dynamic, plain.through_inductor) == (False, None, True)
    constant = settings_of(Config({**COMPILE, "backend": "openvino", "openvino_device": "CPU", "openvino_cache": True}))
    assert (constant.freezes, constant.dynamic, constant.compiler_options) == (True, False, {})
    assert constant.openvino == {"device": "CPU", "cache": True}


def test_the_answer_as_code():
    """The line imports the package; what autotune puts around its calls stands beside it."""
    config = Config({**COMPILE, "backend": "openvino", "openvino_device": "CPU", "openvino_precision": "bf16"})
    code = plain_code(config, "2.13.0", "cpu", "infer")
    assert code.line == (
        'import openvino.torch; model = torch.compile(model, backend="openvino", dynamic=False, '
        'options={"device": "CPU", "config": {"INFERENCE_PRECISION_HINT": "bf16"}})'
    )
    assert any("overwrite" in note for note in code.beside)


# A job.


def applied(folder, model, backend, *, policy=None, **environment):
    """What `apply` gives for an export of this backend, which was measured here but for what is named."""
    path = export(folder / "best.yaml", "torch", {**COMPILE, "backend": backend}, model, [torch.ones(2, 4)])
    content = yaml.safe_load(path.read_text())
    content["environment"] |= environment
    path.write_text(yaml.safe_dump(content))
    return autotune.load(path).apply(model, **(policy or {}))


def test_a_job_gets_what_the_untuned_model_gives(rude, tmp_path, caplog):
    """Outputs that are kept, weights that are trained on, gradients: with one warning once the weights have changed."""
    model = model_of()
    tuned = applied(tmp_path, model, rude)
    with torch.no_grad():
        first, second = tuned(torch.ones(2, 4)), tuned(torch.zeros(2, 4))
        assert autotune.stats(tuned).state == "settling"
        assert torch.equal(first, model(torch.ones(2, 4)))
        assert torch.equal(second, model(torch.zeros(2, 4)))
    tuned(torch.ones(2, 4)).sum().backward()
    assert model.weight.grad is not None
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    with torch.no_grad():
        assert torch.equal(tuned(torch.ones(2, 4)), model(torch.ones(2, 4)))
    assert autotune.stats(tuned).state == "untuned"
    assert "weights changed" in caplog.text


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({}, "was tuned for openvino 2026.4.1, here none; the model stays untuned"),
        ({"on_mismatch": "apply"}, "openvino is not installed; the model stays untuned; pip install openvino"),
    ],
    ids=["", "whatever differs"],
)
def test_a_job_without_the_package_stays_untuned(monkeypatch, tmp_path, caplog, policy, words):
    """One sentence of why."""
    there = environment.installed_packages()
    monkeypatch.setattr(environment, "installed_packages", lambda: {"torch": there["torch"]})
    monkeypatch.setattr(third_party, "package_version", lambda distribution: None)
    model = model_of()
    tuned = applied(tmp_path, model, "openvino", policy=policy, packages={**there, "openvino": "2026.4.1"})
    assert tuned is model
    assert words in caplog.records[-1].message


# The space: who is offered what.


def offered(monkeypatch, installed, version="2.14.1", preset="quick", points=(), **more):
    monkeypatch.setattr(space_load, "package_version", installed.get)
    group = "torch_dynamo_backends"
    found = metadata.EntryPoints(metadata.EntryPoint(name, "there:function", group) for name in points)
    monkeypatch.setattr(metadata, "entry_points", lambda group: found.select(group=group))
    here = Circumstances(version=version, device="cpu", preset=preset, **more)
    space = load_space(bundled_space("torch"), framework="torch", circumstances=here)
    return {knob.name: knob.values for knob in space.knobs if "backend" in {knob.name, *knob.when}}


def test_a_package_that_is_not_there_is_not_offered(monkeypatch):
    """Without one the backends are those that they were."""
    assert offered(monkeypatch, {})["backend"] == ("inductor",)


@pytest.mark.parametrize(("release", "fits"), [("2.14.1", True), ("2.13.0", False), ("2.15.0", False)])
def test_zentorch_is_for_one_release_of_torch(monkeypatch, release, fits):
    """It is built against a minor release, and is named after it."""
    found = offered(monkeypatch, {"zentorch": "2.14.0.1"}, version=release)
    assert found["backend"] == (("inductor", "zentorch") if fits else ("inductor",))


def test_openvino_and_its_own_settings(monkeypatch):
    """bfloat16 where that much error is tolerated, and never where gradients are recorded."""
    there = {"openvino": "2026.4.1"}
    found = offered(monkeypatch, there)
    assert (found["backend"], found["openvino_precision"]) == (("inductor", "openvino"), ("f32", "bf16"))
    assert offered(monkeypatch, there, tolerance=1e-3)["openvino_precision"] == ("f32",)
    assert offered(monkeypatch, there, records_gradients=True)["backend"] == ("inductor",)
    assert offered(monkeypatch, {"openvino": "2025.4.0"})["backend"] == ("inductor",)


def test_what_other_packages_register_is_offered(monkeypatch):
    """By their entry points, once each, after the known ones, and not to a quick study."""
    points, there = ("openvino", "tenth", "other"), {"openvino": "2026.4.1"}
    assert offered(monkeypatch, there, points=points)["backend"] == ("inductor", "openvino")
    assert offered(monkeypatch, there, points=points, preset="standard")["backend"] == (
        "inductor", "openvino", "other", "tenth",
    )  # fmt: skip


# Packages that are not here, by stand-ins.


@pytest.fixture
def installed(monkeypatch):
    """A package `zentorch` of which the test says what its import does."""

    def install(on_import, *, avx512=True):
        package, native = ModuleType("zentorch"), SimpleNamespace(is_avx512_supported=lambda: avx512)

        def imported(name):
            if name == "zentorch":
                on_import()
                return package
            return native if name == "zentorch._C" else importlib.import_module(name)

        monkeypatch.setattr(third_party, "importlib", SimpleNamespace(import_module=imported))
        monkeypatch.setattr(third_party, "package_version", {"zentorch": "2.14.0.1"}.get)

    registry = importlib.import_module("torch._dynamo.backends.registry")
    dynamo.reset()
    yield install
    for known in (registry._BACKENDS, registry._COMPILER_FNS):
        known.pop("zentorch", None)
    dynamo.reset()


def test_a_package_of_another_release_is_one_sentence(installed):
    """Its import fails, and says why."""

    def fail():
        raise ImportError("Incompatible PyTorch version 2.13.0 detected.\nMore of it.")

    installed(fail)
    with pytest.raises(InvalidConfigError) as refused:
        step_of(model_of(), backend="zentorch")
    assert str(refused.value) == (
        "knob backend: zentorch 2.14.0.1 cannot be imported here: ImportError: Incompatible PyTorch version 2.13.0 "
        "detected."
    )


@pytest.mark.parametrize("name", ["zentorch", "openvino"])
def test_a_package_that_is_missing_is_one_sentence(monkeypatch, name):
    """A job without it is told what to install."""
    monkeypatch.setattr(third_party, "package_version", lambda distribution: None)
    with pytest.raises(InvalidConfigError, match=f"knob backend: {name} is not installed") as refused:
        step_of(model_of(), backend=name)
    assert "pip install" in refused.value.tip


def test_a_processor_without_avx512_is_one_sentence(installed):
    """zentorch would hand the graph to inductor as it is, with a line in its log."""
    installed(lambda: None, avx512=False)
    with pytest.raises(InvalidConfigError, match="processor without AVX-512"):
        step_of(model_of(), backend="zentorch")


@pytest.mark.parametrize("frozen", [False, True])
def test_what_a_package_sets_is_put_back(installed, monkeypatch, frozen):
    """Its import turns a setting of dynamo off, and each compile leaves a pass behind, for what is compiled next."""
    seen = []

    def compiled(graph, inputs):
        inductor_config.joint_custom_post_pass = lambda graph: None
        seen.append((inductor_config.freezing, sum(node.op == "get_attr" for node in graph.graph.nodes)))
        return graph

    def register():
        dynamo_config.allow_rnn = True
        dynamo.register_backend(compiled, name="zentorch")

    installed(register)
    monkeypatch.setattr(third_party, "_INLINE", "allow_rnn")
    before = inductor_config.joint_custom_post_pass, inductor_config.fx_graph_cache
    model = model_of()
    with torch.no_grad():
        step = step_of(model, backend="zentorch", zentorch_freezing=frozen)
        assert torch.equal(step(torch.ones(2, 4)), model(torch.ones(2, 4)))
    assert seen == [(frozen, 2 if frozen else 0)]
    assert not dynamo_config.allow_rnn
    assert (inductor_config.joint_custom_post_pass, inductor_config.fx_graph_cache) == before
    assert not inductor_config.freezing
    if frozen:
        model.weight.data.zero_()
        with torch.no_grad(), pytest.raises(UnsuitableCallError, match="weights changed"):
            step(torch.ones(2, 4))


# The real ones.


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(inplace=True)
        )
        self.last = torch.nn.Linear(8, 5)

    def forward(self, x):
        return torch.nn.functional.gelu(self.last(self.layers(x).mean((2, 3))))


def small():
    torch.manual_seed(0)
    return Small().eval(), torch.randn(2, 3, 16, 16)


@pytest.fixture
def openvino():
    module = pytest.importorskip("openvino")
    dynamo.reset()
    yield module
    dynamo.reset()
    execute = sys.modules.get("openvino.frontend.pytorch.torchdynamo.execute")
    if execute is not None:
        execute.clear_caches()
        execute.req_cache.clear()


def test_openvino_for_real(openvino):
    """Right outputs, each the caller's own; the weights are watched; nothing stays set; it says what it runs."""
    model, given = small()
    backend = TorchBackend()
    backend.prepare("cpu", 0)
    config = Config({**COMPILE, "backend": "openvino", "openvino_device": "CPU", "openvino_precision": "f32"})
    step = backend.compile(model, config, UndoLog())
    with torch.no_grad():
        first, second = step(given), step(given * 2)
        torch.testing.assert_close(first, model(given), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(second, model(given * 2), rtol=1e-4, atol=1e-5)
    said = backend.diagnose(model, config)
    assert said.compiled
    assert said.note == "OpenVINO runs 1 of 1 parts; openvino does not tell of kernels, fusions and caches"
    with torch.no_grad():
        model.last.weight.zero_()
        with pytest.raises(UnsuitableCallError, match="weights changed"):
            step(given)


def test_openvino_hands_nothing_to_inductor(openvino, monkeypatch):
    """What it cannot cut into parts is refused, with its reason."""
    backend = importlib.import_module("openvino.frontend.pytorch.torchdynamo.backend")

    def fail(options):
        raise ValueError("no parts")

    monkeypatch.setattr(backend, "Partitioner", fail)
    words = "OpenVINO cannot compile a graph of this model: ValueError: no parts"
    with torch.no_grad(), pytest.raises(Exception, match=words):
        step_of(model_of(), backend="openvino")(torch.ones(2, 4))


def test_parts_that_fail_in_openvino_are_told(openvino):
    """It takes no bfloat16 tensors, and runs the part in PyTorch from the first call on: nothing is compiled then."""
    importlib.import_module("openvino.torch")
    sys.modules["openvino.frontend.pytorch.torchdynamo.execute"].clear_caches()
    model, backend = model_of().bfloat16(), TorchBackend()
    backend.prepare("cpu", 0)
    config = Config({**COMPILE, "backend": "openvino"})
    given = torch.ones(2, 4, dtype=torch.bfloat16)
    with torch.no_grad():
        torch.testing.assert_close(backend.compile(model, config, UndoLog())(given), model(given))
    said = backend.diagnose(model, config)
    assert not said.compiled
    assert "OpenVINO runs 0 of 1 parts; the others failed in it and run in PyTorch" in said.note


def test_openvino_in_a_job(openvino, tmp_path, caplog):
    """The job's outputs are the untuned model's, kept ones and those of weights that are trained on."""
    model = model_of()
    tuned = applied(tmp_path, model, "openvino")
    with torch.no_grad():
        given = torch.ones(2, 4), torch.zeros(2, 4)
        for output, expected in [(tuned(each), model(each)) for each in given]:
            torch.testing.assert_close(output, expected, rtol=2e-2, atol=2e-2)
        assert autotune.stats(tuned).state == "settling"
        model.weight.zero_()
        assert torch.equal(tuned(given[0]), model(given[0]))
    assert "weights changed" in caplog.text


def test_openvino_rounds_only_when_asked(openvino):
    """bfloat16 is its own choice on a processor that has it; `f32` keeps it from that."""
    if "bf16" not in (vector_instructions() or ""):
        pytest.skip("the processor has no bfloat16")
    model, given = small()
    with torch.no_grad():
        expected = model(given)
        errors = {
            name: (step_of(model, backend="openvino", openvino_precision=name)(given) - expected).abs().max()
            for name in ("f32", "bf16")
        }
    assert errors["f32"] < 1e-5 < errors["bf16"]


def test_openvino_is_not_given_nan(openvino):
    """Its relu would make a number of it."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    step, given = step_of(model, backend="openvino"), torch.ones(2, 4)
    given[0, 0] = float("nan")
    with torch.no_grad():
        step(torch.ones(2, 4))
        torch.testing.assert_close(step(given), model(given), equal_nan=True)
        assert step(given).isnan().any()


def test_openvino_has_the_jobs_threads(openvino):
    """Its own pool would have as many as there are cores."""
    settings = settings_of(Config({**COMPILE, "backend": "openvino"}))
    config = third_party._PACKAGES["openvino"].arguments(settings)["options"]["config"]
    assert config == {"INFERENCE_NUM_THREADS": torch.get_num_threads()}


def test_openvino_without_the_device(openvino):
    """One sentence, before anything is compiled."""
    with pytest.raises(InvalidConfigError, match="knob openvino_device: there is no 'TPU' here, only CPU"):
        step_of(model_of(), backend="openvino", openvino_device="TPU")


def test_the_cache_of_openvino_tells_weights_apart(openvino, tmp_path, monkeypatch):
    """Two models of one code and one cache folder: each has its own weights."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for seed in (1, 2):
        model, given = small()
        torch.manual_seed(seed)
        torch.nn.init.normal_(model.last.weight)
        dynamo.reset()
        with torch.no_grad():
            output = step_of(model, backend="openvino", openvino_precision="f32", openvino_cache=True)(given)
            torch.testing.assert_close(output, model(given), rtol=1e-4, atol=1e-5)
    assert list((tmp_path / "openvino").iterdir())


def test_zentorch_for_real():
    """Right outputs, frozen and not, in code that inductor emits; its pass does not stay."""
    pytest.importorskip("zentorch", exc_type=ImportError)
    dynamo.reset()
    model, given = small()
    backend = TorchBackend()
    backend.prepare("cpu", 0)
    for frozen in (False, True):
        config = Config({**COMPILE, "backend": "zentorch", "zentorch_freezing": frozen})
        step = backend.compile(model, config, UndoLog())
        with torch.no_grad():
            torch.testing.assert_close(step(given), model(given), rtol=1e-4, atol=1e-5)
        assert backend.program(model, config) is not None
        assert inductor_config.joint_custom_post_pass is None
