"""Reference page of the clients' metrics, made from their catalog."""

from __future__ import annotations

from dledger_client.metrics.catalog import CATALOG, MAX_TOPICS, OTHER_TOPICS, Metric

HEAD = f"""\
# Metrics of clients

This page is generated from the catalog in `dledger_client/metrics/`. [Trace and measure clients](../guides/applications/trace.md) shows how
to collect them. Names, units and labels follow those of the nodes.

- `topic` is bounded: the first {MAX_TOPICS} topics of a process have a label of their own, others count as `{OTHER_TOPICS}`.
- Delayed and transactional messages are sent to the system topic that holds them, and count there. Retries count under
  `%RETRY%GROUP` when they are fetched, and under their own topic when a listener gets them.
- Times are measured in whole milliseconds.
- Gauges are sums over the clients of the process that have the same labels.

| metric | kind | unit | labels | content |
|---|---|---|---|---|
"""


def _row(metric: Metric) -> str:
    bounds = f". Bounds: {', '.join(f'{bound:g}' for bound in metric.bounds)}" if metric.bounds else ""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind.value} | {metric.unit} | {labels} | {metric.help}{bounds} |\n"


def page() -> str:
    return HEAD + "".join(_row(metric) for metric in CATALOG)
