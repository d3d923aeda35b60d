"""What the four Grafana boards show: each panel with its question, its unit and its PromQL.

``{C}``, ``{G}``, ``{N}`` and so on stand for what the board's variables choose.
"""

from __future__ import annotations

from dataclasses import dataclass, field

C = 'cluster=~"$cluster"'
G = f'{C}, group=~"$group"'
N = f'{G}, node=~"$node"'
T = f'{C}, topic=~"$topic"'
K = f'{C}, consumer_group=~"$consumer_group"'
KT = f'{K}, topic=~"$topic"'
RED, YELLOW = "red", "yellow"
OVER_TIME = "[$__rate_interval]"


@dataclass(frozen=True)
class Query:
    """One expression; ``legend`` names its series, of a table its column, which may have a ``unit`` of its own."""

    expr: str
    legend: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Panel:
    """``unit`` in Grafana's words; ``limits``: from which value on which colour; ``states``: value, words, colour."""

    title: str
    kind: str
    queries: tuple[Query, ...]
    unit: str = "short"
    description: str = ""
    width: int = 8
    height: int = 8
    limits: tuple[tuple[float, str], ...] = ()
    states: tuple[tuple[str, str, str], ...] = field(default=())


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """``file`` without its ending."""

    file: str
    uid: str
    title: str
    description: str
    variables: tuple[str, ...]
    rows: tuple[Row, ...]


def lines(title: str, unit: str, *queries: tuple[str, str], text: str = "", width: int = 8) -> Panel:
    return Panel(title, "timeseries", tuple(Query(*query) for query in queries), unit, text, width)


def stat(title: str, expr: str, unit: str = "short", text: str = "", limits: tuple[tuple[float, str], ...] = ()) -> Panel:
    return Panel(title, "stat", (Query(expr),), unit, text, 4, 4, limits)


def timeline(title: str, expr: str, legend: str, *states: tuple[str, str, str], text: str = "", width: int = 12) -> Panel:
    return Panel(title, "state-timeline", (Query(expr, legend),), "short", text, width, 8, (), states)


def rate(metric: str, chosen: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{chosen}}}{OVER_TIME}))"


def quantile(q: str, metric: str, chosen: str, by: str) -> str:
    return f"histogram_quantile({q}, sum by ({by}, le) (rate({metric}_bucket{{{chosen}}}{OVER_TIME})))"


def mean(metric: str, chosen: str, by: str) -> str:
    return f"{rate(f'{metric}_sum', chosen, by)} / {rate(f'{metric}_count', chosen, by)}"


def quantiles(title: str, unit: str, metric: str, chosen: str, by: str, *, text: str = "") -> Panel:
    named = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(","))
    return lines(title, unit, *((quantile(q, metric, chosen, by), f"p{q[2:]:0<2} {named}") for q in ("0.5", "0.99")), text=text)


LEADS = timeline(
    "Who leads",
    f"dledger_raft_is_leader{{{G}}}",
    "{{group}} {{node}}",
    ("0", "follows", "transparent"),
    ("1", "leads", "green"),
    text="One line a node. No green at a time: the group had no leader.",
)

