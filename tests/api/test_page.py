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
    assert "confirming:" in printed
    assert (tmp_path / "best.yaml").exists()


def test_the_other_examples_are_python_and_say_why_they_do_not_run():
    """Each names what it needs."""
    skipped = [(why, code) for why, code in blocks() if why is not None]
    assert skipped
    for why, code in skipped:
        assert why == "needs torch"
        compile(code, "python-api.md", "exec")


@pytest.mark.parametrize("name", [name for name in dir(autotune.TuneResult) if not name.startswith("_")])
def test_every_attribute_of_a_result_is_on_the_page(name):
    """And the other way round: a name that was renamed is found here by the examples."""
    assert f"`{name}" in PAGE
