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
     |- OutOfOrderSequenceError / ProducerFencedError
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
    """Base of all operating errors.  ``details`` travels over the wire as string pairs."""

    code: ClassVar[str] = "INTERNAL"
    retriable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False
    outcome_unknown: ClassVar[bool] = False

    def __init__(self, message: str = "", **details: object) -> None:
        super().__init__(message or self.code)
        self.message = message or self.code
        self.details: dict[str, str] = {key: str(value) for key, value in details.items()}

    def detail_int(self, name: str, default: int = -1) -> int:
        """A numeric detail, or ``default`` when the sender did not give it, or something else."""
        try:
            return int(self.details.get(name, default))
        except ValueError:
            return default


class NotLeaderError(DledgerError):
    """The request needs the master of the group; ``leader_address`` is empty while there is none."""

    code = "NOT_LEADER"
    retriable = True
    refresh_route = True

    @property
    def leader_address(self) -> str:
        return self.details.get("leader_address", "")


class BusyError(DledgerError):
    code = "BUSY"
    retriable = True


class ReadOnlyError(DledgerError):
    code = "READ_ONLY"
    retriable = True
    refresh_route = True


class NotReadyError(DledgerError):
    code = "NOT_READY"
    retriable = True
    refresh_route = True


class NotYetError(DledgerError):
    code = "NOT_YET"
    retriable = True


class OutcomeUnknownError(DledgerError):
    code = "OUTCOME_UNKNOWN"
    retriable = True
    refresh_route = True
    outcome_unknown = True


class UnreachableError(DledgerError):
    code = "UNREACHABLE"
    retriable = True
    refresh_route = True
    outcome_unknown = True


class DeadlineExceededError(DledgerError):
    code = "DEADLINE_EXCEEDED"
    outcome_unknown = True

    @property
    def send_status(self) -> SendStatus | None:
        """What kept a message from being acknowledged, as far as its producer was told; docs/reference/semantics.md says what it means."""
        status = self.details.get("send_status")
        return SendStatus(status) if status in SendStatus.__members__ else None


class NotSentError(DledgerError):
    """The client's deadline passed before the message left the process; nothing was stored.  ``cause`` tells what it waited for."""

    code = "NOT_SENT"
    retriable = True


class TopicNotFoundError(DledgerError):
    code = "TOPIC_NOT_FOUND"


class TopicExistsError(DledgerError):
    code = "TOPIC_EXISTS"


class TopicPermissionError(DledgerError):
    code = "TOPIC_PERMISSION"


class UnsafeShrinkError(DledgerError):
    """A topic would lose queues that producers still write to, or that hold messages not read yet; the text says which and what to do."""

    code = "UNSAFE_SHRINK"


class NoLiveMajorityError(DledgerError):
    """A change of members would leave voters of whom no majority answers; the text says what to do."""

    code = "NO_LIVE_MAJORITY"


class InvalidNameError(DledgerError):
    code = "INVALID_NAME"


class InvalidArgumentError(DledgerError):
    code = "INVALID_ARGUMENT"


class MessageTooLargeError(DledgerError):
    code = "MESSAGE_TOO_LARGE"


class CorruptBatchError(DledgerError):
    """A batch record's arrays, sizes, checksums or fields disagree; ``first_bad`` is its first bad message (-1: the header)."""

    code = "CORRUPT_BATCH"


class CorruptFrameError(DledgerError):
    """Bytes that should be a message frame are not one."""

    code = "CORRUPT_FRAME"


class OffsetOutOfRangeError(DledgerError):
    code = "OFFSET_OUT_OF_RANGE"

    @property
    def min_offset(self) -> int:
        return self.detail_int("min_offset")

    @property
    def max_offset(self) -> int:
        return self.detail_int("max_offset")


class OutOfOrderSequenceError(DledgerError):
    code = "OUT_OF_ORDER_SEQUENCE"


class ProducerFencedError(DledgerError):
    code = "PRODUCER_FENCED"


class StaleLockError(DledgerError):
    """An orderly consumer's epoch is not the current one of the queue: the lock is free or somebody else's now."""

    code = "STALE_LOCK"


class OffsetsResetError(DledgerError):
    """The group was taken elsewhere in this queue since the consumer looked; it has to look again before it commits."""

    code = "OFFSETS_RESET"


class DataDirectoryError(DledgerError):
    """The data folder is in use, or belongs to another node, group or format version."""

    code = "DATA_DIRECTORY"


class AddressInUseError(DledgerError):
    code = "ADDRESS_IN_USE"


class ConfigError(DledgerError):
    """A cluster file or setting is wrong; the message is ``file:line: field: what was expected``."""

    code = "CONFIG"


class StorageDamagedError(DledgerError):
    """Bytes on disk are damaged; ``file`` and ``pos`` say where."""

    code = "STORAGE_DAMAGED"


class StorageFailedError(DledgerError):
    """A write or a sync failed for good: what was not reported durable may be lost and this node must stop writing."""

    code = "STORAGE_FAILED"


class StorageFullError(DledgerError):
    """The disk is full.  The log is as it was before; what is queued stays queued and may be written again."""

    code = "STORAGE_FULL"
    retriable = True


class CorruptEntryError(DledgerError):
    """Bytes that should be a log entry are not, or are not the one that belongs there."""

    code = "CORRUPT_ENTRY"


def _collect(base: type[DledgerError]) -> dict[str, type[DledgerError]]:
    found = {base.code: base}
    for child in base.__subclasses__():
        found.update(_collect(child))
    return found


def error_from_code(code: str, message: str, details: dict[str, str]) -> DledgerError:
    """Rebuild the error a peer sent.  An unknown code (a newer peer) becomes a plain DledgerError that keeps the text."""
    cls = _collect(DledgerError).get(code, DledgerError)
    return cls(message, **details)
