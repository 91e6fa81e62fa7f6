"""A notebook: real kernels run the example and cells that tune on the fake framework."""

from __future__ import annotations

import os
import re

import pytest

from tests.conftest import QUICK_BUDGET, REPOSITORY, SPACE_FILE, TORCH_SPACE

nbformat = pytest.importorskip("nbformat", reason="the extra `dev` runs notebooks")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

EXAMPLE = REPOSITORY / "examples" / "notebook.ipynb"
TUNE = 'autotune.tune(build, device="cpu", trials=8, study="notebook"'
BUILD = """
import os, signal
import numpy as np
import autotune
from autotune import events
from tests.conftest import QUICK_BUDGET

ROWS = 4

def build():
    return (lambda x: x @ np.ones((8, 8))), np.ones((ROWS, 8))

settings = {"framework": "fake", "device": "cpu", "space": "space.yaml", "budget": QUICK_BUDGET, "study": "s"}
"""
INTERRUPTED = """
def interrupt(event):
    if isinstance(event, events.TrialEnded) and event.record.number == 1:
        os.kill(os.getpid(), signal.SIGINT)  # What "interrupt the kernel" sends.

autotune.tune(build, trials=3, callbacks=interrupt, **settings)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run cells in a kernel, in the test's folder; the notebook with its outputs comes back."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))

    def run(notebook, **settings):
        client = nbclient.NotebookClient(
            notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}, **settings
        )
        return client.execute()

    return run


def notebook_of(*cells: str):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])


def html_of(cell) -> list[str]:
    return [each["data"]["text/html"] for each in cell.outputs if "text/html" in each.get("data", {})]


@pytest.mark.slow
def test_a_study_in_a_notebook(run, tmp_path):
    """An interrupted cell keeps the study, and the same call goes on. Progress is one output with a bar and the lines;
    the result shows itself as a table; nothing is on stderr."""
    (tmp_path / "space.yaml").write_text(SPACE_FILE)
    go_on = "result = autotune.tune(build, trials=3, **settings)"
    done = run(
        notebook_of(BUILD, INTERRUPTED, "autotune.load_study('s').trials()[0]['state']", go_on, "result"),
        allow_errors=True,
    )
    _, interrupted, kept, tuned, shown = done.cells
    (error,) = [each for each in interrupted.outputs if each.output_type == "error"]
    assert error.ename == "KeyboardInterrupt"
    assert "autotune.resume('s') goes on" in error.evalue
    assert "stopped: KeyboardInterrupt" in html_of(interrupted)[0]
    assert kept.outputs[0]["data"]["text/plain"] == "'measured'"
    (progress,) = html_of(tuned)
    assert "<progress" in progress
    assert "trial 1" in progress
    assert "<script" not in progress
    assert [each.output_type for each in tuned.outputs] == ["display_data"]
    (table,) = html_of(shown)
    assert "<table>" in table
    assert "untuned" in table
    (written,) = (tmp_path / "studies" / "s").glob("build_*.py")
    assert "ROWS = 4" in written.read_text()


def test_the_example_is_one_real_run():
    """Every cell ran once, in order, without an error, and no output tells whose machine it was."""
    example = nbformat.read(EXAMPLE, as_version=4)
    nbformat.validate(example)
    code = [each for each in example.cells if each.cell_type == "code"]
    assert [each.execution_count for each in code] == list(range(1, len(code) + 1))
    outputs = [output for each in code for output in each.outputs]
    assert "error" not in {output.output_type for output in outputs}
    assert not re.search(r"/(home|root|work|tmp|Users)\b", str(outputs))
    assert "<b>faster: " in str(outputs)
    assert sum(TUNE in each.source for each in code) == 1
    for each in code:
        compile(each.source, "cell", "exec")


@pytest.mark.slow
@pytest.mark.torch
def test_the_example_runs(run, no_toolchain, tmp_path):
    """From the first cell to the last with PyTorch; only what is searched, and for how long, is made small."""
    pytest.importorskip("torch")
    (tmp_path / "space.yaml").write_text(TORCH_SPACE)
    example = nbformat.read(EXAMPLE, as_version=4)
    for cell in example.cells:
        cell.source = cell.source.replace(TUNE, f'{TUNE}, space="space.yaml", budget="budget.yaml"')
    (tmp_path / "budget.yaml").write_text(QUICK_BUDGET.model_dump_json())
    done = run(example)
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert (tmp_path / "best.yaml").exists()
    assert done.cells[-2].outputs[0]["data"]["text/plain"] == "torch.Size([8, 10])"
