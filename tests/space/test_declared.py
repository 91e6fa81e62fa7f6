"""What a model's author declares becomes knobs of the study: read in a child, searched, exported, applied in a job."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import autotune
from autotune import models
from autotune.bench.probe import read_declaration
from autotune.errors import InputError, MissingVariantError, SetupError
from autotune.planning.manifest import make_manifest
from autotune.planning.models import make_workload
from autotune.question.question import Question
from autotune.space.declared import Declaration, with_declared_knobs
from autotune.space.space import SearchSpace
from tests.conftest import QUICK_BUDGET, REPOSITORY

COMPILED = {"execution": "compile"}
VARIANTS = {"wait": {"long": None, "short": "net:shorten"}}


def names(space: SearchSpace) -> list[str]:
    return [knob.name for knob in space.knobs]


class TestKnobs:
    def test_of_regions_and_variants(self, space):
        """Behind the file's knobs; the model as it is comes first, and is what untuned and default are."""
        declared = Declaration(regions=("blocks.*", "whole", "whole but head"), variants=VARIANTS)
        joined = with_declared_knobs(space, declared, COMPILED, found_too=True)
        variant, region = joined.knobs[-2:]
        assert names(joined)[:-2] == names(space)
        assert (variant.name, variant.values, variant.when) == ("variant.wait", ("long", "short"), {})
        assert (region.name, region.values) == ("region", ("whole", "blocks.*", "whole but head"))
        assert region.when == COMPILED
        assert joined.untuned()["variant.wait"] == joined.default()["variant.wait"] == "long"
        assert "region" not in joined.untuned().root
        assert joined.default()["region"] == "whole"
        assert joined.size(10_000) > 3 * space.size(10_000)

    def test_nothing_declared_is_no_knob(self, space):
        """A space without declarations stays the very same question."""
        assert with_declared_knobs(space, Declaration(), COMPILED, found_too=True).fingerprint == space.fingerprint

    @pytest.mark.parametrize(
        ("regions", "found_too", "expected"),
        [
            (None, True, ("whole", "blocks.*")),
            (None, False, None),
            ((), True, None),
            (("head",), True, ("whole", "head")),
            (("whole",), True, None),
        ],
    )
    def test_what_was_found_gives_way(self, space, regions, found_too, expected):
        """Repeated blocks are tried where the author says nothing of regions, and the study wants them."""
        declared = Declaration(regions=regions, repeated="blocks.*")
        joined = with_declared_knobs(space, declared, COMPILED, found_too=found_too)
        assert [knob.values for knob in joined.knobs[len(space.knobs) :]] == ([expected] if expected else [])

    def test_a_space_that_compiles_nothing_has_no_region(self, space):
        """No knob is added that could never be active."""
        declared = Declaration(regions=("blocks.*",))
        assert "region" not in names(with_declared_knobs(space, declared, {"execution": "graph"}, found_too=True))
        assert "region" not in names(with_declared_knobs(space, declared, {"run": "compile"}, found_too=True))

    def test_a_name_that_is_taken(self, space):
        """The space file and the model declare the same knob: someone must give way."""
        once = with_declared_knobs(space, Declaration(variants=VARIANTS), COMPILED, found_too=True)
        with pytest.raises(InputError, match=r"has a knob variant\.wait"):
            with_declared_knobs(once, Declaration(variants=VARIANTS), COMPILED, found_too=True)


MODEL = """
import time
import numpy as np


class Part: ...


class Net:
    wait_s = 0.02
    weight = np.random.default_rng(0).normal(size=(8, 8))

    def __init__(self):
        self.parts = {path: Part() for path in ("blocks", "blocks.0", "blocks.1", "head")}

    def __call__(self, x):
        time.sleep(self.wait_s)
        return x @ self.weight


def shorten(model):
    model.wait_s = 0.001


def longer(model):
    model.wait_s = 0.04


def tiny(**more):
    print("built")
    return {"model": Net(), "inputs": np.ones((4, 8)), "regions": ["blocks.*"],
            "variants": {"wait": {"usual": None, "short": shorten, "long": longer}}, **more}


def misspelt():
    return tiny(regions=["blokcs.*"])


def broken():
    raise RuntimeError("no weights here")
"""
SPACE = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://example.org/x", values: [eager, compile], untuned: eager, default: compile}
"""


@pytest.fixture
def net(tmp_path, monkeypatch):
    """The model's file and a space, where the user stands."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "space.yaml").write_text(SPACE)
    yield
    sys.modules.pop("net", None)


def wish(model):
    return Question(build=model, framework="fake", device="cpu", space="space.yaml")


@pytest.mark.parametrize(
    ("framework", "effort", "tried"),
    [("torch", "quick", False), ("torch", "normal", True), ("mindspore", "normal", False)],
)
def test_where_repeated_blocks_are_tried_unasked(framework, effort, tried):
    """Where equal blocks share a compilation, and the search is no quick one."""
    pytest.importorskip(framework)
    space = make_manifest(Question(build="vit", framework=framework, device="cpu", effort=effort)).space
    assert ("region" in names(space)) is tried


@pytest.mark.torch
@pytest.mark.slow
def test_strategies_that_are_tried_under_traffic():
    """A bundled model is asked what may be padded, since its arguments decide."""
    pytest.importorskip("torch")

    def strategies(*arguments, shapes):
        asked = Question(build="bert_small", framework="torch", device="cpu", arguments=arguments, shapes=(shapes,))
        return {each.name: set(each.values) for each in make_manifest(asked).space.knobs}.get("shapes")

    assert "bucketed" not in strategies(shapes="seq=4..9")
    assert strategies("masked=true", shapes="seq=4..9") >= {"automatic", "bucketed"}
    assert strategies(shapes="batch=1..4") >= {"static", "bucketed"}


