"""`hf:NAME`: any model of Hugging Face transformers by name, offline and from its configuration alone."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.backends.outputs import output_arrays
from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.errors import InputError
from autotune.measure.measurement import Measurement
from autotune.planning.models import make_workload
from autotune.plugins.hubs import hubs
from autotune.trial.folder import TrialFolder
from autotune.workload.arguments import Arguments
from autotune.workload.build import build as build_workload
from autotune.workload.workload import Workload

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

BY_NAME = [name.removeprefix(hubs.SCHEME) for name in hubs.EXAMPLES]
each_example = pytest.mark.parametrize("name", BY_NAME)

Build = Callable[..., tuple[Any, dict[str, Any]]]


@pytest.fixture(scope="module")
def build() -> Build:
    built: Build = importlib.import_module("autotune.plugins.hubs.torch.hugging_face").build
    return built


def outputs(model: Any, inputs: dict[str, Any]) -> list[Any]:
    """As a trial sees them: a ModelOutput is a mapping, and what it holds is found."""
    from autotune.backends.torch.backend import TorchBackend

    with torch.no_grad():
        return output_arrays(TorchBackend(), Arguments.of(inputs).call(model))


@pytest.mark.parametrize(
    ("name", "arguments", "shapes"),
    [
        ("vit", {"batch": 2}, [(2, 17, 64), (2, 64)]),
        ("vit", {"head": "classification", "num_labels": 10}, [(1, 10)]),
        ("bert", {"seq": 8, "hidden_size": 32}, [(1, 8, 32), (1, 32)]),
        ("gpt2", {"head": "causal", "batch": 3, "seq": 4}, [(3, 4, 1000)]),
        ("gpt2", {"hidden_size": 32}, [(1, 32, 32)]),
        ("llama", {"head": "causal", "num_hidden_layers": 1}, [(1, 32, 1000)]),
        ("t5", {}, [(1, 32, 64), (1, 32, 64)]),
        ("resnet", {"image_size": 32}, [(1, 2048, 1, 1), (1, 2048, 1, 1)]),
        ("clip", {"part": "vision_model"}, [(1, 5, 64), (1, 64)]),
        ("whisper", {"seq": 8}, [(1, 8, 64), (1, 1500, 64)]),
        ("gemma3", {"seq": 8}, [(1, 8, 64)]),
        ("patchtst", {}, [(1, 1, 32, 64), (1, 1, 1), (1, 1, 1), (1, 1, 32, 1)]),
        ("qwen2_5_vl_vision", {"batch": 2}, [(32, 64), (8, 3584)]),
        ("blip_text_model", {"hidden_size": 32, "seq": 8}, [(1, 8, 32), (1, 32)]),
    ],
)
def test_arguments_set_the_model_and_its_inputs(build, name, arguments, shapes):
    """Head, sizes and fields of the configuration, under either of their names, show in the outputs' shapes."""
    arrays = outputs(*build(name, **arguments))
    assert [each.shape for each in arrays] == shapes
    assert all(np.isfinite(each).all() for each in arrays)


def test_a_part_of_another_model_is_built_within_it_and_called_as_it_calls_it(build):
    """A type that is no model by itself; its fields are fields of the part."""
    alone, (positional, keyword) = build("blip_text_model", num_hidden_layers=1)
    whole, inputs = build("blip", part="text_model")
    assert type(alone) is type(whole)
    assert len(alone.encoder.layer) == 1
    assert len(whole.encoder.layer) == 2
    assert [each.shape for each in keyword.values() if each is not None] == [
        each.shape for each in inputs[1].values() if each is not None
    ]
    assert not positional


@pytest.mark.slow
def test_a_decoder_gets_what_the_whole_model_has_computed(build):
    """SAM's decoder reads an image that has been encoded, and prompts: more than a configuration says."""
    decoder, inputs = build("sam_mask_decoder")
    assert type(decoder).__name__ == "SamMaskDecoder"
    assert all(np.isfinite(each).all() for each in outputs(decoder, inputs))


@pytest.mark.parametrize("name", ["clip", "blip", "whisper", "wav2vec2", "sam", "detr", "gemma3", "videomae", "llava"])
@pytest.mark.slow
def test_the_names_that_people_know_are_built_and_called(build, name):
    """Models of several parts, sounds, pictures with points, videos."""
    arrays = outputs(*build(name))
    assert arrays
    assert all(np.isfinite(each).all() for each in arrays)


