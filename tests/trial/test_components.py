"""A pipeline in a trial: what it calls is found by calling it, and its whole call is what is compared."""

from __future__ import annotations

import re

import pytest

from autotune.backends.registry import entry_of
from autotune.backends.undo import UndoLog
from autotune.bench import probe
from autotune.config import Config
from autotune.errors import InputError
from autotune.measure.accuracy import default_tolerance
from autotune.space.declared import Declaration, with_declared_knobs
from autotune.space.space import Knob, SearchSpace
from autotune.trial.worker.accuracy_check import WrongResultError
from autotune.trial.worker.calls import calls_for
from autotune.trial.worker.subjects import build_subject
from tests.dynamo_backends import registered

torch = pytest.importorskip("torch")

from autotune.backends.torch.backend import TorchBackend  # noqa: E402

pytestmark = pytest.mark.torch
EAGER = Config({"execution": "eager"})


def modules_of(pipe):
    """Path -> module, of all that it holds now."""
    named = ((name, whole.named_modules()) for name, whole in pipe.parts.items())
    return {f"{name}.{path}".strip("."): module for name, modules in named for path, module in modules}


@pytest.fixture
def pipeline(workload):
    """A workload of one of the pipelines that tests have."""

    def pipeline(name, **arguments):
        place = f"tests.stand_ins.pipelines:{name}"
        there = {"framework": "torch", "model": name, "reference": place, "arguments": arguments}
        return workload.model_copy(update=there)

    return pipeline


def declared(workload):
    return Declaration.model_validate(probe._declared(workload.model_dump_json()))


def seen(workload, config=EAGER):
    """What the gate compares of the pipeline under a config, and how the calls are undone."""
    torch._dynamo.reset()
    backend, changes = TorchBackend(), UndoLog()
    backend.prepare("cpu", 0)
    subject = build_subject(workload, backend)
    task = calls_for(workload, subject, backend)
    with task.recording():
        step = task.compile(config, changes)
        observed = task.observe(step, task.first(step, config, backend.clock, 0.0))
    return task, step, observed, subject, changes


def require_equal(workload, config):
    """As a trial does, with what rounding does to the untuned call."""
    task, step, reference, subject, _ = seen(workload)
    tolerance = default_tolerance(subject.dtypes)
    task.gate.refuse_unusable(reference, tolerance)
    with task.recording():
        reference = task.completed(reference, step, tolerance)
    task.gate.errors(task.gate.unpacked(task.gate.packed(reference)), seen(workload, config)[2], tolerance)


def test_components_are_what_the_call_calls(pipeline):
    """A decoder within an autoencoder whose own call is not made; the denoiser at each of its steps."""
    said = declared(pipeline("build"))
    found = {component.path: component for component in said.components}
    assert {path: component.calls for path, component in found.items()} == {"denoiser": 4, "text": 1, "vae.decoder": 1}
    assert [list(spec.shape) for spec in found["denoiser"].signature.inputs] == [[2, 8], [], [2, 8]]
    assert found["vae.decoder"].signature.model_class == "tests.stand_ins.pipelines.Decoder"
    assert 0 < sum(component.share for component in found.values()) <= 1
    assert said.repeated == "denoiser.blocks.*"


def test_components_are_what_a_study_chooses_from(pipeline):
    """There is no whole that could be compiled."""
    execution = Knob(name="execution", values=("eager", "compile"), when={}, default="compile", untuned="eager", doc="")
    space = SearchSpace(framework="torch", knobs=(execution,), forbid=())
    shares = {"denoiser": 0.7, "vae.decoder": 0.2, "text": 0.1}
    said = declared(pipeline("build"))
    found = tuple(each.model_copy(update={"share": shares[each.path]}) for each in said.components)
    said = said.model_copy(update={"components": found})
    knobs = with_declared_knobs(space, said, dict(entry_of("torch").compiled), found_too=True).knobs
    one, two, three = "denoiser", "denoiser, vae.decoder", "denoiser, vae.decoder, text"
    assert knobs[-1].values == (one, two, three, "denoiser.blocks.*")
    assert declared(pipeline("build", regions="text, vae.decoder")).regions == ("text, vae.decoder",)
    with pytest.raises(InputError, match=r"region 'vae\.encoder': the call calls no 'vae\.encoder' itself"):
        declared(pipeline("build", regions="vae.encoder"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("drawing", "draws random numbers without a seed.*torch.Generator"),
        ("in_training", r"draws random numbers .*call model\.eval\(\).*Dropout 'components\.net\.1'"),
        ("growing", r"vae\.decoder is called with inputs of 11 shapes"),
        ("elsewhere", "the call calls none of text, denoiser, vae"),
    ],
)
def test_a_call_that_cannot_be_tuned_is_refused(pipeline, name, told):
    """Before a study, with what to do."""
    with pytest.raises(InputError) as refused:
        declared(pipeline(name))
    assert re.search(told, f"{refused.value} {refused.value.tip}")


