"""Progress in a notebook: what its one output holds."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from autotune.config import Config
from autotune.measure.measurement import Stage
from autotune.render.notebook import NotebookDisplay, is_notebook
from autotune.tuning.events import ModelSaved, StageEntered, TrialStarted


def test_names_stay_text():
    """A path and a status cannot add tags or act on a terminal; lines stay in their order."""
    display = NotebookDisplay()
    display(ModelSaved("<script>alert(1)</script>\x1b[31m", 10))
    display(TrialStarted(3, Config({})))
    display(StageEntered(Stage.COMPILE))
    html = display._html()
    assert "<script" not in html
    assert "\x1b" not in html
    assert html.index("<progress") < html.index("trial 3: compiling") < html.index("model and inputs are saved")


def test_an_error_is_the_last_status():
    """What stopped the run stands beside the bar."""
    display = NotebookDisplay()
    display.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert "stopped: KeyboardInterrupt" in display._html()


def test_a_kernel_is_told_from_a_terminal(monkeypatch):
    """Of IPython, which is not imported for the question."""
    for shell, expected in ((None, False), (SimpleNamespace(), False), (SimpleNamespace(kernel=1), True)):
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert is_notebook() is expected
    monkeypatch.delitem(sys.modules, "IPython")
    assert not is_notebook()