class TestAsked:
    def test_of_a_file(self, net):
        """The model is built in a child; what a job could not import has no place."""
        said = read_declaration(make_workload("net.py:tiny", {}, "fake", "cpu", 0), {})
        assert said.regions == ("blocks.*",)
        assert said.variants == {"wait": {"usual": None, "short": None, "long": None}}

    def test_of_a_package(self, net):
        """A function in a module that can be imported says where it is."""
        said = read_declaration(make_workload("net:tiny", {}, "fake", "cpu", 0), {})
        assert said.variants == {"wait": {"usual": None, "short": "net:shorten", "long": "net:longer"}}

    def test_a_region_that_fits_nothing_is_an_error(self, net):
        """It is found when the study is made, not in a trial."""
        with pytest.raises(InputError, match=r"net\.py:misspelt: .* no module of the model has the path 'blokcs\.\*'"):
            make_manifest(wish("net.py:misspelt"))

    def test_a_model_that_cannot_be_built_is_an_error(self, net):
        """Nobody searches without what its author declared; the sentence says why, and the log has the whole story."""
        with pytest.raises(
            SetupError, match=r"net\.py:broken could not be built: RuntimeError: no weights here"
        ) as refused:
            make_manifest(wish("net.py:broken"))
        log = Path(refused.value.tip.rpartition("full log: ")[2])
        assert "in broken" in log.read_text()
        shutil.rmtree(log.parent)

    def test_the_study_keeps_it(self, net):
        """Knobs and places are in the manifest: a study that goes on asks nobody."""
        manifest = make_manifest(wish("net:tiny"))
        assert names(manifest.space) == ["execution", "variant.wait", "region"]
        again = type(manifest).model_validate_json(manifest.model_dump_json(by_alias=True))
        assert again.variants == {"wait": {"usual": None, "short": "net:shorten", "long": "net:longer"}}


@pytest.mark.fast_cases("vit-torch")
@pytest.mark.parametrize("framework", ["torch", "mindspore"])
@pytest.mark.parametrize("model", ["vit", "resnet18"])
def test_the_table_of_bundled_models_says_what_they_declare(framework, model):
    """It spares the process that would build the model, and says the same."""
    pytest.importorskip(framework)
    said = read_declaration(make_workload(model, {}, framework, "cpu", 0), {})
    declared = Declaration.model_validate(models.declared(model))
    if framework == "mindspore":  # It has no knob that needs to know of a model's operators.
        declared = declared.model_copy(update={"met": (), "lacks": ()})
    assert said == declared


@pytest.mark.slow
def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    """The file that docs/regions-and-variants.md shows declares what the text says."""
    pytest.importorskip("torch")
    text = (REPOSITORY / "docs" / "regions-and-variants.md").read_text()
    (tmp_path / "net.py").write_text(text.partition("```python\n")[2].partition("```")[0])
    monkeypatch.chdir(tmp_path)
    said = read_declaration(make_workload("net:build", {}, "torch", "cpu", 0), {})
    assert said.regions == ("blocks.*", "whole but head")
    assert said.repeated == "blocks.*"
    assert said.variants == {"activation": {"plain": None, "fused": "net:use_fused_swish"}}


@pytest.mark.slow
def test_from_the_declaration_to_the_job(real_clock, cli, net, tmp_path, monkeypatch):
    """A variant is searched, wins, is exported by name and place, verified, and applied in a job that gives it."""
    in_blocks = QUICK_BUDGET.confirmation.model_copy(update={"first_look": 4, "num_looks": 2})
    budget_file = tmp_path / "budget.yaml"
    budget_file.write_text(
        QUICK_BUDGET.model_copy(update={"confirmation": in_blocks}).model_dump_json(exclude={"num_trials", "limits"})
    )
    done = cli(
        "tune", "--model", "net:tiny", "--framework", "fake", "--device", "cpu", "--space", "space.yaml",
        "--study", "s", "--budget", str(budget_file), "--trials", "9", "--effort", "exhaustive",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "variant.wait=short" in done.stdout
    assert cli("export", "s", "-o", "best.yaml").returncode == 0
    exported = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert exported["config"]["variant.wait"] == "short"
    assert exported["variants"] == {"wait": "net:shorten"}
    shown = json.loads(cli("show", "s", "--json").stdout)
    assert any("blocks.*" in json.dumps(trial["config"]) for trial in shown["trials"])
    assert cli("explain", "s").returncode == 0
    assert cli("verify", "best.yaml", "--budget", str(budget_file)).returncode == 0

    monkeypatch.syspath_prepend(str(tmp_path))
    import net as job

    model, waited = job.Net(), []
    monkeypatch.setattr(
        job.time, "sleep", lambda _: waited.append(getattr(sys._getframe(1).f_locals["self"], "wait_s", None))
    )
    for given, wait_s in ((job.shorten, 0.001), (job.longer, 0.04)):
        tuned = autotune.load(tmp_path / "best.yaml").apply(model, variants={"wait": {"short": given}})
        tuned(np.ones((4, 8)))
        assert wait_s in waited
    assert model.wait_s == 0.02


def test_a_job_without_the_variant_is_told(net, tmp_path, caplog):
    """Nothing is compiled, and nothing of the model is changed."""
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content["framework"], content["config"] = "fake", {"execution": "compile", "variant.wait": "short"}
    content["variants"] = {"wait": None}
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(content))
    assert autotune.load(tmp_path / "best.yaml").apply(print, on_mismatch="apply") is print
    assert "the variant wait=short, whose function the job must give" in caplog.text
    with pytest.raises(MissingVariantError, match="wait=short"):
        autotune.load(tmp_path / "best.yaml").apply(print, on_mismatch="raise")
