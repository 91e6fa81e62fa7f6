"""The log of durations."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace

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


def test_expensive_tests_are_named():
    """At the end of a run, the most expensive one first."""
    log = durations.Log()
    for name, cpu_s in (("cheap", 0.5), ("dear", 3.0), ("dearest", 4.5)):
        log.pytest_runtest_logreport(SimpleNamespace(nodeid=name, when="call", duration=9.0, cpu_s=cpu_s))
    said = []
    log.pytest_terminal_summary(SimpleNamespace(section=said.append, line=said.append))
    told = "2 of 3 tests took more than 2 s each, 94% of all:"
    assert said == ["CPU time", told, "   4.5 s  dearest", "   3.0 s  dear"]
