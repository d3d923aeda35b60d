"""Operating errors, one class per code, shared by servers and clients.

    DledgerError
     |- NotLeaderError            refresh_route   carries the leader's address when known
     |- BusyError                 retriable       uncommitted bytes or memory at their limit; nothing was stored
     |- ReadOnlyError             retriable       disk full or storage stopped; nothing was stored
     |- NotReadyError             retriable       a new leader has not committed its term yet
     |- NotYetError               retriable       this replica has not applied that far (bounded staleness)
     |- OutcomeUnknownError       outcome_unknown leadership lost or deadline passed with the write in flight
     |- UnreachableError          outcome_unknown, refresh_route   the connection broke
     |- DeadlineExceededError     outcome_unknown the client's deadline passed
     |- NotSentError              retriable       the client's deadline passed before anything was sent; nothing was stored
     |- TopicNotFoundError / TopicExistsError / TopicPermissionError / InvalidNameError / InvalidArgumentError
     |- UnsafeShrinkError         queues would go away that are written to, or hold what is not read yet
     |- NoLiveMajorityError       a change of members would leave a group that cannot commit; nothing was changed
     |- MessageTooLargeError / CorruptBatchError / CorruptFrameError
     |- OffsetOutOfRangeError     carries min_offset and max_offset
     |- OutOfOrderSequenceError / ProducerFencedError / ProducerForgottenError
     |- AuthenticationFailedError the caller or the server did not authenticate
     |- PermissionDeniedError     the caller is known, and may not do this
     |- DataDirectoryError / AddressInUseError / ConfigError
     |- StorageDamagedError       names file and position
     |- StorageFailedError        a write or sync failed; this node's log takes nothing more
     |- StorageFullError          retriable       no space left; nothing was lost, the same write may be tried again
     |- CorruptEntryError         bytes that should be a log entry are not the one expected

"Not accepted" and "outcome unknown" are different answers, decided by type: ``outcome_unknown`` may or may not have been stored.
Bugs are not here: see check.InvariantBrokenError.
"""

from __future__ import annotations

from typing import ClassVar

from dledger_wire.status import SendStatus


class DledgerError(Exception):
    """Base of all operating errors.

    Args:
        message: What went wrong, for people. Default: the code.
        details: Values of the error; kept as strings, since they travel over the wire.

    Attributes:
        code: Stable name of the error, e.g. ``NOT_LEADER``.
        retriable: Whether the same request may succeed later.
        refresh_route: Whether the leader should be looked up before a retry.
        outcome_unknown: Whether the request may have been executed nevertheless.
        message: The text.
        details: Values of the error, as strings.
    """

    code: ClassVar[str] = "INTERNAL"
    retriable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False
    outcome_unknown: ClassVar[bool] = False

    def __init__(self, message: str = "", /, **details: object) -> None:  # a peer's details may have any names
        super().__init__(message or self.code)
        self.message = message or self.code
        self.details: dict[str, str] = {key: str(value) for key, value in details.items()}

    def detail_int(self, name: str, default: int = -1) -> int:
        """A numeric detail.

        Args:
            name: Key in ``details``.
            default: Returned when the detail is absent or not a number.

        Returns:
            The number.

        Examples:
            >>> DledgerError("full", limit=3).detail_int("limit")
            3
        """
        try:
            return int(self.details.get(name, default))
        except ValueError:
            return default


class NotLeaderError(DledgerError):
    """The request needs the leader of the replica group and this node is not it; nothing was stored.

    Clients follow ``leader_address``, which is empty while the group has no leader, and retry.
    """

    code = "NOT_LEADER"
    retriable = True
    refresh_route = True

    @property
    def leader_address(self) -> str:
        """``host:port`` of the leader; empty while there is none."""
        return self.details.get("leader_address", "")


class BusyError(DledgerError):
    """The broker or the producer is at a limit (uncommitted bytes, buffer memory); nothing was stored. Retriable: slow down."""

    code = "BUSY"
    retriable = True


