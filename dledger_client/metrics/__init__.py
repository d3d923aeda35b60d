"""Metrics of this process's clients: what is counted, and where it goes.

Owns the small interface between the two.  ``install`` names a sink; clients made afterwards count into it, the others go on as they were.
``dledger_client.metrics.prometheus`` and ``dledger_client.metrics.otel`` have sinks for those two, each with the extra of its name; any
object with the three methods of ``MetricsSink`` is one.

    install(PrometheusMetrics())     all counting clients of this process, in the registry of the program
    install(None)                    nothing is counted, which is the default
"""

from dledger_client.metrics.catalog import CATALOG, OTHER_TOPICS, Metric, MetricKind
from dledger_client.metrics.instruments import Amount, Instruments, MetricsSink, install, installed

__all__ = ["CATALOG", "OTHER_TOPICS", "Amount", "Instruments", "Metric", "MetricKind", "MetricsSink", "install", "installed"]
