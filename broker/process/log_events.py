"""The events that operators meet in the logs of nodes and name servers: what each means, and what is to be done.

Owns their names, which stay the same over versions: alerts and searches use them.  docs/reference/events.md is made from this table, and a
test holds that every warning and error of a server names one of them.
"""

from __future__ import annotations

from typing import NamedTuple


class LogEvent(NamedTuple):
    """``action``: what an operator does, in Markdown."""

    name: str
    meaning: str
    action: str


_REPLACE = "[Replace the node](../guides/replace-a-node.md)."
_DISK = "Free disk space, see [disk](../guides/disk.md). The node continues by itself."
_NOTHING = "None."

PROCESS = (
    LogEvent("started", "The node or name server serves; the line has its addresses.", _NOTHING),
    LogEvent("stopping", "The process is shutting down.", "None if the shutdown was intentional. Otherwise read the line before."),
    LogEvent("stopped", "The process ended with the error in the line.", "Fix the reported error and restart the process."),
    LogEvent("not_stopped", "The shutdown timed out; the process exits at once.", "Check the disk."),
    LogEvent("task_failed", "An essential task failed; the node exits. The line has the traceback.", "Report it as a bug."),
    LogEvent(
        "handler_failed",
        "A request failed with an unexpected error, which its caller got. The line has the traceback.",
        "Report it as a bug.",
    ),
    LogEvent(
        "figures_failed",
        "Lags and waiting messages could not be computed; the metrics omit them. The line has the traceback.",
        "Check the disk for errors. Otherwise report it as a bug.",
    ),
    LogEvent("no_file_handles", "The process is out of file handles and waits for one.", "Raise the limit of open files (`LimitNOFILE`)."),
    LogEvent(
        "connection_refused",
        "A limit of connections or of received bytes is reached; the line names it.",
        "Find the client that connects so often, or raise `security.limits`.",
    ),
    LogEvent(
        "child_process_ended",
        "The console process ended; the node is not affected.",
        "Read its output in the lines before: its address may be in use. The node restarts it, after 1 s at first and up to 60 s later.",
    ),
    LogEvent(
        "child_process_not_started",
        "The console cannot be started; the node runs without it.",
        "Install the extra `console` and start the node again, or remove the block `console`.",
    ),
    LogEvent(
        "service_manager_not_notified",
        "The socket in `NOTIFY_SOCKET` is not writable: systemd does not see that the process is ready, and kills it later.",
        "Allow the socket: for example add `AF_UNIX` to `RestrictAddressFamilies`.",
    ),
    LogEvent(
        "foreign_files",
        "The data folder has files that do not belong to the node.",
        "Move them away; the node neither reads nor deletes them.",
    ),
    LogEvent(
        "cluster_file_advice",
        "The group in the cluster file is valid but not recommended.",
        "See [the cluster file](configuration.md).",
    ),
    LogEvent(
        "cluster_file_stale",
        "The replica group of the name service has other nodes than the cluster file.",
        "Correct the cluster file on every host.",
    ),
    LogEvent(
        "name_servers_added",
        "Name servers were added to the cluster file since the node started; it registers with them.",
        "None. Other changes of the file take effect at the next start.",
    ),
    LogEvent(
        "audit_log_failed",
        "Records of the audit log are lost: its file cannot be written.",
        "Free disk space, or fix the permissions of the folder.",
    ),
    LogEvent("audit_log_recovered", "The audit log is writable again.", _NOTHING),
)
LEADERSHIP = (
    LogEvent(
        "leader_changed",
        "A new leader or term; the line has the reason. `dledger leader history` shows the same.",
        "If it repeats, fix the reported reason.",
    ),
    LogEvent("leadership_not_handed_over", "A stopping node could not transfer leadership in time; the others elect a leader.", _NOTHING),
    LogEvent(
        "transfer_failed", "A transfer of leadership failed and is retried.", "Check `dledger status`: maybe no other voter is ready."
    ),
    LogEvent("link_failed", "A connection between two nodes failed or was refused.", "Check the other node, the address and the network."),
    LogEvent(
        "link_refused",
        "A node of another cluster, group or data folder was refused.",
        "Compare cluster files and data folders; [replace the node](../guides/replace-a-node.md) if its folder is new.",
    ),
    LogEvent(
        "left_behind",
        "A voter has the log of a later lineage, which a recovery or a restore began; this node does not lead until it starts again.",
        "[Replace this node](../guides/replace-a-node.md) with an empty folder.",
    ),
    LogEvent(
        "member_moved",
        "The leader wrote the new address of a member into the log.",
        "Change the address in the cluster file on every host; see [move](../guides/move.md).",
    ),
    LogEvent(
        "clock_compared",
        "The clock of this host diverged from the majority of the group, or agrees again.",
        "Synchronize the clock of the host.",
    ),
    LogEvent(
        "certificate_expired",
        "The leader's certificate has expired; it transfers leadership.",
        "Replace its file; no restart is needed.",
    ),
    LogEvent("clock_off", "The leader's clock is wrong; it transfers leadership.", "Synchronize the clock of the host."),
    LogEvent(
        "clocks_disagree",
        "No majority of clocks agrees; the earliest clock that is not behind the log is used.",
        "Synchronize the clocks of all hosts.",
    ),
    LogEvent("group_time_lags", "The clocks of the group jumped; its time adjusts slowly.", "Check the clocks. None if they are right."),
    LogEvent("group_time_agrees", "The clocks of the group agree with its time again.", _NOTHING),
    LogEvent("core_failed", "An invariant of the consensus core was violated; the node stops.", "Keep the log and report it as a bug."),
)
STORAGE = (
    LogEvent("disk_full", "The log cannot be written. The node accepts no new data; another node may lead.", _DISK),
    LogEvent("disk_has_room", "The disk is writable again.", _NOTHING),
    LogEvent("disk_watermark", "Disk usage exceeds a limit of the cluster file; the line has the consequence.", _DISK),
    LogEvent(
        "storage_failed",
        "An fsync failed: later writes cannot be trusted, and the node stops.",
        "Replace the disk, then [replace the node](../guides/replace-a-node.md).",
    ),
    LogEvent("write_deferred", "The disk is full; files derived from the log are written or removed later.", _DISK),
    LogEvent(
        "log_damaged",
        "The log is damaged on this disk and is repaired from the other replicas.",
        "Start all replicas. If it repeats, replace the disk.",
    ),
    LogEvent("log_repaired", "The log is repaired.", "If it repeats, replace the disk."),
    LogEvent("log_truncated", "The log was truncated at a damaged entry that was never acknowledged.", "If it repeats, replace the disk."),
    LogEvent("entry_repaired", "A damaged entry was fetched from another replica.", "If it repeats, replace the disk."),
    LogEvent(
        "entry_not_repaired", "No reachable replica has an intact copy of a damaged entry; retried.", "Start all replicas. " + _REPLACE
    ),
    LogEvent("apply_waits", "The store waits for a damaged entry.", "Start all replicas."),
    LogEvent("index_unit_repaired", "A wrong unit of the log's index was repaired.", "If it repeats, replace the disk."),
    LogEvent("index_unit_not_written", "A unit of the log's index could not be repaired; retried at the next start.", "Check the disk."),
    LogEvent("queue_file_rebuilt", "A damaged queue file was rebuilt from the log.", "If it repeats, replace the disk."),
    LogEvent(
        "queue_files_not_written",
        "Queue files could not be written at shutdown; the next start rebuilds them from the log.",
        "Check the disk.",
    ),
    LogEvent(
        "queue_files_wait",
        "Missing queue files cannot be rebuilt from the log yet: an entry is damaged on all reachable replicas, or the disk is full. "
        "Reads of these queues fail on this node.",
        "Start all replicas, or free disk space, as the line says. The node continues by itself.",
    ),
    LogEvent("key_index_rebuilt", "A damaged file of the key index is rebuilt from the log.", "If it repeats, replace the disk."),
    LogEvent("key_index_pauses", "The disk is full; newer messages are not found by key.", _DISK),
    LogEvent(
        "key_index_waits",
        "An entry is damaged on all reachable replicas; later messages are not found by key.",
        "Start all replicas. The node continues by itself.",
    ),
    LogEvent("key_index_not_written", "The key index could not be written; the next start rebuilds it from the log.", "Check the disk."),
    LogEvent(
        "feature_level",
        "The feature level of the replica group has risen, and the data folder is marked with it.",
        "None. Nodes of older releases are refused from now on.",
    ),
    LogEvent(
        "file_not_written",
        "A state file of the data folder could not be written; its content is kept in memory.",
        "Check the disk and the permissions of the folder.",
    ),
    LogEvent(
        "file_not_removed", "Files of a finished catch-up copy could not be removed.", "Check the disk and the permissions of the folder."
    ),
    LogEvent("file_rebuilt", "A damaged file is rebuilt from the log.", _NOTHING),
    LogEvent(
        "file_reset",
        "The history of leaders, the list of removed replica groups, or the list of peers' data folders could not be read; it was reset.",
        _NOTHING,
    ),
    LogEvent("retention_paused", "Old messages cannot be deleted at the moment.", "Read the line. If the disk is full: " + _DISK),
    LogEvent(
        "retention_held",
        "Old messages are retained because they are still needed; the line has the reason.",
        "Process the dead letters or end the transactions that hold them.",
    ),
    LogEvent(
        "power_lost",
        "ASYNC_FLUSH: the machine lost power with entries not synced; the node does not vote until it has them again.",
        "None if the group has a leader. See [troubleshoot](../guides/troubleshoot.md).",
    ),
    LogEvent("power_loss_recovered", "ASYNC_FLUSH: the node has every entry again that it may have acknowledged.", _NOTHING),
    LogEvent(
        "log_diverged",
        "ASYNC_FLUSH: power was lost before a majority had synced entries that were committed here. This replica starts over; its old log "
        "is in `quarantine`.",
        "If messages are missing, look for them in the kept log.",
    ),
    LogEvent(
        "peer_contradicts",
        "A follower denied entries that it had acknowledged, or acknowledged entries that the leader does not have.",
        "The disk of `peer` lost synced data, or its memory is faulty. Check that host; [replace the node](../guides/replace-a-node.md).",
    ),
    LogEvent(
        "snapshot_needed",
        "The node is too far behind and copies segments from another node.",
        "None; `dledger status` shows the progress.",
    ),
    LogEvent("snapshot_failed", "The copy was interrupted and is resumed.", "If it persists, check the network and the other node."),
    LogEvent("snapshot_installed", "The copy is complete and in use.", _NOTHING),
    LogEvent("snapshot_resumed", "The node replicates again after a copy.", _NOTHING),
)
SERVICES = (
    LogEvent(
        "service_failing",
        "A service of the master fails permanently; the line names it and the error.",
        "Fix the error, see [errors](errors.md).",
    ),
    LogEvent("service_recovered", "The service works again.", _NOTHING),
    LogEvent("delayed_messages_dropped", "Delayed messages were dropped because their topic was deleted.", _NOTHING),
    LogEvent(
        "properties_changed",
        "A waiting message had properties that cannot be stored again. It is stored with '?' for what is wrong in them; the text names "
        "where it waited.",
        "Compare it with the original there, which stays until retention deletes it; mend the producer.",
    ),
    LogEvent(
        "message_held",
        "A due delayed message cannot be read because it is damaged. Other messages are delivered.",
        "Start all replicas; it is delivered once a replica has an intact copy.",
    ),
    LogEvent("held_message_delivered", "A held message was repaired and delivered.", _NOTHING),
    LogEvent("held_message_lost", "A held message expired before it could be repaired.", "Send it again."),
    LogEvent("message_unreadable", "A waiting message cannot be read at the moment; it stays.", "Start all replicas."),
    LogEvent(
        "half_messages_lost",
        "Half messages of transactions expired before the transactions ended.",
        "Check the producers: they did not end their transactions.",
    ),
    LogEvent(
        "half_messages_parked",
        "No producer knew the outcome of transactions; they were put aside.",
        "List them with `dledger transaction list`; check the producers.",
    ),
    LogEvent("half_message_unreadable", "A half message cannot be read at the moment.", "Start all replicas."),
)
SECURITY = (
    LogEvent(
        "refused",
        "A request was refused; the line has user, address and reason, as the audit log.",
        "Check the rules, or the client.",
    ),
    LogEvent(
        "replica_refused", "A caller that is not a member used an RPC for replicas.", "Check the caller: its certificate may be stolen."
    ),
    LogEvent(
        "quorum_strangers",
        "Connections to the quorum of name servers had a wrong password.",
        "Check the addresses; compare the secrets of the name servers.",
    ),
    LogEvent(
        "quorum_unnamed",
        "A name server with the right password connected from an unknown address: it was moved or added.",
        "Restart this name server with the new cluster file.",
    ),
    LogEvent(
        "quorum_step_failed", "The quorum of name servers failed once and continues. The line has the traceback.", "Report it as a bug."
    ),
    LogEvent(
        "users_not_copied",
        "Users and rules could not be fetched from their replica group; retried.",
        "Check that the group has a leader.",
    ),
    LogEvent("certificate_expires", "The certificate expires soon.", "Replace its file; no restart is needed."),
    LogEvent("certificate_unusable", "A new certificate is unusable; the old one stays in use.", "Fix the file that the line names."),
    LogEvent(
        "plaintext_accepted",
        "`security.tls.step` still accepts connections without TLS; the line may have the address of one.",
        "Continue with the next step, see [secure a running cluster](../guides/secure-a-running-cluster.md).",
    ),
)

SECTIONS = {
    "Process": PROCESS,
    "Leadership and clocks": LEADERSHIP,
    "Storage": STORAGE,
    "Services": SERVICES,
    "Security": SECURITY,
}
EVENTS = {event.name: event for events in SECTIONS.values() for event in events}
