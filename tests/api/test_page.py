"""docs/python-api.md: its examples run as they stand, one after the other."""

from __future__ import annotations

import re

import pytest

import autotune
from tests.conftest import MODEL_FILE, QUICK_BUDGET, REPOSITORY

PAGE = (REPOSITORY / "docs" / "python-api.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(<!-- not executed: (?P<why>[^>]+) -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)


def blocks():
    return [(match["why"], match["code"]) for match in BLOCK.finditer(PAGE)]


def test_the_examples_run(tune, scripted, scripted_pairs, tmp_path, monkeypatch, capsys):
    """On the fake framework and with given figures; everything else is as it stands on the page."""
    (tmp_path / "my_model.py").write_text(MODEL_FILE.replace("def tiny(", "def build("))
    monkeypatch.setattr(autotune, "tune", tune, raising=False)
    original = autotune.verify
    monkeypatch.setattr(autotune, "verify", lambda *a, **k: original(*a, budget=QUICK_BUDGET, **k), raising=False)
    names = {}
    for why, code in blocks():
        if why is None:
            exec(compile(code, "python-api.md", "exec"), names)
    printed = capsys.readouterr().out
    assert printed.startswith("faster\n")
    assert "\ntrial " in printed
    assert (tmp_path / "best.yaml").exists()


def test_the_other_examples_are_python_and_say_why_they_do_not_run():
    """Each names what it needs."""
    skipped = [(why, code) for why, code in blocks() if why is not None]
    assert {why for why, _ in skipped} == {"needs torch", "needs mlflow", "needs tensorboard"}
    for _, code in skipped:
        compile(code, "python-api.md", "exec")


@pytest.mark.fast_cases("mlflow")
@pytest.mark.parametrize("package", ["mlflow", "tensorboard"])
def test_the_recipes_for_trackers_run(package, tune, scripted, tmp_path, monkeypatch):
    """As they stand, where the package is installed: each trial that was measured arrives there."""
    pytest.importorskip(package)
    (tmp_path / "my_model.py").write_text(MODEL_FILE.replace("def tiny(", "def build("))
    monkeypatch.setattr(autotune, "tune", tune, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "tracked").as_uri())
    (recipe,) = [code for why, code in blocks() if why == f"needs {package}"]
    names = {"autotune": autotune, "events": autotune.events}
    exec(compile(recipe, "python-api.md", "exec"), names)
    measured = [row for row in names["result"].trials() if row["state"] == "measured"]
    if package == "mlflow":
        runs = names["mlflow"].search_runs(output_format="list")
        assert len(runs) == len(measured) + 1
        (parent,) = [each for each in runs if "verdict" in each.data.tags]
        assert parent.data.tags["verdict"] == "faster"
        assert parent.data.metrics["speedup"] > 1
    else:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        written = EventAccumulator(str(tmp_path / "runs" / "my-net")).Reload()
        assert [each.step for each in written.Scalars("latency_s")] == [row["number"] for row in measured]
        assert any(tag.startswith("speedup/") for tag in written.Tags()["scalars"])


@pytest.mark.parametrize("name", [name for name in dir(autotune.TuneResult) if not name.startswith("_")])
def test_every_attribute_of_a_result_is_on_the_page(name):
    """And the other way round: a name that was renamed is found here by the examples."""
    assert f"`{name}" in PAGE