class ReadOnlyError(DledgerError):
    """The node stopped accepting writes because its disk is full or its storage failed; nothing was stored."""

    code = "READ_ONLY"
    retriable = True
    refresh_route = True


class NotReadyError(DledgerError):
    """A new leader has not committed an entry of its term yet; nothing was stored. Retriable within milliseconds."""

    code = "NOT_READY"
    retriable = True
    refresh_route = True


class NotYetError(DledgerError):
    """The replica has not applied the log as far as the read asks for. Retriable, or read from the leader."""

    code = "NOT_YET"
    retriable = True


class OutcomeUnknownError(DledgerError):
    """Leadership changed or the deadline passed while the write was in flight: it may or may not be stored."""

    code = "OUTCOME_UNKNOWN"
    retriable = True
    refresh_route = True
    outcome_unknown = True


class UnreachableError(DledgerError):
    """The connection broke or the node did not respond: a write that was in flight may or may not be stored."""

    code = "UNREACHABLE"
    retriable = True
    refresh_route = True
    outcome_unknown = True


class DeadlineExceededError(DledgerError):
    """The client's deadline passed while the request was in flight: a write may or may not be stored."""

    code = "DEADLINE_EXCEEDED"
    outcome_unknown = True

    @property
    def send_status(self) -> SendStatus | None:
        """Which part of the acknowledgement was missing, if the broker reported it: flush or replication."""
        status = self.details.get("send_status")
        return SendStatus(status) if status in SendStatus.__members__ else None


class NotSentError(DledgerError):
    """The deadline passed before the message left the process, or the leader could not have stored it by then; nothing was stored.
    ``__cause__`` says what it waited for."""

    code = "NOT_SENT"
    retriable = True


class ClientClosedError(DledgerError):
    """The client is closed, or was closed while it waited for an answer."""

    code = "CLIENT_CLOSED"


class TopicNotFoundError(DledgerError):
    """The topic does not exist, or was deleted. Create it with ``Admin.create_topic`` or ``dledger topic create``."""

    code = "TOPIC_NOT_FOUND"


class TopicExistsError(DledgerError):
    """``create_topic`` found a topic of this name; pass ``if_not_exists=True`` to accept it."""

    code = "TOPIC_EXISTS"


class TopicPermissionError(DledgerError):
    """The topic's ``perm`` does not allow this: 4 is read, 2 is write, 6 is both."""

    code = "TOPIC_PERMISSION"


class UnsafeShrinkError(DledgerError):
    """The change would remove queues that producers still write to, or that hold unread messages; the text says which, and what to do."""

    code = "UNSAFE_SHRINK"


class ReplicaGroupDrainingError(DledgerError):
    """The replica group is draining, or was removed: it takes no new messages and topics. Use another replica group."""

    code = "REPLICA_GROUP_DRAINING"


class NoLiveMajorityError(DledgerError):
    """A membership change would leave a replica group in which no majority responds; nothing was changed. The text says what to do."""

    code = "NO_LIVE_MAJORITY"


class InvalidNameError(DledgerError):
    """A topic, group or node name, or a ``producer_id``, is empty, too long, reserved, or has characters that are not allowed."""

    code = "INVALID_NAME"


class InvalidArgumentError(DledgerError):
    """An argument is outside its range or contradicts another; the text says what is expected. Nothing was sent."""

    code = "INVALID_ARGUMENT"


class MessageTooLargeError(DledgerError):
    """The message or batch is larger than ``max_message_bytes`` of the producer or ``maxMessageSize`` of the cluster."""

    code = "MESSAGE_TOO_LARGE"


class CorruptBatchError(DledgerError):
    """A batch record's arrays, sizes, checksums or fields disagree; ``first_bad`` is the first bad message (-1: the header)."""

    code = "CORRUPT_BATCH"


