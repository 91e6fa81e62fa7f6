"""What another environment changes: real processes of two interpreters; one is slower, or computes something else."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext

import pytest
import yaml

import autotune
from autotune.api import running, tuning, upgrading
from autotune.config import Config
from autotune.errors import InputError
from autotune.job.mismatch import retune_command
from autotune.measure.measurement import Failure, Reason, Stage
from autotune.measure.objective import Objective
from autotune.measure.statistics import Speedup, Verdict
from autotune.planning import manifest
from autotune.planning.shapes import shapes_asked
from autotune.question.question import Question, Scope
from autotune.render.json import upgrade_document
from autotune.render.side_by_side import upgrade_lines
from autotune.space.declared import Declaration
from autotune.study.budget import Budget
from autotune.study.folder import FolderStudies
from autotune.tuned.tuned_config import load_tuned
from autotune.verification.retune import SearchThere
from autotune.verification.upgrade import Environment, Upgrade, _judged
from autotune.workload.traffic import Shapes, parse_shapes, read_traffic
from tests.conftest import QUICK_BUDGET, REPOSITORY, ScriptedTrials, own_children, with_latency

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


@pytest.fixture
def studied(export, space_file):
    """An exported file that says which space was searched: the user's own."""
    return export(search={"space": str(space_file)})


def searched(tmp_path, path, other, **more):
    return autotune.verify_against(
        path, other, retune=True, budget=BUDGET, studies_dir=tmp_path / "studies", progress=False, **more
    )


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