CLUSTER = Board(
    "cluster",
    "dledger-cluster",
    "dledger: cluster",
    "All replica groups at a glance: who leads, who is down, how much goes through, what is near its limit.",
    ("cluster", "group"),
    (
        Row(
            "Now",
            (
                stat("Alerts", 'count(ALERTS{alertstate="firing", alertname=~"Dledger.*"}) or vector(0)', limits=((1, RED),)),
                stat(
                    "Groups without a leader",
                    f"count(max by (cluster, group) (dledger_raft_has_leader{{{G}}}) == 0) or vector(0)",
                    limits=((1, RED),),
                ),
                stat("Processes down", f'count(up{{job="dledger", {G}}} == 0) or vector(0)', limits=((1, RED),)),
                stat("Messages in", f"sum(rate(dledger_messages_in_total{{{G}}}{OVER_TIME}))", "cps"),
                stat("Messages out", f"sum(rate(dledger_messages_out_total{{{G}}}{OVER_TIME}))", "cps"),
                stat("Fullest disk", f"max(dledger_store_disk_used_ratio{{{G}}})", "percentunit", limits=((0.75, YELLOW), (0.9, RED))),
            ),
        ),
        Row(
            "Replicas",
            (
                Panel(
                    "Nodes",
                    "table",
                    (
                        Query(f"sum by (group, node) (dledger_raft_is_leader{{{G}}})", "leads"),
                        Query(f"sum by (group, node) (dledger_raft_term{{{G}}})", "term"),
                        Query(f"sum by (group, node) (dledger_raft_last_index{{{G}}})", "last"),
                        Query(f"sum by (group, node) (dledger_raft_commit_index{{{G}}})", "committed"),
                        Query(f"sum by (group, node) (dledger_raft_applied_index{{{G}}})", "applied"),
                        Query(f"sum by (group, node) (dledger_store_disk_used_ratio{{{G}}})", "disk", "percentunit"),
                        Query(f"sum by (group, node) (dledger_process_resident_memory_bytes{{{G}}})", "memory", "bytes"),
                        Query(f"time() - sum by (group, node) (dledger_process_start_time_seconds{{{G}}})", "up for", "s"),
                        Query(f"count by (group, node, version) (dledger_build_info{{{G}}})", "processes"),
                    ),
                    width=24,
                ),
                LEADS,
                timeline(
                    "Alarms",
                    f"dledger_alarm{{{G}}}",
                    "{{node}} {{kind}}",
                    ("0", "none", "transparent"),
                    ("1", "alarm", RED),
                    text="What a node needs a person for.",
                ),
                lines(
                    "Voters that acknowledge",
                    "short",
                    (f"dledger_raft_voters_acknowledging{{{G}}}", "{{group}} acknowledge"),
                    (f"max by (group) (dledger_raft_voters{{{G}}})", "{{group}} voters"),
                    text="As the leader sees it. Writes stop below a majority.",
                ),
                lines(
                    "Changes of leader in an hour",
                    "short",
                    (f"max by (group) (increase(dledger_raft_leader_changes_total{{{G}}}[1h]))", "{{group}}"),
                ),
                lines(
                    "Furthest peer behind its leader",
                    "short",
                    (f"max by (group, peer) (dledger_raft_peer_lag_entries{{{G}}})", "{{group}} {{peer}}"),
                    text="In entries.",
                ),
            ),
        ),
        Row(
            "Traffic",
            (
                lines(
                    "Messages",
                    "cps",
                    (rate("dledger_messages_in_total", G, "group"), "{{group}} in"),
                    (rate("dledger_messages_out_total", G, "group"), "{{group}} out"),
                ),
                lines(
                    "Bytes",
                    "Bps",
                    (rate("dledger_bytes_in_total", G, "group"), "{{group}} in"),
                    (rate("dledger_bytes_out_total", G, "group"), "{{group}} out"),
                ),
                lines(
                    "Requests, p99",
                    "s",
                    (quantile("0.99", "dledger_request_seconds", G, "method"), "{{method}}"),
                    text="Requests that wait for messages count with their waiting.",
                ),
                lines("Requests", "reqps", (rate("dledger_request_seconds_count", G, "method, code"), "{{method}} {{code}}")),
                lines("Connections", "short", (f"sum by (node, kind) (dledger_connections{{{G}}})", "{{node}} {{kind}}")),
                lines(
                    "Connections held up",
                    "short",
                    (f'sum by (node, state) (dledger_connection_states{{state!="running", {G}}})', "{{node}} {{state}}"),
                    text="flow: they wait, or did so in the last 5 s. blocked: an alarm keeps their messages out.",
                ),
                lines("Refused callers", "cps", (rate("dledger_refusals_total", G, "node, reason"), "{{node}} {{reason}}")),
            ),
        ),
        Row(
            "Processes",
            (
                lines("Event loop late by", "s", (f"dledger_loop_lag_seconds{{{G}}}", "{{node}}"), text="At most in the last 10 to 20 s."),
                lines("Processor", "percentunit", (rate("dledger_process_cpu_seconds_total", G, "node"), "{{node}}"), text="1 is a core."),
                lines(
                    "Memory",
                    "bytes",
                    (f"dledger_process_resident_memory_bytes{{{G}}}", "{{node}}"),
                    (f"dledger_process_anonymous_memory_bytes{{{G}}}", "{{node}} of its own"),
                ),
                lines("Open files", "short", (f"dledger_process_open_files{{{G}}}", "{{node}}")),
                lines(
                    "Certificates expire in",
                    "s",
                    (f"dledger_tls_certificate_expiry_timestamp_seconds{{{G}}} - time()", "{{node}}"),
                ),
            ),
        ),
        Row(
            "Name servers",
            (
                timeline(
                    "Majority",
                    f"dledger_nameserver_has_quorum{{{C}}} + dledger_nameserver_is_leader{{{C}}}",
                    "{{node}}",
                    ("0", "none", RED),
                    ("1", "majority", "green"),
                    ("2", "leads it", "blue"),
                ),
                lines(
                    "What they know",
                    "short",
                    (f"max by (state) (dledger_nameserver_nodes{{{C}}})", "nodes {{state}}"),
                    (f"max(dledger_nameserver_groups{{{C}}})", "groups"),
                    (f"max(dledger_nameserver_groups_without_leader{{{C}}})", "groups without a leader"),
                    (f"max(dledger_nameserver_topics{{{C}}})", "topics"),
                    (f"sum(dledger_nameserver_waiting_clients{{{C}}})", "clients that wait"),
                    width=6,
                ),
                lines(
                    "What they are asked",
                    "cps",
                    (rate("dledger_nameserver_registrations_total", C, "node"), "{{node}} registrations"),
                    (rate("dledger_nameserver_refused_registrations_total", C, "node"), "{{node}} refused"),
                    (rate("dledger_nameserver_route_requests_total", C, "node"), "{{node}} routes"),
                    width=6,
                ),
            ),
        ),
    ),
)

