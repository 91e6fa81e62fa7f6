"""The log of durations: what each test cost, in CPU seconds and in seconds that passed.

The CPU time of a test is that of the tests' process and of the children that have ended and were waited for, from the
end of one phase to the end of the next: fixtures of a module count for the test that asked first. What another process
waits for is not seen, and neither is what still runs.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

MOST_S = 2.0
"""CPU seconds that the call of a fast test may take, or it fails. The first to import much in its process is not
judged."""
NOT_MEASURED = float("inf")
MAY_TAKE_S: dict[str, float] = {
    **{
        f"tests/{folder}/": NOT_MEASURED
        for folder in (
            *("bench", "benchmarks", "cli", "device", "doctor", "end_to_end", "integrations", "measure", "models"),
            *("plugins", "question", "render", "space", "study", "tuned", "tuning", "verification", "workload"),
        )
    },
    "tests/test_": NOT_MEASURED,
    "tests/backends/test_torch_": NOT_MEASURED,
    **{f"tests/trial/test_{name}.py": NOT_MEASURED for name in ("planted", "training", "generation")},
    **{f"tests/job/test_{name}.py": 20.0 for name in ("bad_requests", "generation", "ranks")},
    **{f"tests/job/test_{name}.py": 10.0 for name in ("later_calls", "launch", "load", "tiers", "training_steps")},
    **{f"tests/trial/test_{name}.py": 12.0 for name in ("components", "decode_step", "input_limits", "instances")},
    **{f"tests/faults/test_{name}.py": 10.0 for name in ("processes", "storage", "torch_job", "torch_training_loop")},
    "tests/backends/test_real_traffic.py": 15.0,
    **{f"tests/{name}": 8.0 for name in ("backends/", "api/", "answer/", "apply/", "job/", "trial/", "faults/")},
}
"""Beginning of a test's name -> what it may take, while it waits to be made cheaper: the first that fits. Each is a few
times what was seen on a busy machine. It only ever becomes shorter."""
_MANY_IMPORTS = 100
SLOW = {"slow", "soak", "device"}

LOG = Path(__file__).resolve().parent.parent / "build" / "durations.json"


def cpu_s() -> float:
    """The CPU time of this process and of all children that were waited for, until now."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def most_s(name: str) -> float:
    """What the test of this name may take."""
    return next((seconds for beginning, seconds in MAY_TAKE_S.items() if name.startswith(beginning)), MOST_S)


class Meter:
    """Notes on each report what CPU time its phase took, and fails a fast test that took too much; a report carries it
    to the process that writes the log."""

    def __init__(self, clock: Callable[[], float] = cpu_s) -> None:
        self._clock = clock
        self._before = clock()
        self._num_imported = 0

    def pytest_runtest_setup(self) -> None:
        self._num_imported = len(sys.modules)

    def pytest_collection_finish(self) -> None:
        """What it took to import the tests is no test's."""
        self._before = self._clock()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report = yield
        now = self._clock()
        report.cpu_s, self._before = now - self._before, now
        is_judged = (
            report.when == "call" and report.passed and not SLOW.intersection(each.name for each in item.iter_markers())
        )
        # Children that were waited for only now may be those of an earlier test.
        took_s = min(report.cpu_s, report.duration * (os.cpu_count() or 1))
        if is_judged and took_s > most_s(item.nodeid) and len(sys.modules) < self._num_imported + _MANY_IMPORTS:
            report.outcome = "failed"
            report.longrepr = (
                f"it took {took_s:.1f} s of CPU time, {most_s(item.nodeid):g} s are the most: make it cheaper, "
                "or mark it slow and leave a cheap case (tests/durations.py)"
            )
        return report


class Log:
    """Writes the log at the end of a run: phase -> CPU seconds and seconds, by test, the most expensive one first."""

    def __init__(self) -> None:
        self._tests: dict[str, dict[str, tuple[float, float]]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        phases = self._tests.setdefault(report.nodeid, {})
        phases[report.when] = round(getattr(report, "cpu_s", 0.0), 3), round(report.duration, 3)

    def pytest_sessionfinish(self) -> None:
        costs = {name: sum(cpu for cpu, _ in phases.values()) for name, phases in self._tests.items()}
        lines = (
            f"{json.dumps(name)}: {json.dumps(self._tests[name])}" for name in sorted(costs, key=lambda x: -costs[x])
        )
        LOG.parent.mkdir(exist_ok=True)
        LOG.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def pytest_configure(config: pytest.Config) -> None:
    """A worker of xdist measures, and its controller writes; without xdist this process does both."""
    config.pluginmanager.register(Meter())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Log())
