"""A pipeline of a job: tuned components in their places, and everything else as it was."""

from __future__ import annotations

import logging

import pytest
import yaml

import autotune
from autotune.backends.registry import load_backend
from autotune.bench import probe
from tests.dynamo_backends import registered
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")

from tests.stand_ins import pipelines  # noqa: E402

pytestmark = pytest.mark.torch
COMPILE = {"execution": "compile", "backend": "aot_eager"}


@pytest.fixture
def tuned(tmp_path, workload):
    """`tuned(NAME, REGION)`: the path of a file for a pipeline of the tests, as a study here would have written it."""

    def tuned(name, region, **changes):
        torch._dynamo.reset()
        place = {"framework": "torch", "model": name, "reference": f"tests.stand_ins.pipelines:{name}"}
        components = probe._declared(workload.model_copy(update=place).model_dump_json())["components"]
        content = {"components": components, **changes}
        return export(
            tmp_path / "best.yaml", "torch", {**COMPILE, "region": region}, torch.nn.Linear(1, 1), [], **content
        )

    return tuned


@pytest.fixture
def pipe():
    """An object of a user's own, with the tests' components."""

    class Pipe:
        def __init__(self):
            self.__dict__.update(pipelines.modules())
            self.name = "mine"

        def __call__(self, ids, steps=4):
            with torch.no_grad():
                return pipelines.call(self, ids, steps)

    return Pipe()


IDS = torch.arange(8).reshape(2, 4)


def test_components_are_tuned_in_their_places(tuned, pipe):
    """The pipeline is the job's own object; what the config does not name is untouched; `applied` puts all back."""
    path, expected = tuned("build", "denoiser, vae.decoder"), pipe(IDS)
    text, denoiser, vae, decoder = pipe.text, pipe.denoiser, pipe.vae, pipe.vae.decoder
    with autotune.load(path).applied(pipe, check=True) as given:
        assert given is pipe
        assert (pipe.text, pipe.vae, pipe.name) == (text, vae, "mine")
        assert pipe.denoiser is not denoiser
        assert pipe.vae.decoder is not decoder
        assert torch.allclose(pipe(IDS), expected, atol=1e-6)
        assert autotune.stats(pipe.denoiser).state == autotune.stats(pipe.vae.decoder).state == "tuned"
        assert list(pipe.vae.state_dict()) == list(pipelines.Autoencoder().state_dict())
    assert (pipe.denoiser, pipe.vae.decoder) == (denoiser, decoder)


def test_a_dict_of_components_is_filled(tuned):
    """For a job that has no object around them."""
    parts = pipelines.modules()
    denoiser = parts["denoiser"]
    assert autotune.load(tuned("build", "denoiser.blocks.*")).apply(parts) is parts
    assert parts["denoiser"] is not denoiser
    with torch.no_grad():
        step = (torch.ones(2, 8), torch.tensor(1), torch.ones(2, 8))
        assert torch.allclose(parts["denoiser"](*step), denoiser(*step))
    assert autotune.stats(parts["denoiser"]).state == "tuned"


def test_other_steps_and_sizes_go_on(tuned, pipe, caplog):
    """Another count of steps is no other call of a component. Another batch is said once, and made untuned. A text's
    first tokens are for the untuned encoder to take."""
    steps, larger = pipe(IDS, steps=7), pipe(IDS.repeat(1, 2))
    autotune.load(tuned("build", "denoiser, text")).apply(pipe)
    with caplog.at_level(logging.WARNING, "autotune"):
        assert torch.allclose(pipe(IDS.repeat(1, 2)), larger, atol=1e-6)
        assert torch.allclose(pipe(IDS.repeat(1, 2)), larger, atol=1e-6)
        assert [record.message.count("inputs int64[2, 4], here int64[2, 8]") for record in caplog.records] == [1]
        for _ in range(2):
            assert torch.allclose(pipe(IDS, steps=7), steps, atol=1e-6)
        assert torch.allclose(pipe(IDS.repeat(1, 2)), larger, atol=1e-6)
    assert len(caplog.records) == 1
    assert autotune.stats(pipe.text).state == autotune.stats(pipe.denoiser).state == "tuned"


