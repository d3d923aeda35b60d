"""Every kind of command that this version writes and reads, by its name in the log."""

from __future__ import annotations

from collections.abc import Mapping

from dledger_wire.errors import InvalidArgumentError
from store.commands.command import Command, JsonObject
from store.commands.consumer_groups import (
    CommitOffsets,
    DeleteOffsets,
    DeleteSubscriptionGroup,
    PutSubscriptionGroup,
    ResetOffsets,
)
from store.commands.feature_level import RaiseFeatureLevel
from store.commands.pop import AcknowledgeMessages, ChangeInvisible, LeaseMessages, MarkDeadLetters
from store.commands.producers import InitProducer
from store.commands.queue_locks import LockQueues, UnlockQueues
from store.commands.quotas import CopyQuotas, DeleteQuota, PutQuota
from store.commands.redelivery import AdvanceDelayLevel, AdvanceTimers, MarkRedriven, MarkSentBack, RecallTimed
from store.commands.replacement import SetReplacement
from store.commands.replica_group import SetReplicaGroup
from store.commands.security import ChangeRules, CopySecurity, DeleteUser, PutUser, SetUserSecret
from store.commands.topics import CreateTopic, DeleteTopic, DeleteTopicIf, UpdateTopic
from store.commands.transactions import CountTransactionChecks, EndTransactions

COMMANDS: Mapping[str, type[Command[object]]] = {
    command.KIND: command
    for command in (
        CreateTopic,
        UpdateTopic,
        DeleteTopic,
        DeleteTopicIf,
        PutSubscriptionGroup,
        DeleteSubscriptionGroup,
        CommitOffsets,
        ResetOffsets,
        DeleteOffsets,
        LockQueues,
        UnlockQueues,
        AdvanceDelayLevel,
        AdvanceTimers,
        RecallTimed,
        MarkSentBack,
        MarkRedriven,
        EndTransactions,
        CountTransactionChecks,
        InitProducer,
        SetReplicaGroup,
        SetReplacement,
        PutUser,
        DeleteUser,
        SetUserSecret,
        ChangeRules,
        CopySecurity,
        PutQuota,
        DeleteQuota,
        CopyQuotas,
        RaiseFeatureLevel,
        LeaseMessages,
        AcknowledgeMessages,
        ChangeInvisible,
        MarkDeadLetters,
    )
}


def decode_command(kind: str, arguments: JsonObject) -> Command[object]:
    """The command in a log record.  InvalidArgumentError for a kind of a newer version, and for malformed fields."""
    found = COMMANDS.get(kind)
    if found is None:
        raise InvalidArgumentError(f"unknown command {kind!r}")
    return found.decode(arguments)
