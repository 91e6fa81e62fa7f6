"""What another environment changes: real processes of two interpreters; one is slower, or computes something else."""

from __future__ import annotations

import json
import os
import sys

import pytest
import yaml

import autotune
from autotune.errors import InputError
from autotune.job.mismatch import question_of, retune_command
from autotune.measure.statistics import Speedup
from autotune.planning import manifest
from autotune.plugins.upgrade.command import upgrade_lines
from autotune.plugins.upgrade.environment import OtherEnvironment
from autotune.plugins.upgrade.upgrade import _judged
from autotune.question.question import Question, Scope
from autotune.study.budget import Budget
from autotune.tuned.tuned_config import load_tuned
from tests.conftest import QUICK_BUDGET, REPOSITORY, own_children

pytestmark = pytest.mark.usefixtures("in_memory")

MODEL = """
import os
import numpy as np

def tiny(rows=4, seed=0):
    weight = np.random.default_rng(seed).normal(size=(8, 8))
    added = float(os.environ.get("ADDED", 0))
    return (lambda x: x @ weight + added), np.random.default_rng(1).normal(size=(rows, 8))
"""
SLOW, FAST = {"execution": "eager", "latency_ms": 8}, {"execution": "compile", "behaviour": "right", "latency_ms": 2}


@pytest.fixture
def export(tmp_path):
    """An exported file of a model, tuned from 8 ms to 2 ms a call."""

    def write(**changes):
        (tmp_path / "model.py").write_text(MODEL)
        content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
        content["workload"]["model"] = f"{tmp_path / 'model.py'}:tiny"
        content.update(config=dict(FAST), untuned=dict(SLOW), **changes)
        path = tmp_path / "best.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.fixture
def environment(tmp_path):
    """Another environment, whose processes have these variables."""

    def make(**variables):
        python = tmp_path / "other" / "bin" / "python"
        python.parent.mkdir(parents=True)
        set_them = "".join(f"export {name}={value}\n" for name, value in variables.items())
        python.write_text(f'#!/bin/sh\n{set_them}exec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        return tmp_path / "other"

    return make


BUDGET = Budget.model_validate(QUICK_BUDGET.model_dump())


def test_the_same_release(export, environment):
    """Nothing is shown to be slower, and the config gains in both."""
    found = autotune.verify_against(export(), environment(), budget=BUDGET)
    assert (found.outcome, found.here) == ("holds", found.there)
    here, there = found.gains
    assert here.low > 1
    assert there.low > 1
    assert set(found.measured) == {"untuned", "tuned", "untuned-there", "tuned-there"}
    assert not own_children()


def test_a_release_that_is_slower(export, environment, cli, tmp_path):
    """Each call takes half as long again there: the command says which model changes by how much, and exits with 1."""
    path, other = export(), environment(FAKE_SLOWER="1.5")
    budget = tmp_path / "budget.yaml"
    budget.write_text(yaml.safe_dump(json.loads(BUDGET.model_dump_json())))
    done = cli("verify", str(path), "--against", str(other), "--budget", str(budget))
    assert done.returncode == 1, done.stdout + done.stderr
    headline, releases, untuned, tuned, gain, *_ = done.stdout.splitlines()
    assert headline.startswith("regressed: the model is slower under ")
    assert releases.split()[-1] == "change"
    assert untuned.split()[0] == "untuned"
    assert tuned.split()[0] == "tuned"
    assert gain.split()[0] == "gain"
    assert "untuned-there" in done.stderr


@pytest.mark.parametrize(
    ("change", "gain", "max_loss", "outcome"),
    [
        ((0.7, 0.8), (2.0, 2.2), 0.0, "regressed"),
        ((0.7, 0.8), (2.0, 2.2), 0.1, "regressed"),
        ((0.7, 0.8), (2.0, 2.2), 0.25, "holds"),
        ((0.9, 1.2), (2.0, 2.2), 0.0, "holds"),
        ((0.7, 0.8), (0.8, 0.9), 0.5, "regressed"),
        ((0.7, 0.8), (0.9, 1.2), 0.5, "unclear"),
        ((0.7, 0.8), None, 0.1, "regressed"),
        ((0.7, 0.8), None, 0.25, "holds"),
    ],
)
def test_what_may_be_lost_is_a_share_of_the_speed_here(change, gain, max_loss, outcome):
    """Slower than the untuned model there is no such loss, and a gain has to be shown all the same."""
    change, gain = (ends and Speedup(median=sum(ends) / 2, low=ends[0], high=ends[1]) for ends in (change, gain))
    found, why = _judged(change, gain, was_faster=True, there="2", max_loss=max_loss)
    assert found == outcome
    assert ("by more than" in why) == (max_loss > 0 and outcome != "unclear" and "the config" not in why)


def test_no_share(export, environment):
    """Neither is it ignored."""
    with pytest.raises(InputError, match="max_loss=10: is not a share"):
        autotune.verify_against(export(), environment(), max_loss=10)


def test_a_release_that_computes_something_else(export, environment):
    """The untuned model's outputs there are not those of here."""
    found = autotune.verify_against(export(), environment(ADDED="1"), budget=BUDGET)
    assert found.outcome == "wrong"
    assert "the untuned model fails there (wrong_result at check)" in found.why
    assert upgrade_lines(found) == [f"wrong: {found.why}"]


def test_a_file_that_leaves_the_model_untuned(export, environment):
    """The untuned model alone is compared."""
    path = export()
    content = yaml.safe_load(path.read_text())
    content.update(config=content["untuned"], verdict="tie")
    path.write_text(yaml.safe_dump(content))
    found = autotune.verify_against(path, environment(FAKE_SLOWER="1.5"), budget=BUDGET)
    assert (found.outcome, found.tuned) == ("regressed", None)
    assert found.untuned.high < 1


OWN_SPACE = """
schema: 1
framework: torch
knobs:
  execution: {doc: "https://docs.pytorch.org/docs/stable/", values: [eager, compile], untuned: eager, default: compile}
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    "flags",
    [
        {"task": "train", "effort": "quick"},
        {"fixed_precision": True, "effort": "exhaustive"},
        {"process_settings": True, "objective": "throughput", "instances": "2"},
        {"space": "own.yaml"},
    ],
)
def test_the_space_that_an_export_asks_for_is_that_of_the_study(export, tmp_path, monkeypatch, flags):
    """Of a bundled model's study of PyTorch, written to a file and read again; by default it is another one."""
    monkeypatch.setattr("autotune.planning.spaces.num_usable_cores", lambda: 2)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(OWN_SPACE)
    question = Question.of({"build": "vit", "framework": "torch", "device": "cpu", **flags})
    study = manifest.make_manifest(question)
    content = yaml.safe_load(export(search=study.search.model_dump(mode="json")).read_text())
    content["framework"] = "torch"
    content["workload"] |= {"model": "vit", "task": study.workload.task, "objective": study.objective.name}
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(content))
    asked = question_of(load_tuned(tmp_path / "best.yaml"))
    searched_again, by_default = (
        manifest.make_manifest(Question.of({**asked, **more})).space.fingerprint
        for more in ({}, Scope().asked_of(question.task))
    )
    assert searched_again == study.space.fingerprint
    assert by_default != study.space.fingerprint


