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
_DISK = "Free disk space, see [disk](../guides/disk.md). The node goes on by itself."
_NOTHING = "Nothing."

PROCESS = (
    LogEvent("started", "The node or name server serves; the line has its addresses.", _NOTHING),
    LogEvent("stopping", "It was asked to stop, or failed.", "Nothing, when somebody stopped it. Otherwise read the line before."),
    LogEvent("stopped", "It ended by an error, which the line names.", "Mend what the text names, then start it again."),
    LogEvent("not_stopped", "It did not stop in order in time, and ends at once.", "Check the disk."),
    LogEvent(
        "task_failed", "A task failed that nothing goes on without; the node ends. The line has the traceback.", "Report it as a bug."
    ),
    LogEvent(
        "handler_failed", "A request met an error nobody expected; its caller was told. The line has the traceback.", "Report it as a bug."
    ),
    LogEvent(
        "figures_failed",
        "Lags and waiting messages could not be found out for the metrics, which leave them out. The line has the traceback.",
        "Look whether the disk has errors. Otherwise report it as a bug.",
    ),
    LogEvent("no_file_handles", "The process is out of file handles and waits for one.", "Raise the limit of open files (`LimitNOFILE`)."),
    LogEvent(
        "connection_refused",
        "A limit of connections or of received bytes is reached; the line says which.",
        "Look who connects so often, or raise `security.limits`.",
    ),
    LogEvent(
        "child_process_ended",
        "The console that the node started has ended; the node is not affected.",
        "Read its output in the lines before: its address may be in use. The node starts it again, after 1 s at first and 60 s at last.",
    ),
    LogEvent(
        "child_process_not_started",
        "The console cannot be started; the node runs without it.",
        "Install the extra `console` and start the node again, or remove the block `console`.",
    ),
    LogEvent(
        "service_manager_not_told",
        "The socket in `NOTIFY_SOCKET` takes nothing: systemd does not learn that the process is ready, and ends it after a while.",
        "Remove what keeps the process from the socket, such as `RestrictAddressFamilies` without `AF_UNIX`.",
    ),
    LogEvent("foreign_files", "Files in the data folder are not the node's own.", "Move them away; they are neither read nor deleted."),
    LogEvent(
        "cluster_file_advice",
        "The group in the cluster file is allowed, and not what is recommended.",
        "See [the cluster file](configuration.md).",
    ),
    LogEvent(
        "cluster_file_stale",
        "The replica group that serves the names has other nodes than the cluster file names.",
        "Correct the cluster file on every machine.",
    ),
    LogEvent(
        "name_servers_added",
        "The cluster file names name servers that it did not name when the node was started; it registers with them, too.",
        "Nothing. Everything else that was changed in the file counts when the node is started again.",
    ),
    LogEvent(
        "audit_log_failed",
        "Records of the audit log are lost: its file cannot be written.",
        "Free disk space, or mend the folder's rights.",
    ),
    LogEvent("audit_log_recovered", "The audit log is written again.", _NOTHING),
)
LEADERSHIP = (
    LogEvent(
        "leader_changed",
        "Another node leads, or leads another term; the line says why. `dledger leader history` shows the same.",
        "When it repeats, mend what the reason names.",
    ),
    LogEvent(
        "leadership_not_handed_over", "A node that stops could not hand leadership over in time; the others elect a leader.", _NOTHING
    ),
    LogEvent(
        "transfer_failed", "Leadership could not be given away; it is tried again.", "Check `dledger status`: no other voter may be ready."
    ),
    LogEvent(
        "link_failed", "A connection between two nodes cannot be made, or is refused.", "Check the other node, the address and the network."
    ),
    LogEvent(
        "link_refused",
        "A node that does not belong here, or with another data folder, was refused.",
        "Compare cluster files and data folders; [replace the node](../guides/replace-a-node.md) when its folder is new.",
    ),
    LogEvent(
        "left_behind",
        "A voter has the log of a later lineage, which a recovery or a restore began; this node does not lead until it starts again.",
        "[Replace this node](../guides/replace-a-node.md) with an empty folder.",
    ),
    LogEvent(
        "member_moved",
        "The leader wrote the new address of a member into the log.",
        "Change the address in the cluster file of every machine; see [move](../guides/move.md).",
    ),
    LogEvent(
        "clock_compared",
        "This machine's clock left, or came back to, that of the group's majority.",
        "Let the machine synchronize its clock.",
    ),
    LogEvent(
        "certificate_expired",
        "The leader's certificate has expired; it hands leadership over.",
        "Replace its file; it is read without a restart.",
    ),
    LogEvent("clock_off", "The leader's clock is off; it hands leadership over.", "Let the machine synchronize its clock."),
    LogEvent(
        "clocks_disagree",
        "No majority of clocks agrees; the earliest that is not behind the log counts.",
        "Let all machines synchronize their clocks.",
    ),
    LogEvent(
        "group_time_lags", "The clocks of the group jumped; its time follows slowly.", "Check the clocks. When they are right, nothing."
    ),
    LogEvent("group_time_agrees", "The clocks of the group agree with its time again.", _NOTHING),
    LogEvent(
        "core_failed", "The consensus core met a state that its rules exclude; the node stops.", "Keep the log and report it as a bug."
    ),
)
STORAGE = (
    LogEvent("disk_full", "The log cannot be written. The node takes nothing new; a majority of others may lead.", _DISK),
    LogEvent("disk_has_room", "The disk takes writes again.", _NOTHING),
    LogEvent("disk_watermark", "The disk is used beyond a limit of the cluster file; the line says what the node does.", _DISK),
    LogEvent(
        "storage_failed",
        "A sync failed: nothing written since can be trusted, and the node stops.",
        "Replace the disk, then [replace the node](../guides/replace-a-node.md).",
    ),
    LogEvent("write_deferred", "The disk is full; files made from the log are written or removed later.", _DISK),
    LogEvent(
        "log_damaged",
        "Bytes of the log are damaged on this disk; they are fetched from the other replicas.",
        "Bring all replicas up. When it repeats, replace the disk.",
    ),
    LogEvent("log_repaired", "The log is whole again.", "When it repeats, replace the disk."),
    LogEvent(
        "log_truncated", "The end of the log was cut at a damaged entry that was never acknowledged.", "When it repeats, replace the disk."
    ),
    LogEvent("entry_repaired", "A damaged entry was fetched from another replica.", "When it repeats, replace the disk."),
    LogEvent("entry_not_repaired", "No replica that answers has a damaged entry; it is tried again.", "Bring all replicas up. " + _REPLACE),
    LogEvent("apply_waits", "The store waits for a damaged entry.", "Bring all replicas up."),
    LogEvent("index_unit_repaired", "A wrong unit of the log's index was rewritten.", "When it repeats, replace the disk."),
    LogEvent("index_unit_not_written", "A unit of the log's index could not be rewritten; the next start does it.", "Check the disk."),
    LogEvent("queue_file_rebuilt", "A damaged file of a queue was made anew from the log.", "When it repeats, replace the disk."),
    LogEvent(
        "queue_files_not_written",
        "Files of queues could not be written at the stop; the next start makes them from the log.",
        "Check the disk.",
    ),
    LogEvent(
        "queue_files_wait",
        "Missing files of queues cannot be made from the log yet: an entry is damaged and no replica has its bytes, or the disk is full; "
        "reads of these queues are refused on this node.",
        "Bring all replicas up, or make room on the disk; the text says which. The node goes on by itself.",
    ),
    LogEvent("key_index_rebuilt", "A damaged file of the key index is made anew from the log.", "When it repeats, replace the disk."),
    LogEvent("key_index_pauses", "The disk is full; messages are found by key only up to here.", _DISK),
    LogEvent(
        "key_index_waits",
        "An entry that the key index is made from is damaged, and no replica has its bytes; messages behind it are not found by key.",
        "Bring all replicas up. The node goes on by itself.",
    ),
    LogEvent("key_index_not_written", "The key index could not be written; the next start makes it from the log.", "Check the disk."),
    LogEvent(
        "feature_level",
        "The feature level of the replica group has risen, and the data folder is marked with it.",
        "Nothing. Older releases are refused from here on.",
    ),
    LogEvent(
        "file_not_written",
        "A small file of the data folder could not be written; what it has is known in memory.",
        "Check the disk and the folder's rights.",
    ),
    LogEvent("file_not_removed", "What is left of a catch-up copy could not be removed.", "Check the disk and the folder's rights."),
    LogEvent("file_rebuilt", "A file was damaged; it is made anew from the log.", _NOTHING),
    LogEvent(
        "file_begins_anew",
        "The history of leaders, which replica groups were removed, or what is known of peers' data folders, could not be read; "
        "it begins anew.",
        _NOTHING,
    ),
    LogEvent("retention_paused", "Old messages cannot be deleted now.", "Read the text. A full disk: " + _DISK),
    LogEvent(
        "retention_held",
        "Old messages are kept because something still needs them; the line names it.",
        "Read the dead letters, or end the transactions, that hold it.",
    ),
    LogEvent(
        "power_lost",
        "ASYNC_FLUSH: the machine lost power with entries not synced; the node helps to elect nobody until it has them again.",
        "Nothing, when a leader is there. See [troubleshoot](../guides/troubleshoot.md).",
    ),
    LogEvent("power_loss_recovered", "ASYNC_FLUSH: it has every entry again that it may have acknowledged.", _NOTHING),
    LogEvent(
        "log_diverged",
        "ASYNC_FLUSH: power was lost before a majority had synced what was committed here. This replica begins anew; `quarantine` has the "
        "old log.",
        "Compare the kept log when messages are missing.",
    ),
    LogEvent(
        "peer_contradicts",
        "A follower denied entries that it had acknowledged, or acknowledged what the leader does not have.",
        "The disk of `peer` lost what it had synced, or its memory is damaged. Look at that host; "
        "[replace the node](../guides/replace-a-node.md).",
    ),
    LogEvent(
        "snapshot_needed",
        "The node is so far behind that it copies segments from another one.",
        "Nothing; `dledger status` shows how far it is.",
    ),
    LogEvent("snapshot_failed", "The copy was interrupted; it goes on.", "When it lasts, check the network and the other node."),
    LogEvent("snapshot_installed", "The copy is complete and in use.", _NOTHING),
    LogEvent("snapshot_resumed", "The node follows again after a copy.", _NOTHING),
)
SERVICES = (
    LogEvent(
        "service_failing",
        "A service of the master fails until somebody acts; the line names it and the error.",
        "Do what the error says, see [errors](errors.md).",
    ),
    LogEvent("service_recovered", "The service works again.", _NOTHING),
    LogEvent("delayed_messages_dropped", "Delayed messages were dropped: their topic was deleted.", _NOTHING),
    LogEvent(
        "properties_changed",
        "A waiting message had properties that cannot be stored again, as older releases took them from other clients. It is stored with "
        "'?' for what is wrong in them; the text names where it waited.",
        "Compare it with the original there, which stays until retention deletes it; mend the producer.",
    ),
    LogEvent(
        "message_held",
        "A delayed message is due and cannot be read: its bytes are damaged. The others are delivered.",
        "Bring all replicas up; it is delivered once one has the bytes.",
    ),
    LogEvent("held_message_delivered", "A held message was repaired and delivered.", _NOTHING),
    LogEvent("held_message_lost", "A held message expired before any replica had its bytes.", "Its producer has to send it again."),
    LogEvent("message_unreadable", "A message that waits cannot be read now; it stays.", "Bring all replicas up."),
    LogEvent(
        "half_messages_lost",
        "Half messages of transactions expired before they ended.",
        "Check the producers: nobody ended their transactions.",
    ),
    LogEvent(
        "half_messages_parked",
        "No producer knew how transactions ended; they were moved away.",
        "`dledger transaction list` shows them; check the producers.",
    ),
    LogEvent("half_message_unreadable", "A half message cannot be read now.", "Bring all replicas up."),
)
SECURITY = (
    LogEvent(
        "refused",
        "A caller was refused; the line has who, from where and why. The audit log has the same.",
        "Check the rules, or look who tries.",
    ),
    LogEvent(
        "replica_refused", "Somebody who is no member called what only replicas call.", "Look who tries: the certificate may be stolen."
    ),
    LogEvent(
        "quorum_strangers",
        "Connections to the quorum of name servers did not know its password.",
        "Look who tries; compare the secrets of the name servers.",
    ),
    LogEvent(
        "quorum_unnamed",
        "A name server with the right password comes from an address that this one does not know: it was moved or added.",
        "Restart this name server with the new cluster file.",
    ),
    LogEvent(
        "quorum_step_failed", "The quorum of name servers met an error; it goes on. The line has the traceback.", "Report it as a bug."
    ),
    LogEvent(
        "users_not_copied",
        "Users and rules could not be fetched from the group that has them; it is tried again.",
        "Check that this group has a leader.",
    ),
    LogEvent("certificate_expires", "The certificate expires soon.", "Replace its file; it is read without a restart."),
    LogEvent("certificate_unusable", "A new certificate cannot be used; the old one stays in use.", "Mend the file that the text names."),
    LogEvent(
        "plaintext_accepted",
        "`security.tls.step` still lets connections without TLS in; the line may have the address of one.",
        "Go on to the next step, see [secure a running cluster](../guides/secure-a-running-cluster.md).",
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