RAFT = Board(
    "raft",
    "dledger-raft",
    "dledger: one group's Raft",
    "Why did the leader change, who lags, and what does replication cost?",
    ("cluster", "group"),
    (
        Row(
            "Leadership",
            (
                LEADS,
                timeline(
                    "Who knows a leader",
                    f"dledger_raft_has_leader{{{G}}}",
                    "{{group}} {{node}}",
                    ("0", "no leader", RED),
                    ("1", "knows one", "green"),
                ),
                lines("Term", "short", (f"dledger_raft_term{{{G}}}", "{{group}} {{node}}"), text="Each election raises it."),
                lines(
                    "Elections",
                    "short",
                    (f"sum by (node, reason) (increase(dledger_raft_elections_total{{{G}}}[5m]))", "{{node}} {{reason}}"),
                    (f"sum by (node) (increase(dledger_raft_prevotes_total{{{G}}}[5m]))", "{{node}} asked first"),
                    text="In 5 minutes, by reason. `dledger leader history` tells each in words.",
                ),
                lines(
                    "Election timeout",
                    "s",
                    (f"dledger_raft_election_timeout_seconds{{{G}}}", "{{group}} {{node}}"),
                    text="How long a leader may be silent: as configured after a delay of a node or network, else less.",
                ),
                lines(
                    "Contradictions",
                    "short",
                    (f"sum by (node, kind) (increase(dledger_raft_contradictions_total{{{G}}}[5m]))", "{{node}} {{kind}}"),
                    text="In 5 minutes: what replicas said that cannot be. More than a few: a disk or memory that errs.",
                ),
                lines(
                    "Transfers of leadership",
                    "short",
                    (f"sum by (node, result) (increase(dledger_raft_transfers_total{{{G}}}[5m]))", "{{node}} {{result}}"),
                ),
            ),
        ),
        Row(
            "Replication",
            (
                lines(
                    "Lag of peers",
                    "short",
                    (f"dledger_raft_peer_lag_entries{{{G}}}", "{{group}} {{peer}}"),
                    text="Entries that a peer has not acknowledged.",
                ),
                lines("Silence of peers", "s", (f"dledger_raft_peer_last_contact_seconds{{{G}}}", "{{group}} {{peer}}")),
                lines(
                    "How the leader replicates",
                    "short",
                    (f"sum by (group, state) (dledger_raft_peer_state{{{G}}})", "{{group}} {{state}}"),
                    (f"sum by (group) (dledger_raft_peer_connected{{{G}}})", "{{group}} connected"),
                    text="Peers in each state; a peer in `copy` gets the whole log again.",
                ),
                quantiles("From sent to on a peer's disk", "s", "dledger_raft_replication_seconds", G, "peer"),
                lines(
                    "Entries in a request",
                    "short",
                    (quantile("0.5", "dledger_raft_append_batch_entries", G, "group"), "p50 {{group}}"),
                    (quantile("0.99", "dledger_raft_append_batch_entries", G, "group"), "p99 {{group}}"),
                ),
                lines(
                    "Bytes in a request",
                    "bytes",
                    (quantile("0.5", "dledger_raft_append_batch_bytes", G, "group"), "p50 {{group}}"),
                    (quantile("0.99", "dledger_raft_append_batch_bytes", G, "group"), "p99 {{group}}"),
                ),
            ),
        ),
        Row(
            "Commit",
            (
                quantiles("From the log to committed", "s", "dledger_raft_commit_seconds", G, "group"),
                lines("Committed", "cps", (f"max by (group) (rate(dledger_raft_commit_index{{{G}}}{OVER_TIME}))", "{{group}} entries")),
                lines(
                    "Waiting",
                    "short",
                    (f"dledger_raft_proposals_pending{{{G}}}", "{{node}} proposals"),
                    (f"dledger_raft_commit_index{{{G}}} - dledger_raft_applied_index{{{G}}}", "{{node}} entries to apply"),
                ),
                lines("Not committed", "bytes", (f"dledger_raft_uncommitted_bytes{{{G}}}", "{{group}} {{node}}")),
                lines("Proposals", "cps", (rate("dledger_raft_proposals_total", G, "group, result"), "{{group}} {{result}}")),
                lines(
                    "Entries kept",
                    "short",
                    (f"dledger_raft_last_index{{{G}}} - dledger_raft_first_index{{{G}}}", "{{group}} {{node}}"),
                ),
            ),
        ),
        Row(
            "Members",
            (
                timeline("Votes", f"dledger_raft_is_voter{{{G}}}", "{{group}} {{node}}", ("0", "learner", "blue"), ("1", "voter", "green")),
                timeline(
                    "Serves clients as master",
                    f"dledger_raft_is_master{{{G}}}",
                    "{{group}} {{node}}",
                    ("0", "no", "transparent"),
                    ("1", "master", "green"),
                ),
            ),
        ),
    ),
)

