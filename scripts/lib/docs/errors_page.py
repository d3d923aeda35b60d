"""Reference page of the errors, made from the error classes and one line of advice for each."""

from __future__ import annotations

import inspect

from dledger_wire import errors
from dledger_wire.errors import DledgerError

HEAD = """\
# Errors and what to do

This page is generated from the error classes. Import them from `dledger_client` or `dledger_client.errors`.

Every error is a subclass of `DledgerError`. Its class answers two questions:

- **May the message be stored?** If `error.outcome_unknown` is true, the write may be stored or not. For any other error it is not stored.
- **Does the same call help later?** If `error.retriable` is true, the cause can pass. The clients have already retried until the deadline
  of the call, so retry only after a pause.

`error.code` is a stable name for logs and alerts. `error.details` has facts as text, for example `leader_address`.
The command line prints the message of an error in one line and exits with 1.

"""
ADVICE = {
    "DledgerError": "An unexpected failure. Read the text; the node's log has the traceback.",
    "NotLeaderError": "Nothing. The client finds the new leader. If it lasts, check `dledger status`: the group has no leader.",
    "BusyError": "Send more slowly, or raise `maxUncommittedBytes`. The client has already retried.",
    "ReadOnlyError": "Free disk space on the nodes that `dledger status` calls read-only. See [disk](../guides/operate/disk.md).",
    "NotReadyError": "Nothing. A new leader is ready within milliseconds after it has committed an entry of its term.",
    "NotYetError": "Nothing. Another replica is asked, or the read waits until this one has caught up.",
    "OutcomeUnknownError": "Treat the write as possibly stored. A producer with a `producer_id` can find out after a restart.",
    "UnreachableError": "Check the address, the network and the node. A write may be stored; a read can be repeated.",
    "DeadlineExceededError": "Treat the write as possibly stored. Check `error.send_status` and `dledger status`, or raise the timeout.",
    "ClientClosedError": "Make a new client. What was closed stays closed.",
    "NotSentError": "Send again: nothing was stored. Check that the group has a leader.",
    "TopicNotFoundError": "Create the topic (`dledger topic create`), or check the name.",
    "TopicExistsError": "Nothing, or pass `if_not_exists=True`.",
    "TopicPermissionError": "Change the permission: `dledger topic update TOPIC --perm 6`.",
    "UnsafeShrinkError": "Follow the text: stop writing to the queues first, then read them to the end. `--force` skips the check.",
    "ReplicaGroupDrainingError": "Use another replica group, or make this one active again: `dledger cluster drain GROUP --undo`.",
    "NoLiveMajorityError": "Bring a node back, or remove the failed node first. The change was not made.",
    "InvalidNameError": "Use another name. The text says which characters are allowed.",
    "InvalidArgumentError": "Fix the argument that the text names.",
    "MessageTooLargeError": "Send smaller messages, or raise `maxMessageSize` and the producer's `max_message_bytes`.",
    "CorruptBatchError": "Send again. If it repeats, look for faulty memory or a faulty network card.",
    "CorruptFrameError": "Run `dledger verify --data` on the replica. It repairs itself from a peer.",
    "OffsetOutOfRangeError": "Continue at `error.min_offset`. Messages before it have expired. Raise `fileReservedTime` or consume faster.",
    "OutOfOrderSequenceError": "Close the producer and open a new one. It is a bug if a `Producer` of this package shows it.",
    "ProducerFencedError": "Stop this process: another one uses the same `producer_id`.",
    "ProducerForgottenError": "Read the topic to see what is stored, then continue with a `producer_id` that was never used.",
    "StaleLockError": "Nothing. Another consumer owns the queue now.",
    "StaleReceiptError": "Nothing. The message was delivered again, or is done.",
    "OffsetsResetError": "Nothing. The consumer reads the new offset and continues there.",
    "AuthenticationFailedError": "Check the user, the password file and the certificate's dates. The node's log has the reason in full.",
    "PermissionDeniedError": "Ask an administrator for the right: `dledger acl allow`. `dledger acl check` shows what decides.",
    "DataDirectoryError": "Stop the process that holds the folder, or start with the folder that belongs to this node.",
    "AddressInUseError": "Stop the process that uses the port, or change the address in the cluster file.",
    "ConfigError": "Fix the line that the text names. `dledger node --check` checks the file without starting.",
    "StorageDamagedError": "Bring the other replicas back; the node repairs itself from them. "
    "Otherwise [replace the node](../guides/operate/replace-a-node.md).",
    "StorageFailedError": "Replace the disk, then [replace the node](../guides/operate/replace-a-node.md).",
    "StorageFullError": "Free disk space. The node continues by itself.",
    "CorruptEntryError": "Bring the other replicas back; the node repairs itself from them.",
}


def error_classes() -> list[type[DledgerError]]:
    """All error classes, in the order of their definition."""
    return [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, DledgerError)]


def page() -> str:
    """The whole page, as Markdown."""
    rows = [_row(each) for each in error_classes()]
    table = "| class and code | what happened | stored? | retriable | what to do |\n|---|---|---|---|---|\n" + "".join(rows)
    return HEAD + "## All errors\n\n" + table


def _row(error: type[DledgerError]) -> str:
    stored = "may be" if error.outcome_unknown else "no"
    retriable = "yes" if error.retriable else "no"
    return f"| `{error.__name__}` `{error.code}` | {_meaning(error)} | {stored} | {retriable} | {ADVICE[error.__name__]} |\n"


def _meaning(error: type[DledgerError]) -> str:
    text = (error.__doc__ or "").partition("\n\n")[0]
    return inspect.cleandoc(" ".join(text.split())).replace("``", "`").replace("|", "\\|")