def test_a_component_that_is_wrong_here_goes_untuned_and_the_others_stay(tuned, pipe, caplog):
    """Found by the check of its own outputs."""

    def wrong(graph, _):
        return lambda *inputs: tuple(output * (1.01 if output.shape == (2, 3) else 1) for output in graph(*inputs))

    expected = pipe(IDS)
    path = tuned("build", "denoiser, vae.decoder")
    content = yaml.safe_load(path.read_text())
    content["config"]["backend"] = "wrong_in_the_decoder"
    path.write_text(yaml.safe_dump(content))
    with registered(wrong, "wrong_in_the_decoder"):
        autotune.load(path).apply(pipe, check=True)
        assert torch.allclose(pipe(IDS), expected, atol=1e-6)
    assert "(vae.decoder): " in caplog.text or "the first outputs are wrong" in caplog.text
    assert autotune.stats(pipe.vae.decoder).state == "untuned"
    assert autotune.stats(pipe.denoiser).state == "tuned"
    assert (autotune.stats(pipe).state, autotune.stats(pipe).num_fallbacks) == ("tuned", 1)
    assert [event.message[:13] for event in autotune.stats(pipe).events] == ["vae.decoder: "]
    assert torch.allclose(pipe(IDS), expected, atol=1e-6)


def test_statistics_of_a_pipeline(tuned, pipe):
    """Those of its components, and what happened to any of them; calls of the pipeline itself are the job's."""
    autotune.load(tuned("build", "denoiser, vae.decoder")).apply(pipe, monitor=True)
    assert autotune.stats(pipe).state == "settling"
    pipe(IDS, steps=7)
    stats = autotune.stats(pipe)
    assert (stats.state, stats.num_calls, stats.num_fallbacks, stats.events) == ("tuned", None, 0, ())
    assert {path: part.num_calls for path, part in stats.components.items()} == {"denoiser": 7, "vae.decoder": 1}
    assert stats.num_compiles >= 2
    autotune.load(tuned("build", "denoiser, vae.decoder")).apply(other := pipelines.Denoiser())
    assert [event.kind for event in autotune.stats(other).events] == ["mismatch"]
    assert autotune.stats(other).state == "untuned"


def test_another_component_stays_untuned(tuned, pipe, caplog):
    """Where it has other parameters; an exception puts all back."""
    path, other = tuned("build", "denoiser, vae.decoder"), torch.nn.Linear(8, 3)
    pipe.vae.decoder = other
    denoiser = pipe.denoiser
    with pytest.raises(autotune.errors.AutotuneError, match="with other parameters than this Linear"):
        autotune.load(path).apply(pipe, on_mismatch="raise")
    assert pipe.denoiser is denoiser
    autotune.load(path).apply(pipe)
    assert "with other parameters than this Linear" in caplog.text
    assert pipe.vae.decoder is other
    assert pipe.denoiser is not denoiser


def test_a_component_that_is_offloaded_stays_untuned(tuned, pipe, caplog):
    """Its weights come and go around each call. One that is offloaded later gives what it gave."""
    accelerate = pytest.importorskip("accelerate")
    path, expected = tuned("build", "denoiser, text"), pipe(IDS)
    accelerate.cpu_offload(pipe.denoiser, execution_device=torch.device("cpu"))
    denoiser = pipe.denoiser
    autotune.load(path).apply(pipe)
    assert pipe.denoiser is denoiser
    assert "(denoiser) is moved to the device for each call (offload); the model stays untuned" in caplog.text
    assert torch.allclose(pipe(IDS), expected, atol=1e-6)
    accelerate.cpu_offload(pipe.text, execution_device=torch.device("cpu"))
    assert torch.allclose(pipe(IDS), expected, atol=1e-6)


