"""Values of metrics on their way from the collector to the scraped text.

Owns the check of names and labels against the catalogue, and the registry that renders them.  Collecting happens on the event loop of the
process; rendering does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from broker.metrics import catalog
from dledger_wire.check import InvariantBrokenError
from dledger_wire.measures import Histogram

Labels = tuple[str, ...]


class Samples:
    """Everything one look at a process has found, by name of the metric.  ``group`` and ``node`` stand on every series."""

    def __init__(self, place: catalog.Place, group: str, node: str) -> None:
        self.place = place
        self.values: dict[str, dict[Labels, float | Histogram]] = {}
        self._group, self._node = group, node

    def add(self, name: str, value: float | Histogram, *labels: str) -> None:
        """One series of ``dledger_NAME``.  InvariantBrokenError for what the catalogue has not, or not so."""
        metric = catalog.BY_NAME.get(catalog.PREFIX + name)
        if metric is None or self.place not in metric.on or len(labels) != len(metric.labels):
            raise InvariantBrokenError(f"metric {name} with labels {labels} of a {self.place} is not in the catalogue")
        if isinstance(value, Histogram) != (metric.kind == "histogram"):
            raise InvariantBrokenError(f"metric {name} is a {metric.kind}")
        # Rendering happens in another thread, while the loop goes on counting.
        kept = value.copy() if isinstance(value, Histogram) else value
        self.values.setdefault(metric.name, {})[(self._group, self._node, *labels)] = kept

    def add_each(self, name: str, values: Mapping[str, float] | Mapping[str, Histogram]) -> None:
        """One series for each value of the metric's only label."""
        for label, value in values.items():
            self.add(name, value, label)


class SamplesRegistry(Collector):
    """The registry of one process: it renders the samples that it was given last."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._samples: Samples | None = None

    def render(self, samples: Samples, accept: str) -> tuple[bytes, str]:
        """The text, and its content type: the newest format that ``accept``, the header of the request, allows."""
        self._samples = samples
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type

    def collect(self) -> Iterable[Metric]:
        samples = self._samples
        if samples is not None:
            for name, series in samples.values.items():
                yield family(catalog.BY_NAME[name], series)


def family(metric: catalog.Metric, series: Mapping[Labels, float | Histogram]) -> Metric:
    """A metric with its series, as the library renders it."""
    names = (*catalog.PLACE_LABELS, *metric.labels)
    if metric.kind == "histogram":
        found = HistogramMetricFamily(metric.name, metric.help, labels=names)
        for labels, value in series.items():
            if isinstance(value, Histogram):
                found.add_metric(labels, list(buckets(value)), value.total)
        return found
    kind: Callable[..., CounterMetricFamily | GaugeMetricFamily] = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    plain = kind(metric.name, metric.help, labels=names)
    for labels, value in series.items():
        if not isinstance(value, Histogram):
            plain.add_metric(labels, value)
    return plain


def buckets(histogram: Histogram) -> Iterator[tuple[str, float]]:
    """Upper bounds as text, and how many values are at most each: the last bound is +Inf."""
    upto = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        upto += count
        yield "+Inf" if bound == float("inf") else repr(float(bound)), upto
