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
| `/livez` | 200 while the event loop has turned within 5 s and nothing has stopped the process; else 503: restart it |
| `/readyz` | 200 when clients may be sent there; else 503 |

A node is ready when it is open, knows a leader, and has applied all but 1 000 of the committed entries; a name server when it is open and
a majority of the name servers is connected; a spare node when it is open. `?verbose` lists every check of a probe, otherwise only failed
ones.

The gRPC health service of a node's own port answers for `""` (the process is up), `dledger.raft.GROUP` (it knows a leader) and
`dledger.master.GROUP` (it leads, and its background services run). gRPC reflection works, too: `grpcurl -plaintext HOST:PORT list`.

## Access

- With `security.tls` the port speaks HTTPS with the certificate of the process, and loads a replaced one. Callers need no certificate.
  `metrics: {tls: false}` makes it plain HTTP.
- With users `/metrics` requires HTTP Basic credentials of a user who may describe the cluster (`dledger acl allow USER describe
  --cluster`), unless the file says `metrics: {anonymous: true}`. Probes need none. A spare node without a group knows only the
  administrators.
- The port answers 64 requests at a time, each in at most 20 s. At most 256 connections wait for their handshake or request, up to 5 s;
  beyond that the oldest is closed, or the oldest of a source that has a quarter of them.

A thread of its own serves it. Expensive figures, such as the lag of consumer groups, are computed at most every five seconds.

## Labels

Every series has the labels `group` and `node`. Of a name server `group` is `name-servers`, of a spare node without a group `spares`.

The labels `topic` and `consumer_group` are bounded. The `metrics.topics` topics with the most traffic have series of their own,
everything else is summed under the topic `(other)`. A topic that gets a series later starts there, and `(other)` keeps what it counted
before, so rates are right. Of pairs of consumer group and topic the `metrics.consumerGroups` with the oldest or the most unread messages
have series of their own; `(other)` has the sum and the largest age of the rest.

Counters begin at 0 when the process starts. Series of a master are missing on the other nodes, not 0.
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
