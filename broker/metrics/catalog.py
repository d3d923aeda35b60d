"""Every metric that a process of the cluster has: name, type, unit, labels and what it says.

Owns the list, and nothing that measures.  The collectors take names and help from here and fail for a name that is not in it; the page of
the reference, alerts and boards are checked against it.  Every series also has the labels ``group`` and ``node``; for a name server
``group`` is ``name-servers``, for a spare node that waits it is ``spares``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Place = Literal["node", "name server", "spare"]

PREFIX = "dledger_"
PLACE_LABELS = ("group", "node")
OTHERS = "(other)"  # value of a label under which everything is summed that has no series of its own

NODE: tuple[Place, ...] = ("node",)
NAMES: tuple[Place, ...] = ("name server",)
ALL: tuple[Place, ...] = ("node", "name server", "spare")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: As it is scraped, without ``_bucket``, ``_sum`` and ``_count`` of a histogram.
        kind: counter, gauge or histogram.
        help: What it says; one sentence.
        labels: Beside ``group`` and ``node``.
        on: Which processes have it.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    on: tuple[Place, ...] = NODE

    @property
    def unit(self) -> str:
        """seconds, bytes, messages, entries ... as the name says; empty for a plain number."""
        words = self.name.removesuffix("_total").split("_")
        known = ("seconds", "bytes", "ratio", "messages", "entries")
        return next((word for word in reversed(words) if word in known), "")


def _counter(name: str, text: str, *labels: str, on: tuple[Place, ...] = NODE) -> Metric:
    return Metric(PREFIX + name, "counter", text, labels, on)


def _gauge(name: str, text: str, *labels: str, on: tuple[Place, ...] = NODE) -> Metric:
    return Metric(PREFIX + name, "gauge", text, labels, on)


def _histogram(name: str, text: str, *labels: str, on: tuple[Place, ...] = NODE) -> Metric:
    return Metric(PREFIX + name, "histogram", text, labels, on)


_RAFT = (
    _gauge("raft_term", "Newest Raft term that this node knows."),
    _gauge("raft_is_leader", "1 while this node leads its group."),
    _gauge("raft_has_leader", "1 while this node knows a leader of its group."),
    _gauge("raft_is_master", "1 while this node leads and its services for clients run."),
    _gauge("raft_is_voter", "1 while this node votes in its group, 0 of a learner and of a node that was removed."),
    _gauge("raft_voters", "Voters of the group, as this node knows them."),
    _gauge("raft_voters_acknowledging", "Voters on which a write may count now, this node among them; of the leader only."),
    _counter("raft_leader_changes_total", "How often this node saw a new leader, be it another node or the same one elected again."),
    _gauge("raft_first_index", "Index of the first entry in the log."),
    _gauge("raft_last_index", "Index of the last entry in the log."),
    _gauge("raft_commit_index", "Index up to which this node knows the log to be committed."),
    _gauge("raft_applied_index", "Index up to which the store has applied the log."),
    _gauge("raft_uncommitted_bytes", "Bytes of the entries behind the commit index; of the leader only."),
    _counter("raft_proposals_total", "Proposals that ended, by result: committed, refused (not stored) or unknown.", "result"),
    _gauge("raft_proposals_pending", "Proposals that wait to be committed and applied."),
    _histogram("raft_commit_seconds", "From an entry's place in the leader's log until it is committed and applied there."),
    _histogram("raft_replication_seconds", "From entries sent to a peer until it has them on disk.", "peer"),
    _gauge("raft_peer_lag_entries", "How many entries a peer has not acknowledged; of the leader only.", "peer"),
    _gauge("raft_peer_last_contact_seconds", "How long ago a peer answered last; of the leader only.", "peer"),
    _gauge("raft_peer_state", "1 for how the leader replicates to a peer: probe, replicate or copy.", "peer", "state"),
    _gauge("raft_peer_connected", "1 while there is a connection with a peer.", "peer"),
    _histogram("raft_append_batch_bytes", "Bytes of entries in one request to a peer."),
    _histogram("raft_append_batch_entries", "Entries in one request to a peer."),
    _counter("raft_elections_total", "Elections in which this node was a candidate, by why it knew no leader.", "reason"),
    _gauge(
        "raft_election_timeout_seconds",
        "How long a leader may be silent now before it is replaced: as configured, or less while all is quick.",
    ),
    _counter("raft_prevotes_total", "How often this node asked whether it would be elected."),
    _counter(
        "raft_contradictions_total",
        "What replicas said that cannot be: followers that denied what they had acknowledged or acknowledged what this leader does not "
        "have, and messages that were refused.",
        "kind",
    ),
    _counter("raft_transfers_total", "Leadership that this node was to hand over, by result: done or failed.", "result"),
)

_LOG = (
    _histogram("log_fsync_seconds", "Writes to the log that are on stable storage when they end."),
    _histogram("log_write_seconds", "Writes to the log that are not synced, under ASYNC_FLUSH."),
    _gauge("log_segments", "Files of the log."),
    _gauge("log_bytes", "Bytes from the log's first entry to its end."),
    _counter("log_truncations_total", "How often entries that were not committed were cut from the log's end."),
    _counter("log_repairs_total", "Damaged entries that were replaced by a peer's."),
    _counter("log_corruptions_total", "Damaged entries that were found."),
    _gauge("log_corrupt_entries", "Damaged entries that are not repaired yet."),
)

_STORE = (
    _gauge("store_dispatch_behind_bytes", "Committed bytes of the log that the store has not applied."),
    _gauge("store_flush_behind_bytes", "Bytes of the log that are not on this node's disk."),
    _gauge("store_disk_used_ratio", "Used part of the disk, 0 to 1."),
    _gauge("store_disk_free_bytes", "Bytes that may still be written to the disk."),
    _gauge("store_oldest_message_seconds", "Age of the oldest message in the log."),
    _gauge("store_topics", "Topics of the group, the system's own among them."),
    _gauge("store_queues", "Queues that hold messages."),
    _counter("messages_in_total", "Messages stored while this node was master; duplicates do not count.", "topic"),
    _counter("bytes_in_total", "Bytes of these messages.", "topic"),
    _counter(
        "messages_out_total",
        "Messages this node gave to consumers, without what operators read.",
        "topic",
    ),
    _counter("bytes_out_total", "Bytes of these messages.", "topic"),
    _histogram("message_size_bytes", "Size of stored messages, properties and header among it."),
)

_GROUPS = (
    _gauge("consumer_lag_messages", "Messages a consumer group has not confirmed; of the master.", "topic", "consumer_group"),
    _gauge("consumer_lag_seconds", "Age of the oldest message that a consumer group has not confirmed.", "topic", "consumer_group"),
    _gauge("consumer_inflight", "Messages this node gave to a consumer group that are not confirmed.", "topic", "consumer_group"),
    _counter("dlq_messages_total", "Messages that became dead letters of a consumer group.", "consumer_group"),
    _counter("retry_messages_total", "Messages stored again for a consumer group that rejected them.", "consumer_group"),
    _gauge("half_messages", "Transactional messages that wait for commit or rollback."),
    _counter("transaction_checks_total", "Open transactions that were looked at, by result: asked, no producer, given up.", "result"),
    _gauge("delay_messages_pending", "Messages that wait for their delivery time."),
    _gauge("delay_lag_seconds", "How late the delivery of the message is that is due longest."),
)

_PROCESS = (
    _histogram(
        "request_seconds", "Requests, by method and by the code they ended with (OK or a code of the reference).", "method", "code", on=ALL
    ),
    _gauge("connections", "Open connections, by kind: known, or unknown until authenticated.", "kind", on=ALL),
    _counter("refusals_total", "Callers that were refused, by reason.", "reason", on=ALL),
    _counter("backpressure_seconds_total", "Time for which producers were made to wait, summed over their streams."),
    _gauge("alarm", "1 while something needs a person, by kind.", "kind", on=ALL),
    _gauge("loop_lag_seconds", "How late the event loop was at most in the last ten to twenty seconds.", on=ALL),
    _gauge("tls_certificate_expiry_timestamp_seconds", "When the certificate in use expires, seconds since 1970.", on=ALL),
    _gauge("build_info", "1, with the version of dledger and of Python.", "version", "python", on=ALL),
    _counter("process_cpu_seconds_total", "Processor time that the process used.", on=ALL),
    _gauge("process_resident_memory_bytes", "Memory of the process.", on=ALL),
    _gauge("process_anonymous_memory_bytes", "Of that, what the kernel cannot drop.", on=ALL),
    _gauge("process_open_files", "Open files and connections of the process.", on=ALL),
    _gauge("process_start_time_seconds", "When the process started, seconds since 1970.", on=ALL),
)

_NAME_SERVERS = (
    _gauge("nameserver_has_quorum", "1 while a majority of the name servers is connected.", on=NAMES),
    _gauge("nameserver_is_leader", "1 of the name server that leads their quorum.", on=NAMES),
    _gauge("nameserver_groups", "Replica groups that are registered.", on=NAMES),
    _gauge("nameserver_groups_without_leader", "Replica groups of the cluster file that no leader is registered of.", on=NAMES),
    _gauge("nameserver_nodes", "Nodes that are registered, by whether they still repeat it: live or expired.", "state", on=NAMES),
    _gauge("nameserver_topics", "Topics with a route.", on=NAMES),
    _gauge("nameserver_waiting_clients", "Clients that wait for the next change of a route.", on=NAMES),
    _counter("nameserver_registrations_total", "Registrations of nodes.", on=NAMES),
    _counter("nameserver_refused_registrations_total", "Registrations that were refused: stale ones, or of another cluster.", on=NAMES),
    _counter("nameserver_route_requests_total", "Requests for routes.", on=NAMES),
)

METRICS = (*_RAFT, *_LOG, *_STORE, *_GROUPS, *_PROCESS, *_NAME_SERVERS)
BY_NAME = {metric.name: metric for metric in METRICS}

# Values of the label ``kind`` of dledger_alarm.
ALARMS = {
    "stopped": "The node stopped by itself: its disk failed, or its log cannot be trusted.",
    "disk_full": "The disk takes no writes.",
    "read_only": "The disk is used beyond diskSpaceWarningLevelRatio: new messages are refused. 0 while it is full.",
    "damaged": "Entries of the log are damaged and not repaired yet.",
    "contradicted": "The leader has another entry where this replica has one committed: the node has to be replaced.",
    "clock": "The clock is further off from the group's than maxClockSkewMs.",
    "copying": "The node copies the state of another replica, since the log it needs is gone.",
    "certificate": "The certificate in use has expired or expires soon, or its new files cannot be used.",
}
