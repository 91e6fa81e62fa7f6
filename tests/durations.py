"""The log of durations: what each test cost, in CPU seconds and in seconds that passed.

The CPU time of a test is that of the tests' process and of the children that have ended and were waited for, from the
end of one phase to the end of the next: fixtures of a module count for the test that asked first. What another process
waits for is not seen, and neither is what still runs.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MOST_S = 2.0
"""CPU seconds above which a test is named at the end of a run of fast tests. It does not fail: what the same test takes
differs by a factor of four between machines, and by the order in which tests import their packages."""

MOST_NAMED = 15

LOG = Path(__file__).resolve().parent.parent / "build" / "durations.json"


def cpu_s() -> float:
    """The CPU time of this process and of all children that were waited for, until now."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


class Meter:
    """Notes on each report what CPU time its phase took; a report carries it to the process that writes the log."""

    def __init__(self) -> None:
        self._before = cpu_s()

    def pytest_collection_finish(self) -> None:
        """What it took to import the tests is no test's."""
        self._before = cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        now = cpu_s()
        report.cpu_s, self._before = now - self._before, now
        return report


class Log:
    """Writes the log at the end of a run: phase -> CPU seconds and seconds, by test, the most expensive one first; and
    names the tests above `MOST_S`."""

    def __init__(self) -> None:
        self._tests: dict[str, dict[str, tuple[float, float]]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        phases = self._tests.setdefault(report.nodeid, {})
        phases[report.when] = round(getattr(report, "cpu_s", 0.0), 3), round(report.duration, 3)

    def _costs(self) -> dict[str, float]:
        costs = {name: sum(cpu for cpu, _ in phases.values()) for name, phases in self._tests.items()}
        return dict(sorted(costs.items(), key=lambda cost: -cost[1]))

    def pytest_sessionfinish(self) -> None:
        lines = (f"{json.dumps(name)}: {json.dumps(self._tests[name])}" for name in self._costs())
        LOG.parent.mkdir(exist_ok=True)
        LOG.write_text("{\n" + ",\n".join(lines) + "\n}\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        costs = self._costs()
        expensive = [(name, cpu) for name, cpu in costs.items() if cpu > MOST_S]
        if len(costs) > len(expensive) > 0:
            taken = sum(cpu for _, cpu in expensive) / sum(costs.values())
            terminalreporter.section("CPU time")
            terminalreporter.line(
                f"{len(expensive)} of {len(costs)} tests took more than {MOST_S:g} s each, {taken:.0%} of all:"
            )
            for name, cpu in expensive[:MOST_NAMED]:
                terminalreporter.line(f"{cpu:6.1f} s  {name}")


def pytest_configure(config: pytest.Config) -> None:
    """A worker of xdist measures, and its controller writes; without xdist this process does both."""
    config.pluginmanager.register(Meter())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Log())
