"""`device.py`: steps by worth, one record each, gone on with later; a section that claims nothing that was not run."""

from __future__ import annotations

import dataclasses
import json

import pytest

from autotune.backends.registry import framework_version
from autotune.planning.spaces import bundled_space
from autotune.space.load import Circumstances, load_space
from benchmarks import device, plain
from benchmarks.evidence import Conditions, Goal, Kept
from benchmarks.on_device import section, steps, studies
from benchmarks.on_device.records import (
    Done,
    Machine,
    PathSeen,
    PlainSeen,
    StudySeen,
    Tried,
    TruthSeen,
    Way,
)
from benchmarks.on_device.session import Session
from tests.conftest import ScriptedTrials

COMPILED = {"execution": "compile", "backend": "inductor", "mode": "default"}


@pytest.fixture
def conditions() -> Conditions:
    return Conditions.now()


@pytest.fixture
def kept(conditions) -> Kept:
    return Kept(benchmark="device_cpu", command="device.py", minutes=0.0, conditions=conditions, records={})


@pytest.fixture
def session(measurement):
    with Session("cpu", small=True, minutes=5, trials=ScriptedTrials(lambda *_: measurement)) as session:
        yield session


def a_step(name: str, run=lambda *_: Machine([], {}), expected_s: float = 1.0) -> steps.Step:
    return steps.Step(name, "machine", expected_s, run)


def stopped(*_: object) -> Machine:
    raise RuntimeError("the device is lost")


# Going on


def test_each_record_is_written_at_once(tmp_path, kept, session):
    """A machine may be taken away at any time: what was measured is in the file before the next step begins."""
    file, seen = tmp_path / "results" / "device.json", []

    def looks(*_: object) -> Machine:
        seen.append(sorted(json.loads(file.read_text())["records"]))
        return Machine([], {})

    device.go_on(kept, [a_step("one"), a_step("two", looks)], session, file)
    assert seen == [["one"]]
    assert sorted(json.loads(file.read_text())["records"]) == ["one", "two"]


def test_what_stops_a_step_is_written_down_and_the_next_one_is_run(tmp_path, kept, session):
    """One broken path must not cost the others."""
    device.go_on(kept, [a_step("one", stopped), a_step("two")], session, tmp_path / "device.json")
    assert kept.records["one"]["problem"] == "RuntimeError: the device is lost"
    assert kept.records["two"]["problem"] is None


def test_a_step_is_not_begun_with_too_little_time(kept, session, tmp_path, capsys):
    """It would be killed half-way, and its device time be lost; a shorter one is run in its place."""
    long, short = a_step("long", expected_s=3600.0), a_step("short")
    device.go_on(kept, [long, short], session, tmp_path / "device.json")
    assert list(kept.records) == ["short"]
    assert "long: left for the next run" in capsys.readouterr().out


# Steps


@pytest.mark.torch
@pytest.mark.parametrize("where", ["cpu", "gpu", "ascend"])
def test_steps_have_names_of_their_own_and_come_by_worth(where):
    """First what the device is, then a study and its promise; paths last."""
    pytest.importorskip("torch")
    found = steps.steps_on(where, small=False)
    names = [step.name for step in found]
    assert len(set(names)) == len(names)
    first = studies.MODELS_BY_WORTH[0].name
    assert names[:3] == ["machine", f"study: {first}", f"plain: {first}"]
    assert list(dict.fromkeys(step.piece for step in found)) == ["machine", "studies", "truth", "paths"]
    assert {step.piece for step in found} == set(steps.PIECES)
    assert max(step.expected_s for step in found) <= 240


