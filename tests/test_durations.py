"""The log of durations."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace

import pytest

from tests import durations


def test_the_time_of_a_child_that_has_ended_counts():
    """With that of the tests' own process."""
    before = durations.cpu_s()
    subprocess.run(["python3", "-c", "import time\nwhile time.process_time() < 0.2: pass"], check=True)
    assert durations.cpu_s() - before > 0.2


def test_the_log_is_written_at_the_end(tmp_path, monkeypatch):
    """By test, the most expensive one first; each phase has its own figures."""
    monkeypatch.setattr(durations, "LOG", tmp_path / "build" / "durations.json")
    log = durations.Log()
    for name, when, cpu_s in (
        ("a", "setup", 0.5),
        ("b", "call", 2.0),
        ("a", "call", 1.0),
        ("never ran", "setup", None),
    ):
        report = SimpleNamespace(nodeid=name, when=when, duration=3.0)
        log.pytest_runtest_logreport(report if cpu_s is None else SimpleNamespace(**vars(report), cpu_s=cpu_s))
    log.pytest_sessionfinish()
    written = json.loads(durations.LOG.read_text())
    assert list(written) == ["b", "a", "never ran"]
    assert written["a"] == {"setup": [0.5, 3.0], "call": [1.0, 3.0]}


@pytest.fixture
def reported():
    """`reported(cpu_s)` is the report of a call that took so much, of a test with these markers."""

    def reported(cpu_s, *markers, name="tests/some/test_x.py::test_x"):
        meter = durations.Meter(iter([0.0, cpu_s]).__next__)
        item = SimpleNamespace(nodeid=name, iter_markers=lambda: [SimpleNamespace(name=each) for each in markers])
        meter.pytest_runtest_setup()
        call = meter.pytest_runtest_makereport(item)
        next(call)
        with pytest.raises(StopIteration) as ended:
            call.send(SimpleNamespace(when="call", passed=True, outcome="passed", longrepr=None, duration=9.0))
        return ended.value.value

    return reported


def test_an_expensive_test_fails(reported):
    """Unless it is slow, or may take as much for now."""
    assert reported(1.9).outcome == "passed"
    report = reported(2.1)
    assert report.outcome == "failed"
    assert "2.1 s of CPU time, 2 s are the most" in report.longrepr
    assert reported(2.1, "slow").outcome == "passed"
    assert reported(2.1, name="tests/job/test_ranks.py::test_x").outcome == "passed"


def test_who_imports_first_is_not_judged(reported, monkeypatch):
    """Which test that is depends on the order."""
    monkeypatch.setattr(durations, "_MANY_IMPORTS", 0)
    assert reported(2.1).outcome == "passed"