class CorruptFrameError(DledgerError):
    """Bytes that should be a stored message are not one, or their checksum does not match."""

    code = "CORRUPT_FRAME"


class OffsetOutOfRangeError(DledgerError):
    """The queue does not hold this offset. ``min_offset`` and ``max_offset`` (exclusive) say what it holds; -1 when unknown."""

    code = "OFFSET_OUT_OF_RANGE"

    @property
    def min_offset(self) -> int:
        """The first offset the queue holds; -1 when unknown."""
        return self.detail_int("min_offset")

    @property
    def max_offset(self) -> int:
        """The offset behind the last message of the queue; -1 when unknown."""
        return self.detail_int("max_offset")


class OutOfOrderSequenceError(DledgerError):
    """A batch of an idempotent producer arrived out of order. Usually two processes share a ``producer_id``."""

    code = "OUT_OF_ORDER_SEQUENCE"


class ProducerFencedError(DledgerError):
    """A newer producer with the same ``producer_id`` took over; this one can no longer send. Nothing of this batch was stored."""

    code = "PRODUCER_FENCED"


class ProducerForgottenError(DledgerError):
    """The replica group forgot what this ``producer_id`` stored, because it was silent for 7 days or its user has too many producer ids."""

    code = "PRODUCER_FORGOTTEN"


class StaleLockError(DledgerError):
    """The queue's lock is free or belongs to another consumer by now, so this commit of an orderly consumer does not count."""

    code = "STALE_LOCK"


class StaleReceiptError(DledgerError):
    """The message is no longer the caller's: its invisible time ended and it was delivered again, or the group is done with it."""

    code = "STALE_RECEIPT"


class OffsetsResetError(DledgerError):
    """The group's offsets in this queue were reset since the consumer read them; the commit does not count. Read them again."""

    code = "OFFSETS_RESET"


class AuthenticationFailedError(DledgerError):
    """One side did not authenticate: wrong user, password, certificate or cluster secret, or none where one is needed."""

    code = "UNAUTHENTICATED"


class PermissionDeniedError(DledgerError):
    """The caller is known and may not do this; ``user``, ``action`` and ``resource`` in ``details`` say what was refused."""

    code = "PERMISSION_DENIED"


class DataDirectoryError(DledgerError):
    """The data directory is in use, or belongs to another node, replica group or format version."""

    code = "DATA_DIRECTORY"


class AddressInUseError(DledgerError):
    """The node cannot listen on its configured address because another process does."""

    code = "ADDRESS_IN_USE"


class ConfigError(DledgerError):
    """A cluster file or setting is wrong; the message is ``file:line: field: what is expected``."""

    code = "CONFIG"


class StorageDamagedError(DledgerError):
    """Bytes on disk are damaged; ``file`` and ``pos`` in ``details`` say where. Other replicas serve the data."""

    code = "STORAGE_DAMAGED"


class StorageFailedError(DledgerError):
    """A write or a sync failed for good. What was not reported durable may be lost, and this node stops writing."""

    code = "STORAGE_FAILED"


class StorageFullError(DledgerError):
    """The disk is full. The log is unchanged; queued writes stay queued and may be repeated."""

    code = "STORAGE_FULL"
    retriable = True


class CorruptEntryError(DledgerError):
    """Bytes that should be a log entry are not one, or are not the expected one."""

    code = "CORRUPT_ENTRY"


def _collect(base: type[DledgerError]) -> dict[str, type[DledgerError]]:
    found = {base.code: base}
    for child in base.__subclasses__():
        found = _collect(child) | found  # one without a code of its own is known to its process only
    return found


def error_from_code(code: str, message: str, details: dict[str, str]) -> DledgerError:
    """Rebuild the error a peer sent.  An unknown code (a newer peer) becomes a plain DledgerError that keeps the text."""
    cls = _collect(DledgerError).get(code, DledgerError)
    return cls(message, **details)