def test_an_export_says_what_was_searched(tune_fake, cli, tmp_path):
    """As it was asked; the hint of a job asks the same."""
    assert tune_fake("--trials", "3", "--effort", "quick", "--fixed-precision").returncode == 0
    assert cli("export", "s", "-o", "best.yaml").returncode == 0
    tuned = load_tuned(tmp_path / "best.yaml")
    assert (tuned.search.preset, tuned.search.fixed_precision, tuned.search.own_loop) == ("quick", True, False)
    assert os.path.isabs(tuned.search.space)
    hint = retune_command(tuned)
    assert "--effort quick" in hint
    assert "--fixed-precision" in hint
    assert f"--space {tuned.search.space}" in hint


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "no Python is there"),
        ("exit 3", "cannot run trials"),
        ("echo no such module >&2; exit 1", "no such module"),
        *((f"echo '{said}'", "does not answer as a Python does") for said in ("", "[1, 2]")),
        (r"printf '\377\n'", "does not answer as a Python does"),
        ("exec yes", "did not answer within"),
        (b"not a program", "cannot be started: Exec format error"),
    ],
)
def test_an_environment_that_is_of_no_use(tmp_path, script, words):
    """In a sentence, before anything is measured."""
    if script is not None:
        (tmp_path / "bin").mkdir()
        python = tmp_path / "bin" / "python"
        python.write_bytes(script if isinstance(script, bytes) else f"#!/bin/sh\n{script}\n".encode())
        python.chmod(0o755)
    with pytest.raises(InputError, match=words):
        OtherEnvironment.of(tmp_path, "fake")


@pytest.mark.parametrize("place", ["/bin/true", "~nobody-of-that-name/venv", "nul\0"])
def test_a_place_where_no_environment_is(place):
    """It may be a program of another kind, or no place at all."""
    with pytest.raises(InputError, match=r"(no Python is there|does not answer as a Python does)"):
        OtherEnvironment.of(place, "fake")


def test_an_environment_that_says_more(tmp_path):
    """Its own modules may print at the start and at the end, and what it has started may live on."""
    python = tmp_path / "python"
    said = '{"python": "3", "framework": "1"}'
    python.write_text(f"#!/bin/sh\nsleep 60 &\necho hello\necho '{said}'\necho farewell\n")
    python.chmod(0o755)
    assert OtherEnvironment.of(python, "fake").framework_version == "1"


OTHER = os.environ.get("AUTOTUNE_OTHER_ENVIRONMENT")


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.skipif(OTHER is None, reason="AUTOTUNE_OTHER_ENVIRONMENT names no environment with another torch")
def test_two_releases_of_torch(tmp_path):
    """A compiled model under both releases: outputs agree, and all that is compared is there."""
    from autotune.models.torch.vit import vit
    from benchmarks.made_up_export import made_up_export

    built = vit(image=32, dim=32, depth=1, heads=2)
    config = {"execution": "compile", "backend": "inductor", "mode": "default"}
    content = made_up_export(built["model"], built["inputs"][0], config)
    content["workload"] |= {"model": "vit", "arguments": {"image": 32, "dim": 32, "depth": 1, "heads": 2}}
    num_parameters = sum(each.numel() for each in built["model"].parameters())
    content["workload"]["signature"] |= {
        "model_class": "autotune.models.torch.vit._ViT", "num_parameters": num_parameters, "items_per_call": 1
    }  # fmt: skip
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(content))
    found = autotune.verify_against(tmp_path / "best.yaml", OTHER, budget="4m")
    assert found.outcome != "wrong", found.why
    assert found.here != found.there
    assert all(measured.program is not None for measured in found.measured.values())