@pytest.mark.slow
def test_a_loss_may_be_allowed(export, environment, cli, tmp_path):
    """`--max-loss` counts: calls take half as long again there, so a third of the speed is lost, and half may be."""
    budget = tmp_path / "budget.yaml"
    budget.write_text(yaml.safe_dump(json.loads(BUDGET.model_dump_json())))
    given = ("verify", str(export()), "--against", str(environment(FAKE_SLOWER="1.5")), "--budget", str(budget))
    done = cli(*given, "--max-loss", "0.5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("holds: the model is slower under ")
    assert done.stdout.splitlines()[0].endswith(", and not shown to be so by more than 50%")


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


@pytest.fixture
def compared(monkeypatch):
    """The comparison has been made."""
    monkeypatch.setattr(upgrading, "upgrade", lambda *_, **__: Upgrade("regressed", "slower", "0", "0"))


@pytest.fixture
def searching_here(monkeypatch, measurement, compared):
    """A search there is one in this process, whose trials are as fast as `latency_s` says of a config."""

    def script(latency_s):
        def outcome(_name, _block, config):
            found = latency_s(config)
            return found if isinstance(found, Failure) else with_latency(measurement, found)

        def run(self, budget, folder, *, progress):
            assert progress is False
            tuning.tune(**self.question, budget=budget, progress=False)

        monkeypatch.setattr(manifest, "read_declaration", lambda *_: Declaration())
        monkeypatch.setattr(running, "bench_here", lambda *_: nullcontext(ScriptedTrials(outcome)))
        monkeypatch.setattr(SearchThere, "run", run)

    return script


CRASH = Failure(reason=Reason.CRASH, stage=Stage.RUN, error="killed", evidence="")


@pytest.mark.parametrize(
    ("slow", "verdict", "is_other", "words"),
    [
        ({}, "faster", False, "the exported config is the best there"),
        ({2: 30}, "faster", True, "another config is the best there: "),
        ({2: CRASH}, "faster", True, "; the exported one fails (crash at run)"),
        ({2: 9, 6: 9}, "tie", True, "nothing is shown to be faster than the untuned model there"),
    ],
)
def test_what_a_search_there_says(studied, environment, tmp_path, searching_here, slow, verdict, is_other, words):
    """Whether the exported config is still the best, what is in its place, and by how much that is better."""

    def latency_s(config):
        found = slow.get(config["latency_ms"], config["latency_ms"])
        return found if isinstance(found, Failure) else found / 1e3

    searching_here(latency_s)
    found = searched(tmp_path, studied, environment())
    retuned = found.retuned
    assert (retuned.verdict, retuned.is_other) == (verdict, is_other)
    assert words in retuned.why
    assert (retuned.command is None) == (verdict != "faster")
    assert [line for line in upgrade_lines(found) if retuned.why in line]
    assert upgrade_document(found)["retuned"]["config"] == retuned.config.root
    if retuned.over_exported is not None:
        assert retuned.why.endswith(" as fast as the exported one") or verdict != "faster"


@pytest.mark.slow
def test_another_config_is_best_there(studied, environment, tmp_path):
    """What the file promises is slow there: a search with the same question finds the next best, beginning with the
    exported config, and says by how much it is better. Its study can be exported."""
    found = searched(tmp_path, studied, environment(FAKE_SLOWED="latency_ms=2"))
    assert found.outcome == "regressed"
    retuned = found.retuned
    assert (retuned.study, retuned.verdict, retuned.is_other) == ("s-0", Verdict.FASTER, True)
    assert retuned.config["latency_ms"] == 6
    assert retuned.gain.low > 1
    assert retuned.why.startswith("another config is the best there: ")
    result = autotune.load_study("s-0", studies_dir=tmp_path / "studies")
    tried = [trial.config for trial in result.answer.records]
    assert Config(FAST) in tried
    assert result.export(tmp_path / "new.yaml").config == retuned.config
    assert any(retuned.why in line for line in upgrade_lines(found))
    assert upgrade_document(found)["retuned"]["config"] == retuned.config.root
    assert not own_children()


@pytest.mark.slow
def test_the_exported_config_is_still_the_best_there(studied, environment, cli, tmp_path):
    """The command says so, below the table."""
    budget = tmp_path / "budget.yaml"
    budget.write_text(yaml.safe_dump(json.loads(BUDGET.model_dump_json())))
    done = cli("verify", str(studied), "--against", str(environment()), "--retune", "--budget", str(budget))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  search    the exported config is the best there" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1].endswith("export s-0 -o s-0.yaml")


def test_a_search_that_fails_costs_no_comparison(studied, environment, tmp_path, compared):
    """The model cannot be built in the search's environment: its sentence stands below what was compared."""
    found = searched(tmp_path, studied, environment(ADDED="none"))
    assert found.outcome == "regressed"
    assert found.retuned.why.startswith("the search there failed: ")
    assert (found.retuned.verdict, found.retuned.config) == (None, None)


def test_where_the_untuned_model_fails_nothing_is_searched(studied, environment, tmp_path):
    """No config could be shown to be right."""
    found = searched(tmp_path, studied, environment(ADDED="1"))
    assert (found.failed, found.retuned) == ("untuned-there", None)
    assert upgrade_lines(found) == [f"wrong: {found.why}"]


def test_what_is_asked_there(export, tmp_path):
    """All that the file knows of its question, the part that decides which configs there are among it."""
    path, space = export(), tmp_path / "own.yaml"
    space.write_text("")
    tuned, studies = load_tuned(path), FolderStudies(tmp_path / "studies")
    workload = tuned.workload.model_copy(
        update={
            "objective": "p90", "constraints": ("peak_memory <= 2GiB",), "seed": 3, "tolerance": 0.1, "task": "train",
        }
    )  # fmt: skip
    environment = tuned.environment.model_copy(update={"variables": {"OMP_NUM_THREADS": "2"}})
    scope = Scope(space=str(space), preset="quick", fixed_precision=True, process_settings=True, own_loop=True)
    changes = {"framework": "torch", "workload": workload, "environment": environment, "search": scope}
    search = SearchThere.of(
        tuned.model_copy(update=changes), tmp_path, "2.15.0+cpu", studies, folder=tmp_path, file="b.yaml", storage=""
    )
    assert search.study == "s-2.15.0-cpu"
    asked = Question.of({**search.question, "build": [search.question["build"]]})
    assert (asked.task, asked.objective, asked.constraints, asked.seed, asked.tolerance) == (
        "train", ("p90",), ("peak_memory <= 2GiB",), 3, 0.1
    )  # fmt: skip
    assert (asked.env, asked.prior, asked.storage) == ({"OMP_NUM_THREADS": "2"}, ("b.yaml",), "")
    assert asked.scope == scope


@pytest.mark.parametrize(("space", "words"), [(None, "no bundled search space for fake"), ("gone.yaml", "key search")])
def test_a_space_that_is_not_here_is_not_searched(export, tmp_path, space, words):
    """The framework has none, or that of the study is gone: in a sentence, before anything is measured."""
    tuned = load_tuned(export(search={"space": space}))
    with pytest.raises(InputError, match=words):
        SearchThere.of(tuned, tmp_path, "1", FolderStudies(tmp_path), folder=tmp_path, file=None)


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
        {"task": "train", "own_loop": True, "preset": "quick"},
        {"fixed_precision": True, "preset": "exhaustive"},
        {"process_settings": True, "objective": ("throughput",), "instances": "2"},
        {"space": ["own.yaml"]},
    ],
)
def test_the_space_that_is_searched_there_is_that_of_the_study(export, tmp_path, monkeypatch, flags):
    """Of a bundled model's study of PyTorch, written to a file and read again; by default it is another one."""
    monkeypatch.setattr("autotune.planning.spaces.num_usable_cores", lambda: 2)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(OWN_SPACE)
    question = Question.of({"build": ["vit"], "framework": "torch", "device": "cpu", **flags})
    study = manifest.make_manifest(question)
    content = yaml.safe_load(export(search=study.search.model_dump(mode="json")).read_text())
    content["framework"] = "torch"
    content["workload"] |= {"model": "vit", "task": study.workload.task, "objective": study.objective.name}
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(content))
    searched_again, by_default = (
        manifest.make_manifest(Question.of({**asked, "build": [asked["build"]]})).space.fingerprint
        for asked in (_asked_there(tmp_path), {**_asked_there(tmp_path), **Scope().model_dump()})
    )
    assert searched_again == study.space.fingerprint
    assert by_default != study.space.fingerprint


