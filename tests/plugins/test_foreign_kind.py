"""A kind of work of somebody else's package: five modules, and no entry anywhere but its own."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import autotune
from autotune.config import Config
from autotune.measure.statistics import Verdict
from autotune.tuned.tuned_config import load_tuned
from autotune.workload.kinds import PACKAGES
from tests.conftest import REPOSITORY

FOREIGN = Path(__file__).parent / "foreign" / "embedding"
COMPILED = {"execution": "compile", "behaviour": "wrong", "latency_ms": 2}
SPACE = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://example.org/x", values: [eager, compile], untuned: eager, default: compile}
  behaviour: {doc: "https://example.org/x", when: {execution: compile}, values: [wrong], default: wrong}
  latency_ms: {doc: "https://example.org/x", values: [8, 2], default: 2, untuned: 8}
"""
MODEL = """
import numpy as np

def build():
    return {"model": encode, "embed": [np.ones((2, 8)), np.ones((4, 8))]}

def plain():
    return encode, np.ones((2, 8))

def encode(x):
    return x.sum(axis=1, keepdims=True) * np.ones(3)
"""


@pytest.fixture
def encoder(tmp_path):
    """The file of a model whose author says how its calls are compared, under a key of the package's."""
    (tmp_path / "encoder.py").write_text(MODEL)


@pytest.fixture
def embedding(install_backend, tmp_path):
    """The package, as pip leaves it."""
    install_backend("embedding", "embedding_entry", "import embedding as ENTRY", PACKAGES.group)
    shutil.copytree(FOREIGN, tmp_path / "site-packages" / "embedding")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "embedding"]:
        del sys.modules[name]


@pytest.fixture
def tune(cli, encoder, tmp_path, budget_file):
    """A study of a function of the encoder's file under a compiler that is fast and adds one to all that comes out: no
    vector of equal numbers has another direction for that."""
    space = tmp_path / "space.yaml"
    space.write_text(SPACE)

    def run(function):
        done = cli(
            "tune", f"encoder.py:{function}", "--framework", "fake", "--device", "cpu", "--space", str(space),
            "--study", function, "--budget", str(budget_file), "--trials", "2", "--json",
        )  # fmt: skip
        return done, json.loads(done.stdout)

    return run


def test_a_kind_of_another_package(embedding, tune, cli, tmp_path, caplog):
    """Its key is read, its calls are timed and compared in its own way, a section tells of it, and a job that loads the
    file checks calls as the trials did."""
    _, document = tune("build")
    assert [trial["state"] for trial in document["trials"]] == ["measured"] * 2
    assert "vectors a second, untuned" in cli("show", "build", "--why").stdout
    assert cli("export", "build", "-o", "best.yaml").returncode == 0
    tuned = load_tuned(tmp_path / "best.yaml")
    assert (tuned.kind.words, tuned.workload.signature.work) == ("embeddings", "embedding")
    tuned = tuned.model_copy(update={"verdict": Verdict.FASTER, "config": Config(COMPILED)})
    tuned.write(tmp_path / "best.yaml")
    made = runpy.run_path(str(tmp_path / "encoder.py"))
    model = autotune.load(tmp_path / "best.yaml").apply(made["encode"], check=True, margin=None)
    for _ in range(20):
        np.testing.assert_array_equal(model(np.ones((2, 8))), np.full((2, 3), 9.0))
    assert autotune.stats(model).state == "tuned"
    assert not caplog.records


def test_the_same_calls_without_it(embedding, tune):
    """They are calls of a model, of which that compiler is wrong."""
    _, document = tune("plain")
    assert [trial["outcome"].get("reason") for trial in document["trials"]] == [None, "wrong_result"]


def test_a_package_that_is_not_there(cli, encoder, space_file):
    """Its key is one that nobody knows."""
    refused = cli("tune", "encoder.py:build", "--framework", "fake", "--device", "cpu", "--space", str(space_file))
    assert refused.returncode == 2
    assert "returned a mapping with 'embed'" in refused.stderr


def test_a_file_of_a_package_that_is_not_there(tmp_path, caplog):
    """It leaves a job's model as it is, in a sentence."""
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content["workload"]["signature"]["work"] = "embedding"
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(content))
    assert autotune.load(tmp_path / "best.yaml").apply(np.sin) is np.sin
    assert "the kind of work 'embedding' is not installed" in caplog.text
