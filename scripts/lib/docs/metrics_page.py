"""Reference page of the metrics, made from the catalogue that the collectors take their names from."""

from __future__ import annotations

from broker.metrics import catalog

HEAD = """\
# Metrics and probes

The tables of this page are generated from the catalogue that the nodes themselves use.

With `metrics: {address: HOST:PORT}` in the [cluster file](configuration.md#metrics-metrics-and-probes) each node, name server and spare
node serves three paths there:

| path | answers |
|---|---|
| `/metrics` | metrics as text for Prometheus, or as OpenMetrics if the scraper asks for it; compressed if it may be |
| `/livez` | 200 while the event loop has turned within 5 s and nothing has stopped the process; else 503: start it anew |
| `/readyz` | 200 when clients may be sent there; else 503 |

A node is ready when it is open, knows a leader, and has applied all but 1 000 of the committed entries. A name server is when it is open
and a majority of the name servers is connected; a spare node when it is open. `?verbose` lists every check of a probe with its outcome;
without it only those that fail are listed.

## Who may read them

- With `security.tls` the port speaks HTTPS with the certificate of the process, read anew when its files are replaced. Callers need no
  certificate of their own. `metrics: {tls: false}` makes it plain HTTP.
- With users `/metrics` asks for HTTP Basic credentials of a user who may describe the cluster
  (`dledger acl allow USER describe --cluster`), unless the file says `metrics: {anonymous: true}`. Probes tell no more than what is
  wrong, and are open.
- Before a spare node belongs to a group it knows only the administrators of the cluster file, so they alone read its metrics.
- The port answers 64 requests at a time, one on each connection, each in at most 20 s. At most 256 connections wait for their handshake or
  their request, up to 5 s; beyond that the oldest is closed, and a source with a quarter of them loses its own oldest. Keep the port in the
  network of the operators.

It is served by a thread of its own. The event loop of the node only looks at its state; figures that take longer, such as the lag of
consumer groups, are found out at most every five seconds.

## Labels

Every series has the labels `group` and `node`. Of a name server `group` is `name-servers`, of a spare node that waits it is `spares`.

The labels `topic` and `consumer_group` are bounded. The `metrics.topics` topics with the most traffic have series of their own. Everything
else is summed under the topic `(other)`: the sum over all topics is the whole. A topic that gets a series of its own later begins with
what came since then, and `(other)` keeps what it counted before, so rates are right. Of consumer groups the `metrics.consumerGroups` pairs
of group and topic with the oldest or the most messages to go have series of their own; of all others `(other)` tells the sum and the
largest age.

Counters begin at 0 when the process starts. What a master alone tells is missing on the other nodes, not 0.
"""
SECTIONS = (
    ("Raft", "dledger_raft_"),
    ("Log", "dledger_log_"),
    ("Store and disk", "dledger_store_"),
    ("Name servers", "dledger_nameserver_"),
    ("Process", "dledger_process_"),
)
REST = "Messages, consumers and requests"


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    named = tuple(prefix for _, prefix in SECTIONS)
    for title, prefix in SECTIONS:
        parts.append(_section(title, [metric for metric in catalog.METRICS if metric.name.startswith(prefix)]))
        if title == "Store and disk":
            parts.append(_section(REST, [metric for metric in catalog.METRICS if not metric.name.startswith(named)]))
    rows = "".join(f"| `{kind}` | {text} |\n" for kind, text in catalog.ALARMS.items())
    parts.append(f"\n## Kinds of alarm\n\nValues of the label `kind` of `dledger_alarm`.\n\n| kind | means |\n|---|---|\n{rows}")
    return "".join(parts)


def _section(title: str, metrics: list[catalog.Metric]) -> str:
    rows = "".join(_row(metric) for metric in metrics)
    return f"\n## {title}\n\n| metric | type | labels | on | says |\n|---|---|---|---|---|\n{rows}"


def _row(metric: catalog.Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    places = "all" if metric.on == catalog.ALL else ", ".join(metric.on)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {places} | {metric.help} |\n"
