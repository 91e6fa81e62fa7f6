"""A loaded model's statistics for Prometheus, through its own client; read when somebody scrapes, at no cost a call.

The optional extra `prometheus`: `pip install 'autotune-compile[prometheus]'`.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry

from autotune.errors import InputError
from autotune.job.stats import HasStats, Stats, recorder_of

_LABELS = ("model",)
_STATES = ("tuned", "untuned", "settling")


_COLLECTORS: WeakKeyDictionary[CollectorRegistry, _StatsCollector] = WeakKeyDictionary()


def expose(model: Any, name: str, registry: CollectorRegistry = REGISTRY) -> None:
    """Register the statistics of a model that `apply` gave, under the label `model=name`, for as long as it lives.

    Raises InputError for any other model, and for a name that another model has.
    """
    recorder = recorder_of(model)
    if recorder is None:
        raise InputError(f"{name}: a {type(model).__name__} that autotune's apply() did not give has no statistics")
    if registry not in _COLLECTORS:
        _COLLECTORS[registry] = _StatsCollector()
        registry.register(_COLLECTORS[registry])
    _COLLECTORS[registry].add(name, recorder)


class _StatsCollector(Collector):
    """All models of a registry: whoever scrapes takes a metric once, with the samples of each model that has it."""

    def __init__(self) -> None:
        self._recorders: WeakValueDictionary[str, HasStats] = WeakValueDictionary()
        """Each lives for as long as its model does."""
        self._lock = threading.Lock()

    def add(self, name: str, recorder: HasStats) -> None:
        """Raises InputError for a name that a model has which the job still holds."""
        if name in self._recorders:
            gc.collect()
        with self._lock:
            is_taken = name in self._recorders
            if not is_taken:
                self._recorders[name] = recorder
        if is_taken:
            raise InputError(f"{name}: a model is exposed under this name already", tip="give each model its own name")

    def describe(self) -> list[Metric]:
        """Nothing to check names by: which metrics there are depends on the models."""
        return []

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        with self._lock:
            recorders = sorted(self._recorders.items())
        for name, recorder in recorders:
            for family in _ModelMetrics(name).of(recorder.stats()):
                families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                families[family.name].samples += family.samples
        return families.values()


class _ModelMetrics:
    """The metrics of one model."""

    def __init__(self, name: str) -> None:
        self._name = name

    def of(self, stats: Stats) -> Iterator[Metric]:
        """As far as something is known."""
        yield from self._calls(stats)
        yield from self._counts(stats)
        if stats.peak_memory_bytes is not None:
            memory = GaugeMetricFamily("autotune_memory_bytes", "Peak of the device's allocator", labels=_LABELS)
            memory.add_metric([self._name], stats.peak_memory_bytes)
            yield memory
        state = GaugeMetricFamily("autotune_state", "1 for the state that the model is in", labels=(*_LABELS, "state"))
        for name in _STATES:
            state.add_metric([self._name, name], float(name == stats.state))
        yield state

    def _calls(self, stats: Stats) -> Iterator[Metric]:
        if stats.num_calls is None:
            return
        calls = CounterMetricFamily("autotune_calls", "Calls of the model", labels=_LABELS)
        calls.add_metric([self._name], stats.num_calls)
        yield calls
        latency = GaugeMetricFamily(
            "autotune_latency_seconds", "Percentiles over the latest calls", labels=(*_LABELS, "quantile")
        )
        if stats.latency_s is not None:
            for quantile, seconds in (
                ("0.5", stats.latency_s.p50),
                ("0.9", stats.latency_s.p90),
                ("0.99", stats.latency_s.p99),
            ):
                latency.add_metric([self._name, quantile], seconds)
        yield latency

    def _counts(self, stats: Stats) -> Iterator[Metric]:
        counts: dict[str, tuple[float | None, str]] = {
            "compiles": (stats.num_compiles, "Graphs compiled in this process"),
            "recompiles": (stats.num_recompiles, "Graphs compiled again because a guard failed"),
            "fallbacks": (stats.num_fallbacks, "Times that the tuned model was given up"),
        }
        yield from self._counters(counts)

    def _counters(self, counts: Mapping[str, tuple[float | None, str]]) -> Iterator[Metric]:
        for name, (value, text) in counts.items():
            if value is not None:
                family = CounterMetricFamily(f"autotune_{name}", text, labels=_LABELS)
                family.add_metric([self._name], value)
                yield family
