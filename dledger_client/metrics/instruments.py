"""What an application implements to get the metrics, and the instruments of an installed sink.

They are made once for each set of labels, with a bounded number of topics.

Owns the installed sink, and the two rules that keep metrics from harming a client: what a sink raises is logged once and never reaches
the counting code, and only the first topics of a process have a label of their own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from dledger_client.metrics.catalog import MAX_TOPICS, OTHER_TOPICS, Metric

Amount: TypeAlias = Callable[[float], object]


class MetricsSink(Protocol):
    """Takes the metrics of this process's clients. What it returns is called from any thread, and should neither block nor raise.

    Examples:
        >>> class Printed:
        ...     def counter(self, metric, labels):
        ...         return lambda amount: print(metric.name, dict(labels), "+", amount)
        ...
        ...     def histogram(self, metric, labels):
        ...         return lambda value: print(metric.name, dict(labels), value)
        ...
        ...     def gauge(self, metric, labels, read):
        ...         return lambda: None
        >>> install(Printed())
    """

    def counter(self, metric: Metric, labels: Mapping[str, str]) -> Amount:
        """What adds to a counter.

        Args:
            metric: The metric.
            labels: Its labels and their values.
        """
        ...

    def histogram(self, metric: Metric, labels: Mapping[str, str]) -> Amount:
        """What notes a value in a histogram.

        Args:
            metric: The metric, with its bounds.
            labels: Its labels and their values.
        """
        ...

    def gauge(self, metric: Metric, labels: Mapping[str, str], read: Callable[[], float]) -> Callable[[], object]:
        """Show what ``read`` returns, from now on until the returned function is called.

        Several clients may have the same labels: their values are added.

        Args:
            metric: The metric.
            labels: Its labels and their values.
            read: The value of one client.
        """
        ...


_logger = logging.getLogger(__name__)


class Instruments:
    """The instruments of one sink.

    Args:
        sink: Takes the metrics.
        max_topics: Topics with a label of their own.

    Examples:
        >>> instruments = Instruments(sink)
        >>> instruments.counter(SENT, "orders", "stored")(3)
    """

    def __init__(self, sink: MetricsSink, max_topics: int = MAX_TOPICS) -> None:
        self._sink, self._max_topics = sink, max_topics
        self._lock = threading.Lock()
        self._made: dict[tuple[str, tuple[str, ...]], Amount] = {}
        self._topics: set[str] = set()

    def counter(self, metric: Metric, *labels: str) -> Amount:
        """What adds to a counter; ``labels``: their values, in the metric's order."""
        return self._instrument(self._sink.counter, metric, labels)

    def histogram(self, metric: Metric, *labels: str) -> Amount:
        """What notes a value in a histogram; ``labels`` as above."""
        return self._instrument(self._sink.histogram, metric, labels)

    def gauge(self, metric: Metric, *labels: str, read: Callable[[], float]) -> Callable[[], object]:
        """Show what ``read`` returns until the result is called; ``labels`` as above."""
        try:
            return self._sink.gauge(metric, dict(zip(metric.labels, labels, strict=True)), read)
        except Exception:
            _logger.exception("metric %s is not shown", metric.name)
            return _nothing

    def _instrument(self, make: Callable[[Metric, dict[str, str]], Amount], metric: Metric, labels: tuple[str, ...]) -> Amount:
        with self._lock:
            if metric.labels[0] == "topic":
                labels = (self._bounded(labels[0]), *labels[1:])
            key = metric.name, labels
            found = self._made.get(key)
            if found is None:
                found = self._made[key] = self._guarded(make, metric, dict(zip(metric.labels, labels, strict=True)))
            return found

    @staticmethod
    def _guarded(make: Callable[[Metric, dict[str, str]], Amount], metric: Metric, labels: dict[str, str]) -> Amount:
        try:
            return _Guarded(make(metric, labels), metric)
        except Exception:
            _logger.exception("metric %s is not counted for %s", metric.name, labels)
            return _nothing

    def _bounded(self, topic: str) -> str:
        if topic not in self._topics:
            if len(self._topics) >= self._max_topics:
                return OTHER_TOPICS
            self._topics.add(topic)
        return topic


def _nothing(_value: float = 0) -> None:
    """What stands for an instrument that a sink did not make."""


class _Guarded:
    """An instrument whose errors stay here: metrics are never a reason for a message to fail."""

    __slots__ = ("_amount", "_is_broken", "_metric")

    def __init__(self, amount: Amount, metric: Metric) -> None:
        self._amount, self._metric, self._is_broken = amount, metric, False

    def __call__(self, value: float) -> None:
        try:
            self._amount(value)
        except Exception:
            if not self._is_broken:
                self._is_broken = True
                _logger.exception("metric %s could not be counted; logged once", self._metric.name)


_installed: Instruments | None = None


def install(sink: MetricsSink | None, *, max_topics: int = MAX_TOPICS) -> None:
    """Count what clients do that are made from now on.

    Args:
        sink: Takes the metrics; None: nothing is counted.
        max_topics: So many topics, the first ones, have a label of their own; others are counted together as ``(other)``.

    Examples:
        >>> from dledger_client.metrics.prometheus import PrometheusMetrics
        >>> install(PrometheusMetrics())
    """
    global _installed
    _installed = None if sink is None else Instruments(sink, max_topics)


def installed() -> Instruments | None:
    """The instruments of the installed sink; None without one."""
    return _installed
