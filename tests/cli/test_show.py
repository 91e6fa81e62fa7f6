"""`show`: legible in a terminal of 80 columns."""

from __future__ import annotations

import pytest

from autotune.answer.result import StudyResult
from autotune.cli import studies
from autotune.measure.measurement import Failure, Reason, Stage
from autotune.render import console
from tests.asking import ask
from tests.conftest import with_latency


@pytest.fixture
def study(make_study, measurement, monkeypatch):
    """A study with long settings, of which one failed and one misses a constraint by a lot."""
    opened = make_study(constraints=("latency <= 3ms",))
    failure = Failure(reason=Reason.WRONG_RESULT, stage=Stage.CHECK, error="output 0 is off by a lot " * 9, evidence="")
    with opened.writing():
        for outcome in (with_latency(measurement, 0.008), failure, with_latency(measurement, 0.002), failure):
            opened.tell(ask(opened, 1), outcome)
    long = [f"compile mode=max-autotune +freezing max_autotune_gemm_backends=CPP -{word}" for word in "abcdefgh"]
    monkeypatch.setattr(
        "autotune.answer.content.config_text", lambda config, *_, **__: long[config.get("latency_ms", 0) % 8]
    )
    yield opened
    opened.close()


def test_show_is_legible_in_80_columns(study, monkeypatch, capsys):
    """No line is longer, no cell is cut, and no setting is broken in two."""
    terminal = console.PlainConsole(width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr("autotune.render.console.console", lambda *_: terminal)
    studies._print_tables(StudyResult(study), study, why=False)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "\u2026" not in shown
    assert shown.count("max_autotune_gemm_backends=CPP") >= 4
    assert "+freezing" in shown


def test_a_long_line_of_the_summary_goes_on_below_its_text(capsys):
    """On a terminal; a pipe gets it in one line."""
    line = console.Hanging("  failed      " + "a word " * 20, 14)
    console.PlainConsole(width=80, force_terminal=True, color_system=None).print(line)
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith("  failed      a word")
    assert second.startswith(" " * 14 + "a word") or second.startswith(" " * 14 + "word")
    console.PlainConsole(soft_wrap=True).print(line)
    assert len(capsys.readouterr().out.splitlines()) == 1