STORE = Board(
    "store",
    "dledger-store",
    "dledger: store and disk",
    "Is a disk slow, full or damaged, and how long do messages stay?",
    ("cluster", "group", "node"),
    (
        Row(
            "Space",
            (
                lines("Disk used", "percentunit", (f"dledger_store_disk_used_ratio{{{N}}}", "{{group}} {{node}}")),
                lines("Disk free", "bytes", (f"dledger_store_disk_free_bytes{{{N}}}", "{{group}} {{node}}")),
                lines("Log", "bytes", (f"dledger_log_bytes{{{N}}}", "{{group}} {{node}}")),
                lines("Files of the log", "short", (f"dledger_log_segments{{{N}}}", "{{group}} {{node}}")),
                lines("Oldest message", "s", (f"dledger_store_oldest_message_seconds{{{N}}}", "{{group}} {{node}}")),
                lines(
                    "Topics and queues",
                    "short",
                    (f"dledger_store_topics{{{N}}}", "{{node}} topics"),
                    (f"dledger_store_queues{{{N}}}", "{{node}} queues with messages"),
                ),
            ),
        ),
        Row(
            "Speed",
            (
                quantiles("Sync", "s", "dledger_log_fsync_seconds", N, "node", text="A write that is on stable storage when it ends."),
                lines(
                    "Syncs and writes",
                    "cps",
                    (rate("dledger_log_fsync_seconds_count", N, "node"), "{{node}} syncs"),
                    (rate("dledger_log_write_seconds_count", N, "node"), "{{node}} writes without a sync"),
                ),
                lines(
                    "Write without a sync",
                    "s",
                    (rate("dledger_log_write_seconds_sum", N, "node"), "{{node}}"),
                    text="Seconds of each second that the disk was busy with them; only under ASYNC_FLUSH.",
                ),
                lines("Not applied yet", "bytes", (f"dledger_store_dispatch_behind_bytes{{{N}}}", "{{group}} {{node}}")),
                lines("Not on this disk yet", "bytes", (f"dledger_store_flush_behind_bytes{{{N}}}", "{{group}} {{node}}")),
                lines(
                    "Producers made to wait",
                    "s",
                    (rate("dledger_backpressure_seconds_total", N, "node"), "{{node}}"),
                    text="Seconds of each second, over all producers.",
                ),
                lines(
                    "Quotas",
                    "s",
                    (rate("dledger_quota_throttled_seconds_total", N, "node, kind"), "{{node}} {{kind}}"),
                    text="Seconds of each second for which requests and streams waited, by kind of the quota.",
                ),
                lines(
                    "Requests delayed by quotas",
                    "reqps",
                    (rate("dledger_quota_throttled_requests_total", N, "node, kind"), "{{node}} {{kind}}"),
                ),
            ),
        ),
        Row(
            "Soundness",
            (
                lines(
                    "Damaged entries",
                    "short",
                    (f"dledger_log_corrupt_entries{{{N}}}", "{{node}} now"),
                    (f"dledger_log_corruptions_total{{{N}}}", "{{node}} found"),
                    (f"dledger_log_repairs_total{{{N}}}", "{{node}} repaired"),
                ),
                lines(
                    "Cut from the log's end",
                    "short",
                    (f"dledger_log_truncations_total{{{N}}}", "{{group}} {{node}}"),
                    text="Entries of a former leader that were never committed.",
                ),
                timeline(
                    "Alarms of the disk",
                    f'dledger_alarm{{kind=~"stopped|disk_full|read_only|memory|damaged|contradicted|copying", {N}}}',
                    "{{node}} {{kind}}",
                    ("0", "none", "transparent"),
                    ("1", "alarm", RED),
                    width=8,
                ),
            ),
        ),
    ),
)

