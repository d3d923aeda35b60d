"""What takes the metrics of clients: three methods, each called once for each set of labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from dledger_client.metrics.catalog import Metric

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