def _asked_there(tmp_path):
    tuned = load_tuned(tmp_path / "best.yaml")
    return SearchThere.of(tuned, tmp_path, "1", FolderStudies(tmp_path), folder=tmp_path, file="best.yaml").question


def test_an_export_says_what_was_searched(tune_fake, cli, tmp_path):
    """As it was asked; the hint of a job and a search in another environment ask the same."""
    assert tune_fake("--trials", "3", "--preset", "quick", "--fixed-precision").returncode == 0
    assert cli("export", "s", "-o", "best.yaml").returncode == 0
    tuned = load_tuned(tmp_path / "best.yaml")
    assert (tuned.search.preset, tuned.search.fixed_precision, tuned.search.own_loop) == ("quick", True, False)
    assert os.path.isabs(tuned.search.space)
    hint = retune_command(tuned)
    assert "--preset quick --fixed-precision" in hint
    assert f"--space {tuned.search.space}" in hint


@pytest.mark.parametrize("written", ["batch=1:60%,4:40%", None])
def test_traffic_is_asked_for_there(export, tmp_path, written):
    """In words where they say it, else as a log; its dimensions are no arguments then."""
    log = tmp_path / "log.jsonl"
    log.write_text('{"batch": 1, "seq": 8, "count": 2}\n{"batch": 4, "seq": 16}\n')
    traffic = read_traffic(log) if written is None else parse_shapes([written])
    tuned = load_tuned(export())
    workload = tuned.workload.model_copy(update={"arguments": {**traffic.largest, "width": 3}, "objective": "total:9"})
    changes = {
        "framework": "torch", "workload": workload, "shapes": Shapes(traffic=traffic, inputs=(), outputs=()),
        "config": Config({"execution": "compile"}),
    }  # fmt: skip
    studies = FolderStudies(tmp_path / "studies")
    search = SearchThere.of(tuned.model_copy(update=changes), tmp_path, "1", studies, folder=tmp_path, file="b.yaml")
    asked = Question.of({**search.question, "build": [search.question["build"]]})
    assert asked.arguments == {"width": 3}
    assert shapes_asked(asked).loads[0].share == pytest.approx(traffic.loads[0].share)


def test_the_tip_stands_where_a_search_may_help():
    """The old answer is none any more, and nothing was searched."""
    lost = Upgrade("regressed", "slower", "1", "2", Objective())
    assert "retune" in upgrade_lines(lost)[-1]
    assert len(upgrade_lines(Upgrade("holds", "as before", "1", "2", Objective()))) == 1
    assert len(upgrade_lines(Upgrade("wrong", "it fails", "1", "2", failed="untuned-there"))) == 1


def test_a_search_without_a_comparison_is_refused(export, cli):
    """It is made in another environment."""
    done = cli("verify", str(export()), "--retune")
    assert done.returncode == 2
    assert "--against" in done.stderr


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "no Python is there"),
        ("exit 3", "cannot run trials"),
        ("echo no such module >&2; exit 1", "no such module"),
        *((f"echo '{said}'", "does not answer as a Python does") for said in ("", "[1, 2]", "null", '{"python": 3}')),
        (r"printf '\377\n'", "does not answer as a Python does"),
        (f"printf '{'[' * 900}'", "does not answer as a Python does"),
        ("exec yes", "did not answer within"),
        (b"not a program", "cannot be started: Exec format error"),
        (b"#!/nosuch/x\n", "cannot be started: No such file"),
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
        Environment.of(tmp_path, "fake")


@pytest.mark.parametrize("place", ["/bin/true", "~nobody-of-that-name/venv", "nul\0", "n" * 5000, "/dev/null", ""])
def test_a_place_where_no_environment_is(place):
    """It may be a program of another kind, or no place at all."""
    with pytest.raises(InputError, match=r"(no Python is there|does not answer as a Python does)"):
        Environment.of(place, "fake")


def test_an_environment_that_says_more(tmp_path):
    """Its own modules may print at the start and at the end, and what it has started may live on."""
    python = tmp_path / "python"
    said = '{"python": "3", "framework": "1"}'
    python.write_text(f"#!/bin/sh\nsleep 60 &\necho hello\necho '{said}'\necho farewell\n")
    python.chmod(0o755)
    assert Environment.of(python, "fake").framework_version == "1"


def test_an_environment_that_cannot_search(tmp_path):
    """It can run trials, and lacks what only a search needs."""
    hidden = tmp_path / "hidden" / "optuna.py"
    hidden.parent.mkdir()
    hidden.write_text("raise ModuleNotFoundError(\"No module named 'optuna'\")\n")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{hidden.parent}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    assert Environment.of(tmp_path, "fake").framework_version
    with pytest.raises(InputError, match=r"cannot search: .*optuna"):
        Environment.of(tmp_path, "fake", searches=True)


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
    searched = autotune.verify_against(
        tmp_path / "best.yaml", OTHER, retune=True, budget="8m", studies_dir=tmp_path / "studies"
    ).retuned
    assert searched.verdict is not None, searched.why
    assert autotune.load_study(searched.study, studies_dir=tmp_path / "studies").answer.manifest.framework_version == (
        found.there
    )
