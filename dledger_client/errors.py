"""Every error that a client raises: what it means, whether to retry, and whether the message may be stored.

All errors derive from ``DledgerError``. Three class attributes say what to do next:

* ``retriable``: the same call may succeed later. Clients retry by themselves until their deadline (``send_timeout_ms``, ``timeout_ms``),
  so an application sees such an error only when the deadline passed.
* ``outcome_unknown``: the request may or may not have been executed. For a message: it may or may not be stored. Sending it again with
  the same producer never stores it twice; a new process needs ``producer_id`` for that.
* ``refresh_route``: the client looks up the leader before it retries. Applications need not care.

An error without ``outcome_unknown`` means that nothing was stored or changed. ``code`` is the stable name of an error in logs and on the
wire, ``message`` the text, ``details`` its values as strings.

::

    DledgerError
     |- NotLeaderError            retriable                   this node is not the leader; ``leader_address`` if known
     |- BusyError                 retriable                   too many requests in flight, or out of buffer memory
     |- ReadOnlyError             retriable                   the disk is full or storage has stopped
     |- NotReadyError             retriable                   a new leader has not committed an entry of its term yet
     |- NotYetError               retriable                   this replica has not applied that far
     |- NotSentError              retriable                   the deadline passed before the message was sent
     |- StorageFullError          retriable                   no space left on the device
     |- OutcomeUnknownError       retriable, outcome_unknown  leadership changed while the write was in flight
     |- UnreachableError          retriable, outcome_unknown  the connection broke, or a node did not respond
     |- DeadlineExceededError     outcome_unknown             the deadline passed while the request was in flight
     |- ClientClosedError                                     the client is closed, or was closed meanwhile
     |- TopicNotFoundError, TopicExistsError, TopicPermissionError
     |- InvalidNameError, InvalidArgumentError, MessageTooLargeError
     |- UnsafeShrinkError                                     queues to remove are written to or hold unread messages
     |- ReplicaGroupDrainingError                             the replica group takes no new messages and topics
     |- NoLiveMajorityError                                   a membership change would leave a group that cannot commit
     |- OffsetOutOfRangeError                                 carries ``min_offset`` and ``max_offset``
     |- OffsetsResetError                                     the group's offsets were reset since the consumer read them
     |- StaleLockError                                        another consumer holds the queue's lock
     |- StaleReceiptError                                     a leased message was delivered again since, or is done
     |- OutOfOrderSequenceError, ProducerFencedError          another producer uses the same ``producer_id``
     |- ProducerForgottenError                                what a ``producer_id`` has stored is not known any more
     |- CorruptBatchError, CorruptFrameError, CorruptEntryError
     |- StorageDamagedError, StorageFailedError               a replica's disk; other replicas serve the data
     |- AuthenticationFailedError                             user, password or certificate was not accepted
     |- PermissionDeniedError                                 carries ``user``, ``action``, ``resource``, ``name``
     |- DataDirectoryError, AddressInUseError, ConfigError    raised when a node starts

Examples:
    >>> from dledger_client.errors import DledgerError, NotSentError
    >>> def is_safe_to_send_elsewhere(error: DledgerError) -> bool:
    ...     return not error.outcome_unknown
    >>> is_safe_to_send_elsewhere(NotSentError())
    True
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from dledger_wire.errors import *  # noqa: F403
else:
    from dledger_wire import errors as _errors

    __all__ = [name for name, kind in vars(_errors).items() if isinstance(kind, type) and issubclass(kind, _errors.DledgerError)]
    globals().update({name: getattr(_errors, name) for name in __all__})
