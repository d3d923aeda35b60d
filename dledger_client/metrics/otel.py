"""Clients' metrics by a meter of OpenTelemetry.  With the extra ``[otel]``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, MeterProvider, Observation, get_meter_provider

from dledger_client.metrics.catalog import Metric
from dledger_client.metrics.instruments import Amount
from dledger_wire.version import installed_version

_UNITS = {"seconds": "s", "bytes": "By"}


class OtelMetrics:
    """Counts with instruments of OpenTelemetry, under the same names and labels.

    Args:
        provider: The meter provider; None: the global one.

    Examples:
        >>> set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))
        >>> install(OtelMetrics())
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        self._meter = (provider or get_meter_provider()).get_meter("dledger_client", installed_version())
        self._lock = threading.Lock()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges: dict[str, dict[object, tuple[dict[str, str], Callable[[], float]]]] = {}

    def counter(self, metric: Metric, labels: Mapping[str, str]) -> Amount:
        with self._lock:
            found = self._counters.get(metric.name)
            if found is None:
                found = self._counters[metric.name] = self._meter.create_counter(metric.name, _unit(metric), metric.help)
        add, attributes = found.add, dict(labels)
        return lambda amount: add(amount, attributes)

    def histogram(self, metric: Metric, labels: Mapping[str, str]) -> Amount:
        with self._lock:
            found = self._histograms.get(metric.name)
            if found is None:
                found = self._histograms[metric.name] = self._meter.create_histogram(
                    metric.name, _unit(metric), metric.help, explicit_bucket_boundaries_advisory=metric.bounds
                )
        record, attributes = found.record, dict(labels)
        return lambda value: record(value, attributes)

    def gauge(self, metric: Metric, labels: Mapping[str, str], read: Callable[[], float]) -> Callable[[], object]:
        with self._lock:
            readers = self._gauges.get(metric.name)
            if readers is None:
                readers = self._gauges[metric.name] = {}
                self._meter.create_observable_gauge(metric.name, [_observer(readers)], _unit(metric), metric.help)
        mark = object()
        readers[mark] = dict(labels), read
        return lambda: readers.pop(mark, None)


def _unit(metric: Metric) -> str:
    return _UNITS.get(metric.unit, f"{{{metric.unit}}}")


def _observer(
    readers: dict[object, tuple[dict[str, str], Callable[[], float]]],
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """The sum of what the clients with the same labels say."""

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        sums: dict[tuple[tuple[str, str], ...], float] = {}
        for labels, read in list(readers.values()):
            key = tuple(labels.items())
            sums[key] = sums.get(key, 0.0) + read()
        return [Observation(value, dict(key)) for key, value in sums.items()]

    return observe
