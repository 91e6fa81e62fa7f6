"""`diagnose` on the bundled broken model: every planted break, at its line, with its cure; and none after the cures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.measure.diagnosis import BreakKind, Diagnosis, GraphBreak, Recompile
from autotune.measure.findings import EVERYWHERE, Finding, FindingCost, findings_of, ranked, with_profiled_cost
from autotune.plugins.diagnose.diagnoser import differ_in
from tests.conftest import REPOSITORY

PLANNER = REPOSITORY / "examples" / "models" / "planner.py"
CAPTURE_ONLY = ("--framework", "torch", "--device", "cpu", "--knob", "backend=aot_eager", "--json")
"""Graphs are captured and broken the same whatever is made of them."""


def line_of(code: str) -> str:
    """`file:line` of the one line of the planner that begins so."""
    (number,) = (n for n, line in enumerate(PLANNER.read_text().splitlines(), 1) if line.strip().startswith(code))
    return f"{PLANNER}:{number}"


BRANCH = """
import torch

class Branch(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        return y

def branch():
    return Branch().eval(), torch.ones(4, 4)
"""


def test_a_break_is_named_with_its_cost(cli, no_toolchain, tmp_path):
    """A branch on a tensor: its line, kind, source and cure, and what the profiler sees there in each call."""
    pytest.importorskip("torch")
    path = tmp_path / "branching.py"
    path.write_text(BRANCH)
    told = json.loads(cli("diagnose", "--model", f"{path}:branch", *CAPTURE_ONLY).stdout)
    (found,) = told["findings"]
    assert (found["kind"], found["ailment"]) == ("graph_break", "tensor_branch")
    assert (found["location"], found["source"]) == (f"{path}:7", "if y.sum() > 0:")
    assert found["cure"]["before"]
    assert found["cure"]["after"]
    # Nothing captures a branch: what it costs is what the profiler sees there.
    assert (found["cost"]["kind"], "profiler" in found["cost"]["how"]) == ("per_call", True)
    assert told["num_graphs"] > 1


@pytest.mark.slow
def test_every_planted_break_of_the_planner_is_named(cli):
    """The branch, the number and the print: right line, right kind, source and cure; nothing else is called a break."""
    pytest.importorskip("torch")
    told = json.loads(cli("diagnose", "--model", f"{PLANNER}:planner", *CAPTURE_ONLY).stdout)
    broken = {each["location"]: each for each in told["findings"] if each["kind"] == "graph_break"}
    assert {location: each["ailment"] for location, each in broken.items()} == {
        line_of("if score.mean() > 0"): "tensor_branch",
        line_of("certainty ="): "scalar",
        line_of("print("): "print",
    }
    for location, each in broken.items():
        source = Path(location.rpartition(":")[0]).read_text().splitlines()[int(location.rpartition(":")[2]) - 1]
        assert each["source"] == source.strip()
        assert each["cure"]["before"]
        assert each["cure"]["after"]
    # Nothing captures a branch: what it costs is what the profiler sees there.
    cost = broken[line_of("if score.mean() > 0")]["cost"]
    assert (cost["kind"], "profiler" in cost["how"]) == ("per_call", True)
    assert cost["seconds"] > 0
    assert told["num_graphs"] > 1


@pytest.mark.slow
def test_the_cured_planner_is_one_graph_with_the_same_outputs(cli):
    """After the printed cures nothing breaks, for either sign of the input, and the outputs are what they were."""
    torch = pytest.importorskip("torch")
    mended_file = Path(__file__).parent / "mended_planner.py"
    told = json.loads(cli("diagnose", "--model", f"{mended_file}:mended", *CAPTURE_ONLY).stdout)
    assert told["findings"] == []
    assert told["num_graphs"] == 1

    from examples.models.planner import planner
    from tests.doctor.mended_planner import mended

    (ill, (observations,)), (well, _, _) = planner(), mended()
    with torch.no_grad():
        for each in (observations, -observations):
            torch.testing.assert_close(well(each), ill(each))


@pytest.mark.parametrize(
    ("name", "ailment", "code"),
    [("NumPy", "numpy", "return y + Tensor(np.sort"), ("Try", "exception", "try:")],
)
@pytest.mark.slow
def test_mindspore_is_asked_for_its_reports(cli, name, ailment, code):
    """What it leaves to the interpreter, and a model that it refuses: both are findings, and the exit status is 0."""
    pytest.importorskip("mindspore")
    patterns = Path(__file__).parent / "mindspore_patterns.py"
    model = ("--model", f"{patterns}:broken", "--model-arg", f"name={name}", "--framework", "mindspore")
    ended = cli("diagnose", *model, "--json")
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    (found,) = told["findings"]
    assert found["ailment"] == ailment
    assert found["source"].startswith(code)
    assert found["cure"]["words"]
    assert (told["refusal"] is not None) == (name == "Try")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--knob", "no_such=1"), "the knobs are execution, "),
        (("--knob", "execution=fast"), "execution takes eager, compile"),
        (("--framework", "caffe"), "unknown"),
    ],
)
def test_a_mistake_is_a_sentence(cli, arguments, words):
    """A knob that is not there, or a framework: exit status 2 and what to do, before anything is measured."""
    pytest.importorskip("torch")
    ended = cli("diagnose", "--model", f"{PLANNER}:planner", "--device", "cpu", *arguments)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def finding(ailment: BreakKind, **fields: object) -> Finding:
    defaults = {"kind": "graph_break", "location": "model.py:1", "source": None, "reason": "x"}
    return Finding.model_validate({**defaults, **fields, "ailment": ailment})


def test_the_dearest_comes_first():
    """Seconds of every call, then seconds of compiling again, then what was not measured; no cost comes last."""
    per_call = [FindingCost(kind="per_call", seconds=s, how="") for s in (0.001, 0.002)]
    once = FindingCost(kind="once", seconds=9.0, how="")
    order = [
        finding(BreakKind.SCALAR, cost=per_call[1]),
        finding(BreakKind.PRINT, cost=per_call[0]),
        finding(BreakKind.CHANGING_SHAPE, kind="recompile", cost=once),
        finding(BreakKind.BRANCH, gives_up=True),
        finding(BreakKind.NUMPY, count=3),
        finding(BreakKind.CONTAINER, count=1),
        finding(BreakKind.AFTER_BREAK, count=9),
        finding(BreakKind.DATA_SHAPE, cost=FindingCost(kind="per_call", seconds=0.0, how="")),
    ]
    assert ranked(reversed(order)) == order


def test_one_place_is_one_finding():
    """Recompiles at one place are one, their seconds added; a vague name gives way to a precise one. A break of an old
    record, which has no kind, is shown as it was told."""
    (found,) = findings_of(Diagnosis(compiled=True, graph_breaks=(GraphBreak(reason="told", location="a.py:1"),)))
    assert (found.ailment, found.reason) == (BreakKind.OTHER, "told")
    said = Diagnosis(
        compiled=True,
        graph_breaks=(
            GraphBreak(reason="skipped", location="model.py:3", ailment=BreakKind.FOREIGN_CALL),
            GraphBreak(reason="with", location="model.py:3", ailment=BreakKind.CONTEXT, gives_up=True),
        ),
        recompiles=tuple(
            Recompile(reason=f"n == {n}", location="model.py:7", ailment=BreakKind.CHANGING_VALUE, compile_s=0.5)
            for n in (0, 1, 2)
        ),
    )
    broken, again = findings_of(said)
    assert (broken.ailment, broken.gives_up) == (BreakKind.CONTEXT, True)
    assert (again.count, again.cost.seconds, again.reason) == (3, 1.5, "n == 0")


def test_what_nothing_else_told_the_profiler_tells():
    """At a break's place, or of all places together; never in place of what was measured, nor for a recompile."""
    measured = finding(BreakKind.SCALAR, cost=FindingCost(kind="per_call", seconds=1.0, how=""))
    at, elsewhere = finding(BreakKind.BRANCH, location="a.py:7"), finding(BreakKind.PRINT, location="a.py:8")
    again = finding(BreakKind.CHANGING_SHAPE, location="a.py:7", kind="recompile")
    told = [measured, at, elsewhere, again]

    def costs(**at_breaks: float) -> list[float | None]:
        seen = {place.replace("_", ":"): seconds for place, seconds in at_breaks.items()}
        return [each.cost and each.cost.seconds for each in with_profiled_cost(told, seen)]

    assert costs(**{"a.py_7": 2.0}) == [1.0, 2.0, None, None]
    assert costs(**{EVERYWHERE: 2.0}) == [1.0, 2.0, 2.0, None]
    assert costs() == [1.0, None, None, None]


def test_a_cost_counts_only_if_nothing_else_broke():
    """Captured, a number can break what it is handed to: such a run says nothing about the number."""

    def said(*breaks: tuple[str, BreakKind]) -> Diagnosis:
        found = tuple(GraphBreak(reason="x", location=place, ailment=kind) for place, kind in breaks)
        return Diagnosis(compiled=True, graph_breaks=found)

    number, branch = ("a.py:1", BreakKind.SCALAR), ("a.py:2", BreakKind.BRANCH)
    assert differ_in(BreakKind.SCALAR, said(number, branch), said(branch))
    assert not differ_in(BreakKind.SCALAR, said(number, branch), said(number, branch))
    assert not differ_in(BreakKind.SCALAR, said(number), said(("a.py:3", BreakKind.OTHER)))
