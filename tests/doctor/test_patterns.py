"""The doctor's table of cures is proven: each break is found at its line, named right, and gone after its cure."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autotune.backends.mindspore import break_kinds as mindspore_break_kinds
from autotune.backends.torch import break_kinds as torch_break_kinds
from autotune.measure.diagnosis import BreakKind, Diagnosis, Recompile
from autotune.measure.fixes import fix_of
from tests.conftest import REPOSITORY

HERE = Path(__file__).parent


def run_patient(folder: Path, *arguments: str, **variables: str) -> tuple[dict, str]:
    """What the child wrote, and its stderr."""
    told = folder / "told.json"
    child = subprocess.run(
        [sys.executable, "-P", str(HERE / "patient.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TOLD": str(told), "GLOG_v": "3", **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.exists(), child.stderr[-3000:]
    return json.loads(told.read_text()), child.stderr


@pytest.fixture(scope="module")
def torch_told(tmp_path_factory):
    pytest.importorskip("torch")
    return run_patient(tmp_path_factory.mktemp("torch"), "torch")[0]


@pytest.fixture(scope="module")
def mindspore_told(tmp_path_factory):
    pytest.importorskip("mindspore")
    return run_patient(tmp_path_factory.mktemp("mindspore"), "mindspore", **mindspore_break_kinds.VARIABLES)


def table(framework: str) -> dict:
    """The patterns' names with what they are, read without importing the framework."""
    source = (HERE / f"{framework}_patterns.py").read_text()
    scope = {"BreakKind": BreakKind}
    exec(source[source.index("\nPATTERNS") :].partition("\n\n\n")[0], scope)
    return scope["PATTERNS"]


def marked_line(framework: str, class_name: str) -> str | None:
    """`file:line` of the line of a class that is marked; None where none is."""
    path = HERE / f"{framework}_patterns.py"
    inside = False
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.startswith("class "):
            inside = bool(re.match(rf"class {class_name}\b", line))
        if inside and "# HERE" in line:
            return f"{path}:{number}"
    return None


def assert_same_outputs(one: list, other: list) -> None:
    for arrays, others in zip(one, other, strict=True):
        for array, twin in zip(arrays, others, strict=True):
            np.testing.assert_allclose(array, twin, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", table("torch"))
@pytest.mark.slow
def test_torch_breaks_are_found_named_and_cured(torch_told, name):
    """Found at its line, by the right name; none left after the cure, and the outputs are the same."""
    expected = table("torch")[name]
    told = torch_told[f"{name} broken"]
    broken = Diagnosis.model_validate(told["said"])
    refused = torch_break_kinds.refusal(told["refusal"] or "")
    each_found = (*broken.graph_breaks, *broken.recompiles, *([refused] if refused else []))
    found = {(each.location, each.ailment) for each in each_found}
    assert (marked_line("torch", name), expected) in found
    assert torch_told[f"{name} cured"]["refusal"] is None
    cured = Diagnosis.model_validate(torch_told[f"{name} cured"]["said"])
    assert cured.graph_breaks == ()
    assert cured.recompiles == ()
    assert cured.num_graphs == 1
    assert_same_outputs(torch_told[f"{name} broken"]["outputs"], torch_told[f"{name} cured"]["outputs"])


@pytest.mark.parametrize("name", table("mindspore"))
@pytest.mark.slow
def test_mindspore_breaks_are_found_named_and_cured(mindspore_told, name):
    """The same from MindSpore's reports on stderr, and from the error of a model that it refuses."""
    told, stderr = mindspore_told
    texts = dict(re.findall(r"=== (\w+ \w+)\n(.*?)(?=\n=== |\Z)", stderr, re.DOTALL))

    def found(cured: bool) -> set:
        text = texts[f"{name} {cured}"] + "\n"
        refused = mindspore_break_kinds.refusal(text)
        each_found = mindspore_break_kinds.breaks(text)
        if told[f"{name} {'cured' if cured else 'broken'}"]["num_graphs"] > 1:
            # The only sign of it, and what a diagnosis makes of it.
            each_found = (*each_found, Recompile(reason="", ailment=BreakKind.CHANGING_INPUT))
        return {(each.location, each.ailment) for each in (*each_found, *([refused] if refused else []))}

    assert (marked_line("mindspore", f"{name}Broken"), table("mindspore")[name]) in found(cured=False)
    assert found(cured=True) == set()
    assert_same_outputs(told[f"{name} broken"]["outputs"], told[f"{name} cured"]["outputs"])


@pytest.mark.parametrize("framework", ["torch", "mindspore"])
def test_each_cure_has_a_pattern_and_each_pattern_a_cure(framework):
    """What is printed as a cure is proven here; what is found and named gets words, and lines of before and after."""
    proven = set(table(framework).values())
    assert {ailment for ailment in BreakKind if fix_of(framework, ailment) is not None} == proven
    for ailment in proven:
        cure = fix_of(framework, ailment)
        assert any(cure.before)
        assert any(cure.after)