@each_example
@pytest.mark.slow
def test_a_model_type_is_tiny_and_ready_to_be_called(build, name):
    """By configuration alone, a model is small enough for a trial of seconds, and in evaluation mode."""
    model, _ = build(name)
    assert not model.training
    assert sum(each.numel() for each in model.parameters()) < 1_000_000


def test_full_has_the_sizes_of_the_configuration(build):
    """`size=full` leaves what the configuration has by itself; single fields can still be set."""
    model, _ = build("vit", size="full", num_hidden_layers=1)
    assert (model.config.hidden_size, model.config.image_size) == (768, 224)
    assert model.config.num_hidden_layers == 1


@each_example
def test_the_seed_determines_weights_and_inputs(build, name):
    """Two builds from one seed give bitwise equal outputs, and another seed gives clearly different ones."""
    first, again, other = (outputs(*build(name, seed=seed)) for seed in (3, 3, 4))
    for one, same, different in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(one, same)
        assert np.abs(different - one).max() > 0.05 * np.abs(one).max()


@each_example
@pytest.mark.slow
def test_the_compiler_captures_the_whole_model(build, name):
    """Dynamo takes each example of a model type as one graph: masks, caches and outputs are no reason to break it."""
    model, inputs = build(name)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for got, expected in zip(outputs(compiled, inputs), outputs(model, inputs), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "arguments", "words", "tip"),
    [
        ("lama", {}, "hf:lama': transformers .* has no such model type", "llama"),
        ("zzzz", {}, "hf:zzzz': transformers .* has no such model type", "hf:vit"),
        ("vit", {"depth": 2}, "arguments depth: hf:vit has no such field", "num_hidden_layers"),
        ("vit", {"model_type": "bert"}, "arguments model_type: hf:vit has no such field", "batch, seq"),
        ("vit", {"hidden_size": "wide"}, "hf:vit': .*'hidden_size' expected int", ""),
        ("vit", {"head": "causal"}, "hf:vit': transformers .* has no such model with head=causal", "classification"),
        ("vit", {"head": "big"}, "arguments={'head': 'big'}: unknown", "own, classification"),
        ("vit", {"size": "big"}, "arguments={'size': 'big'}: unknown", "tiny, full"),
        ("vit", {"batch": 0}, "arguments={'batch': 0}: must be a whole number above zero", ""),
        ("bert", {"seq": "long"}, "arguments={'seq': 'long'}: must be a whole number above zero", ""),
        ("gpt2", {"hidden_size": 67}, "hf:gpt2': .*divisible", ""),
        (
            "clip",
            {"part": "vision"},
            "arguments={'part': 'vision'}: hf:clip has no such module",
            "did you mean vision_model",
        ),
        ("chameleon", {}, "hf:chameleon': is not made by its configuration alone: Attr", "FILE.py:FUNCTION"),
        ("moshi_depth", {}, "hf:moshi_depth': no inputs were found", "a part of hf:moshi"),
        ("dinat", {}, "hf:dinat': needs a package that is not installed here: .*natten", "install it"),
        ("nobody/nothing", {}, "hf:nobody/nothing': .*connect", "hf download"),
    ],
)
def test_a_mistake_is_a_sentence(build, name, arguments, words, tip):
    """What transformers does not have, load or take is said in one sentence, with what there is."""
    with pytest.raises(InputError, match=words) as caught:
        build(name, **arguments)
    assert tip in (caught.value.tip or "")
    assert "\n" not in str(caught.value)


# A model with its own weights


@pytest.fixture
def folder(build, tmp_path) -> Path:
    """A trained model as its author saved it: other weights than any seed of ours gives."""
    model, _ = build("vit", head="classification", num_labels=3)
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    model.save_pretrained(tmp_path / "mine")
    return tmp_path / "mine"


def test_a_folder_brings_its_own_weights_and_head(build, folder):
    """The head that the configuration names is kept, with its weights; inputs fit its image size."""
    model, inputs = build(str(folder), batch=2)
    assert type(model).__name__ == "ViTForImageClassification"
    assert model.classifier.bias.tolist() == [1.0, 2.0, 3.0]
    assert [each.shape for each in outputs(model, inputs)] == [(2, 3)]


