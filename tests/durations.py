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
MAY_TAKE_S: dict[str, float] = {
    **{f"tests/{name}.py": 40.0 for name in ("integrations/test_mindspore",)},
    **{
        f"tests/{name}.py": 20.0
        for name in (
            "backends/test_torch_backend",
            "backends/test_torch_devices",
            "backends/test_torch_imported_ahead",
            "backends/test_torch_knobs",
            "backends/test_torch_options",
            "bench/test_container",
            "cli/test_messages",
            "doctor/test_diagnose",
            "end_to_end/test_two_frameworks",
            "integrations/test_hugging_face",
            "job/test_bad_requests",
            "job/test_generation",
            "job/test_load",
            "job/test_ranks",
            "job/test_training_steps",
            "measure/test_profile",
            "study/test_resume",
            "trial/test_components",
            "trial/test_decode_step",
            "trial/test_generation",
            "trial/test_instances",
            "trial/test_planted",
            "trial/test_planted_steps",
            "trial/test_random_steps",
            "trial/test_training",
            "tuning/test_time_budget",
        )
    },
    **{
        f"tests/{name}.py": 8.0
        for name in (
            "api/test_page",
            "apply/test_warm_start",
            "backends/test_mindspore_shapes",
            "backends/test_mindspore_trace",
            "backends/test_torch_frozen_cache",
            "backends/test_torch_generation",
            "backends/test_torch_programs",
            "backends/test_torch_versions",
            "cli/test_cli",
            "conformance/test_mindspore",
            "conformance/test_torch",
            "faults/test_processes",
            "faults/test_torch_job",
            "job/test_components",
            "job/test_later_calls",
            "job/test_launch",
            "measure/test_statistics",
            "models/test_bundled_models",
            "plugins/test_foreign",
            "plugins/test_hugging_face",
            "plugins/test_postgres",
            "plugins/test_upgrade",
            "space/test_space",
            "study/test_study",
            "test_adoption",
            "test_architecture",
            "test_golden",
            "tuning/test_priors",
            "tuning/test_race",
            "tuning/test_trial_queue",
            "verification/test_verify",
        )
    },
    **{
        f"tests/{name}.py": 4.0
        for name in (
            "answer/test_objectives",
            "api/test_both",
            "api/test_tuning",
            "backends/test_mindspore_backend",
            "backends/test_mindspore_knobs",
            "backends/test_mindspore_training",
            "backends/test_plain_code",
            "backends/test_real_traffic",
            "backends/test_registry",
            "backends/test_third_party",
            "backends/test_torch_differentiating",
            "backends/test_torch_settings",
            "backends/test_torch_shapes",
            "backends/test_torch_shared_kernels",
            "backends/test_undo",
            "bench/test_imported_ahead",
            "benchmarks/test_benchmarks",
            "benchmarks/test_portfolio",
            "benchmarks/test_wall_time",
            "cli/test_dry_run",
            "cli/test_studies_folder",
            "cli/test_trust",
            "faults/test_hostile_input",
            "faults/test_links",
            "faults/test_storage",
            "faults/test_torch_gradients",
            "faults/test_torch_training_loop",
            "integrations/test_lightning",
            "job/test_accumulation",
            "job/test_applied_on_ranks",
            "models/test_to_train",
            "plugins/test_ray_workers",
            "plugins/test_tiers",
            "render/test_traffic_study",
            "space/test_declared",
            "study/test_early_stop",
            "study/test_older_studies",
            "test_reading",
            "trial/test_input_limits",
            "trial/test_memory",
            "tuned/test_tuned_config",
            "tuning/test_circuit_breaker",
            "tuning/test_confirmation",
            "tuning/test_loop",
        )
    },
}
"""File of tests -> what each of its tests may take, while it waits to be made cheaper: some two times what the most
expensive one took on two quiet cores. It only ever becomes shorter."""
_MANY_IMPORTS = 100
SLOW = {"slow", "soak", "device"}

LOG = Path(__file__).resolve().parent.parent / "build" / "durations.json"


def cpu_s() -> float:
    """The CPU time of this process and of all children that were waited for, until now."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def most_s(name: str) -> float:
    """What the test of this name may take."""
    return MAY_TAKE_S.get(name.partition("::")[0], MOST_S)


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
