"""Clients' metrics in a registry of prometheus-client.  With the extra ``[prometheus]``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dledger_client.metrics.catalog import Metric
from dledger_client.metrics.instruments import Amount


class PrometheusMetrics:
    """Counts into a registry of prometheus-client, which the program serves as it serves its own metrics.

    Args:
        registry: The registry. One sink for each: a second one of the same registry raises ValueError when a client counts.

    Examples:
        >>> install(PrometheusMetrics())
        >>> start_http_server(8000)
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges: dict[str, _Gauge] = {}

    def counter(self, metric: Metric, labels: Mapping[str, str]) -> Amount:
        with self._lock:
            found = self._counters.get(metric.name)
            if found is None:
                found = self._counters[metric.name] = Counter(metric.name, metric.help, metric.labels, registry=self._registry)
        return found.labels(**labels).inc

    def histogram(self, metric: Metric, labels: Mapping[str, str]) -> Amount:
        with self._lock:
            found = self._histograms.get(metric.name)
            if found is None:
                found = self._histograms[metric.name] = Histogram(
                    metric.name, metric.help, metric.labels, buckets=metric.bounds, registry=self._registry
                )
        return found.labels(**labels).observe

    def gauge(self, metric: Metric, labels: Mapping[str, str], read: Callable[[], float]) -> Callable[[], object]:
        with self._lock:
            found = self._gauges.get(metric.name)
            if found is None:
                found = self._gauges[metric.name] = _Gauge(metric)
                self._registry.register(found)
        return found.add(tuple(labels[name] for name in metric.labels), read)


class _Gauge(Collector):
    """The sum of what the clients with the same labels say, when it is collected."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._readers: dict[object, tuple[tuple[str, ...], Callable[[], float]]] = {}

    def add(self, labels: tuple[str, ...], read: Callable[[], float]) -> Callable[[], object]:
        mark = object()
        self._readers[mark] = labels, read
        return lambda: self._readers.pop(mark, None)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return [GaugeMetricFamily(self._metric.name, self._metric.help, labels=self._metric.labels)]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        sums: dict[tuple[str, ...], float] = {}
        for labels, read in list(self._readers.values()):
            sums[labels] = sums.get(labels, 0.0) + read()
        (family,) = self.describe()
        for labels, value in sums.items():
            family.add_metric(labels, value)
        return [family]