TOPICS = Board(
    "topics",
    "dledger-topics",
    "dledger: topics and consumers",
    "Which consumer lags, and which topic is the traffic?",
    ("cluster", "topic", "consumer_group"),
    (
        Row(
            "Consumers",
            (
                lines(
                    "Behind, in time",
                    "s",
                    (f"max by (consumer_group, topic) (dledger_consumer_lag_seconds{{{KT}}})", "{{consumer_group}} {{topic}}"),
                    text="Age of the oldest message that is not confirmed.",
                    width=12,
                ),
                lines(
                    "Behind, in messages",
                    "short",
                    (f"max by (consumer_group, topic) (dledger_consumer_lag_messages{{{KT}}})", "{{consumer_group}} {{topic}}"),
                    width=12,
                ),
                lines(
                    "Given and not confirmed",
                    "short",
                    (f"sum by (consumer_group, topic) (dledger_consumer_inflight{{{KT}}})", "{{consumer_group}} {{topic}}"),
                ),
                lines(
                    "Leased one by one",
                    "short",
                    (f"max by (consumer_group, topic) (dledger_leased_messages{{{KT}}})", "{{consumer_group}} {{topic}}"),
                    text="Messages that a consumer has and has not acknowledged, while its lease lasts.",
                ),
                lines(
                    "Oldest of these",
                    "s",
                    (f"max by (consumer_group, topic) (dledger_leased_oldest_seconds{{{KT}}})", "{{consumer_group}} {{topic}}"),
                    text="Since it was delivered first. Rises while no consumer finishes it.",
                ),
                lines(
                    "Delivered again, and dead letters of these",
                    "cps",
                    (rate("dledger_leased_again_total", K, "consumer_group"), "{{consumer_group}} again"),
                    (rate("dledger_leased_dead_letters_total", K, "consumer_group"), "{{consumer_group}} dead"),
                ),
                lines("Retries", "cps", (rate("dledger_retry_messages_total", K, "consumer_group"), "{{consumer_group}}")),
                lines("Dead letters", "cps", (rate("dledger_dlq_messages_total", K, "consumer_group"), "{{consumer_group}}")),
            ),
        ),
        Row(
            "Topics",
            (
                lines(
                    "Messages in",
                    "cps",
                    (f"topk(10, {rate('dledger_messages_in_total', T, 'topic')})", "{{topic}}"),
                    text="Ten largest.",
                ),
                lines("Messages out", "cps", (f"topk(10, {rate('dledger_messages_out_total', T, 'topic')})", "{{topic}}")),
                lines(
                    "Size of messages",
                    "bytes",
                    (quantile("0.5", "dledger_message_size_bytes", C, "group"), "p50 {{group}}"),
                    (quantile("0.99", "dledger_message_size_bytes", C, "group"), "p99 {{group}}"),
                    (mean("dledger_message_size_bytes", C, "group"), "mean {{group}}"),
                ),
                lines("Bytes in", "Bps", (f"topk(10, {rate('dledger_bytes_in_total', T, 'topic')})", "{{topic}}")),
                lines("Bytes out", "Bps", (f"topk(10, {rate('dledger_bytes_out_total', T, 'topic')})", "{{topic}}")),
            ),
        ),
        Row(
            "Waiting",
            (
                lines("Delayed messages", "short", (f"max by (group) (dledger_delay_messages_pending{{{C}}})", "{{group}}")),
                lines("Delivered late by", "s", (f"max by (group) (dledger_delay_lag_seconds{{{C}}})", "{{group}}")),
                lines(
                    "Open transactions",
                    "short",
                    (f"max by (group) (dledger_half_messages{{{C}}})", "{{group}}"),
                    (f"sum by (group, result) (increase(dledger_transaction_checks_total{{{C}}}[5m]))", "{{group}} looked at: {{result}}"),
                ),
            ),
        ),
    ),
)

BOARDS = (CLUSTER, RAFT, STORE, TOPICS)