@pytest.mark.fast_cases("denoiser.blocks.*, vae.decoder", "None")
@pytest.mark.parametrize(
    "region", ["denoiser", "denoiser.blocks.*, vae.decoder", "text, denoiser, vae.decoder", "whole", None]
)
def test_compiled_components_give_what_the_untuned_call_gives(pipeline, region):
    """In any choice of them; and what is compiled is what the region names."""
    knobs = {} if region is None else {"region": region}
    config = Config({"execution": "compile", "backend": "aot_eager", **knobs})
    require_equal(pipeline("build"), config)
    _, _, _, subject, changes = seen(pipeline("build"), config)
    pipe = subject.model.pipeline
    tuned = modules_of(pipe)
    changes.undo()
    own = modules_of(pipe)
    changed = {path for path, module in own.items() if module is not tuned[path]}
    whole = {"text", "denoiser", "vae"} if region in (None, "whole") else set(region.split(", "))
    assert changed == {path.partition(".blocks")[0] for path in whole}


def test_a_component_that_computes_something_else_is_found_in_the_whole_call(pipeline):
    """By the picture that comes out at the end."""

    def wrong(graph, _):
        return lambda *inputs: tuple(output * 1.01 for output in graph(*inputs))

    config = Config({"execution": "compile", "backend": "wrong_by_a_hundredth", "region": "denoiser"})
    with registered(wrong, "wrong_by_a_hundredth"), pytest.raises(WrongResultError):
        require_equal(pipeline("build"), config)


class TestDiffusers:
    """Pipelines as they are."""

    @pytest.fixture(autouse=True)
    def _needs(self):
        pytest.importorskip("diffusers")

    def test_a_pipeline_is_called_alike_each_time_and_gives_numbers(self, pipeline):
        """With a generator of its own. A picture of 8 bits is refused."""
        said = declared(pipeline("stable_diffusion"))
        calls = {component.path: component.calls for component in said.components}
        assert calls == {"unet": 3, "vae.decoder": 1, "text_encoder": 2}
        with pytest.raises(InputError, match="images of 8 bits"):
            declared(pipeline("pictures"))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "region"), [("stable_diffusion", "unet, text_encoder"), ("dit", "transformer, vae.decoder")]
    )
    def test_compiled_components_give_the_same_pictures(self, pipeline, name, region):
        """A tiny Stable Diffusion, and a tiny DiT."""
        config = Config({"execution": "compile", "backend": "aot_eager", "region": region})
        require_equal(pipeline(name), config)


class TestTransformers:
    """Pipelines as they are."""

    def test_one_that_generates_text_has_a_task_of_its_own(self, pipeline):
        """A decoder with a cache, whatever it is asked for."""
        pytest.importorskip("transformers")
        with pytest.raises(InputError, match="model is called with a cache of the calls before") as refused:
            declared(pipeline("writer"))
        assert "generate" in refused.value.tip

    @pytest.mark.fast_cases("images")
    @pytest.mark.parametrize("name", ["texts", "images"])
    def test_a_pipeline_has_one_component(self, pipeline, name):
        """The model; texts and numbers are what is compared."""
        pytest.importorskip("transformers")
        said = declared(pipeline(name))
        assert [component.path for component in said.components] == ["model"]
        require_equal(pipeline(name), Config({"execution": "compile", "backend": "aot_eager", "region": "model"}))