def test_the_plain_script_refuses_what_it_does_not_do():
    """A setting that is left out in silence would be measured as if it were there."""
    assert plain.settings_of('{"execution": "compile", "mode": "max-autotune"}')["mode"] == "max-autotune"
    with pytest.raises(SystemExit, match="warp_drive"):
        plain.settings_of('{"execution": "compile", "warp_drive": true}')
    assert plain.settings_of('{"execution": "eager", "warp_drive": null}')


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_the_plain_script_knows_each_knob_of_the_space(where):
    """What a study of such a device may export has a figure there."""
    here = Circumstances(
        version=framework_version("torch"), device=where, preset="exhaustive", num_cores=2, process_settings=True
    )
    space = load_space(bundled_space("torch"), framework="torch", circumstances=here)
    of_the_space = {knob.name for knob in space.knobs}
    of_other_packages = {name for name in of_the_space if name.startswith(("openvino_", "zentorch_", "torchair_"))}
    assert of_the_space - of_other_packages <= plain.OPTIONS.keys() | plain.OTHERS


# The section


def done(name: str, result: object = None, problem: str | None = None) -> Done:
    return Done(name, "paths", "2026-01-01T00:00:00+00:00", 1.0, "cpu", "0", result, problem)  # type: ignore[arg-type]


RIGHT = Tried(COMPILED, median_s=0.001, compile_s=2.0, error=1e-6, program="a", compiled=True)
WRONG = Tried(COMPILED, failure="run_error at check: RuntimeError: overwritten | by a subsequent run")
STUDY = StudySeen("ViT", 4.0, 12, 1, "faster", (1.5, 1.45, 1.55), {"mode": "max-autotune"}, "config: {}")
WAYS = {"untuned": Way([0.3, 0.3], [1.0, 1.0]), "as exported": Way([0.2, 0.2], [9.0, 9.0]),
        'mode="default"': Way([0.25], [5.0]), 'mode="max-autotune"': Way(problem="no time was left")}  # fmt: skip
RECORDS = [
    done("machine", Machine(["missing: mindspore: not installed"], {"name": "cpu"})),
    done("path: eager", PathSeen("eager", RIGHT, 0.002)),
    done("path: graphs", PathSeen("graphs", WRONG, 0.002)),
    done("truth: A/A", TruthSeen("A/A", ["tie"], "faster", 1.1)),
    done("study: ViT", STUDY),
    done("plain: ViT", PlainSeen("ViT", "faster", (1.5, 1.45, 1.55), WAYS)),
    done("study: BERT", problem="ProductError: exit status 2"),
]


def test_goals_count_what_was_run():
    """And only that: an empty list of records has no goals."""
    found = {goal.text: (goal.found, goal.met) for goal in section.judge(RECORDS)}
    assert found == {
        "every path gives right outputs": ("1 of 2", False),
        "the known answer is found": ("0 of 1", False),
        "the plain script gets what was promised": ("1 of 1", True),
        "as fast as the best mode by hand, or within 3 %": ("1 of 1", True),
    }
    assert section.judge([]) == []


def test_a_model_that_is_left_untouched_promises_nothing():
    """The speed-up of a study without a winner is that of a config that nobody is given."""
    tie = PlainSeen("BERT", "tie", (0.9, 0.88, 0.92), {**WAYS, "as exported": Way([0.3], [1.0])})
    assert section.judge([done("plain: BERT", tie)]) == [
        Goal("as fast as the best mode by hand, or within 3 %", "0 of 1", met=False)
    ]
    study = dataclasses.replace(STUDY, model="BERT", verdict="tie", speedup=(0.9, 0.88, 0.92))
    assert "| BERT | 12, 1 failed | 4.0 | tie | left untouched |" in section.section([done("study: BERT", study)])


def test_a_figure_that_was_not_measured_is_missing():
    """The reason stands in its place where there is one."""
    text = section.section(RECORDS)
    assert "times as fast as untuned: eager 2.00." in text
    assert "| graphs | **failed** | run_error at check: RuntimeError: overwritten \\| by" in text
    row = next(line for line in text.splitlines() if line.startswith("| ViT | 12"))
    assert row.endswith("| 1.50 (9 s) | 1.20 (5 s) | no time was left |")
    assert "* study: BERT: ProductError: exit status 2" in text
    assert "missing: mindspore: not installed" in text
    assert section.section([]) == section.ABOUT