def test_another_head_can_be_asked_for(build, folder):
    """Without its head, the model's body has the weights of the folder."""
    model, _ = build(str(folder), head="none")
    assert type(model).__name__ == "ViTModel"
    whole, _ = build(str(folder))
    assert torch.equal(model.embeddings.cls_token, whole.vit.embeddings.cls_token)


def test_code_that_a_model_brings_is_not_run(build, folder):
    """A model that needs Python code of its own is refused: tuning downloads weights, not programs."""
    config = json.loads((folder / "config.json").read_text())
    config.update(model_type="own_kind", auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    with pytest.raises(InputError, match="contains custom code"):
        build(str(folder))
    assert not (folder / "ran").exists()


# From the command line's words to a workload


def test_a_name_becomes_a_workload():
    """The type stands among the arguments, so that two studies of two types ask two questions."""
    made = make_workload("hf:bert", {"seq": 8}, "torch", "cpu", 3)
    assert made.arguments == {"seq": 8, "name": "bert"}
    built = build_workload(made)
    assert type(built.model).__name__ == "BertModel"
    assert built.inputs.keyword["input_ids"].shape == (1, 8)
    named = make_workload("hf:bert", {"name": "vit"}, "torch", "cpu", 0)
    assert named.arguments == {"name": "bert"}, "--model-arg name=... does not make another model of it"


def test_a_study_of_an_earlier_release_names_its_builder_where_it_is_now():
    """Builders were in `autotune.models`; what is no hub's stays, and is not looked for."""
    made = make_workload("hf:bert", {}, "torch", "cpu", 0)
    stored = {**made.model_dump(), "reference": "autotune.models.torch.hugging_face:build"}
    assert Workload.model_validate(stored).reference == made.reference
    bundled = {**stored, "model": "vit", "reference": "autotune.models.torch.vit:vit"}
    assert Workload.model_validate(bundled).reference == bundled["reference"]


def test_a_folder_is_seen_from_where_the_user_stands(tmp_path, monkeypatch):
    """A trial runs in a folder of its own; a name that is no folder is one of the Hub."""
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hubs.HF.name_of("models/mine", tmp_path) == str(tmp_path.resolve() / "models" / "mine")
    assert hubs.HF.name_of("models/other", tmp_path) == "models/other"
    assert hubs.HF.name_of("models", tmp_path) == "models"


def test_another_release_of_transformers_is_another_model(monkeypatch):
    """The models' code is in that package: a study does not go on under another release."""
    here = hubs.HF.digest("infer")
    monkeypatch.setattr(hubs, "package_version", lambda _: "0.1")
    assert hubs.HF.digest("infer") != here


@pytest.mark.slow
def test_a_trial_of_a_model_by_name(make_request, tmp_path):
    """In trials the compiled config is one graph, and its outputs agree with the untuned model's."""
    model = make_workload("hf:llama", {"head": "causal", "seq": 8}, "torch", "cpu", 0)
    untuned = make_request(None, workload=model, config=Config({"execution": "eager"}))
    compiled = make_request({"execution": "compile", "backend": "aot_eager", "dynamic": None}, workload=model)
    with LocalBench({}, preload=True, log=tmp_path / "log") as runner:
        assert isinstance(runner.run(TrialFolder(tmp_path / "untuned"), untuned), Measurement)
        outcome = runner.run(TrialFolder(tmp_path / "trial"), compiled)
    assert isinstance(outcome, Measurement)
    assert outcome.diagnosis.num_graphs == 1
    assert outcome.relative_error < 1e-4


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_on_the_command_line(cli):
    """It ends the command with a sentence that names the model and what to do, and no traceback."""
    told = cli("tune", "--model", "hf:nobody/nothing", "--framework", "torch", "--device", "cpu")
    assert told.returncode == 2
    assert "hf:nobody/nothing: We couldn't connect" in told.stderr
    assert "hf download" in told.stderr
    assert "Traceback" not in told.stderr


def test_the_list_of_models_says_how(cli):
    """`models` names each hub beside the bundled ones."""
    assert "hf:NAME" in cli("models").stdout