def test_what_is_not_the_pipeline_stays_as_it_is(tuned, caplog):
    """One of its models alone, say."""
    path, denoiser = tuned("build", "denoiser"), pipelines.Denoiser()
    assert autotune.load(path).apply(denoiser) is denoiser
    assert "was tuned for a pipeline that calls" in caplog.text
    assert "denoiser is not in this Denoiser" in caplog.text
    with pytest.raises(autotune.errors.AutotuneError, match="is not in this Denoiser"):
        autotune.load(path).apply(denoiser, on_mismatch="raise")


def test_where_nothing_was_faster_nothing_is_put_in_place(tuned, pipe):
    """The pipeline is as it was."""
    before = dict(vars(pipe))
    autotune.load(tuned("build", "denoiser", verdict="not_faster")).apply(pipe)
    assert vars(pipe) == before


class TestDiffusers:
    """Pipelines as they are."""

    @pytest.fixture(autouse=True)
    def _needs(self):
        pytest.importorskip("diffusers")

    @staticmethod
    def drawn(pipe, inputs, **changes):
        generator = torch.Generator().manual_seed(0)
        return pipe(**{**inputs, "generator": generator, "output_type": "pt", **changes}).images

    @pytest.mark.slow
    def test_a_stable_diffusion_stays_what_it_is(self, tuned, tmp_path):
        """Pictures are equal, also with callbacks, other steps and sizes; it is saved and moved as before."""
        pipe, inputs = pipelines.stable_diffusion()
        steps, unet = [], pipe.unet
        cases = [{}, {"num_inference_steps": 5}, {"height": 16, "width": 24}]
        expected = [self.drawn(pipe, inputs, **case) for case in cases]
        autotune.load(tuned("stable_diffusion", "unet, text_encoder")).apply(pipe, check=True)
        assert pipe.unet is not unet
        for case, picture in zip(cases, expected, strict=True):
            assert torch.allclose(self.drawn(pipe, inputs, **case), picture, atol=1e-4), case
        assert autotune.stats(pipe.unet).state == "tuned"
        self.drawn(pipe, inputs, callback_on_step_end=lambda _, step, *rest: steps.append(step) or rest[-1])
        assert steps == [0, 1, 2]
        pipe.save_pretrained(tmp_path / "saved")
        again = type(pipe).from_pretrained(tmp_path / "saved").to("cpu")
        again.set_progress_bar_config(disable=True)
        assert type(again.unet) is type(unet)
        assert torch.allclose(self.drawn(again, inputs), expected[0], atol=1e-4)
        assert pipe.to(torch.float64).unet.dtype is torch.float64

    @pytest.mark.slow
    def test_a_dit_draws_the_same(self, tuned):
        """With blocks that are compiled each, once the untuned model has taken the class and the times of the steps."""
        pipe, inputs = pipelines.dit()
        expected = self.drawn(pipe, inputs, output_type="np")
        region = "transformer.transformer_blocks.*, vae.decoder"
        autotune.load(tuned("dit", region)).apply(pipe, check=True)
        for _ in range(2):
            assert abs(self.drawn(pipe, inputs, output_type="np") - expected).max() < 1e-4
        assert autotune.stats(pipe.transformer).state == autotune.stats(pipe.vae.decoder).state == "tuned"


@pytest.mark.fast_cases("images")
@pytest.mark.parametrize("name", ["texts", "images"])
def test_a_pipeline_of_transformers(tuned, name):
    """Its model is tuned, and its answers are the same."""
    pytest.importorskip("transformers")
    made = getattr(pipelines, name)()
    pipe, call = (made["pipeline"], made["call"]) if isinstance(made, dict) else (made[0], lambda pipe: pipe(*made[1]))
    expected = call(pipe)
    autotune.load(tuned(name, "model")).apply(pipe, check=True)
    assert [each["label"] for each in call(pipe)] == [each["label"] for each in expected]
    for got, each in zip(call(pipe), expected, strict=True):
        assert got["score"] == pytest.approx(each["score"], rel=1e-4)
    assert autotune.stats(pipe.model).state == "tuned"
    assert load_backend("torch").is_model(pipe.model)
