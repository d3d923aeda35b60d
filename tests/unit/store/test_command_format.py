"""Replicated commands and snapshot sections as bytes: an old log and an old snapshot are read for ever, so neither may change.

``golden/commands.json`` holds one record of every shape that is proposed; ``golden/sections.json`` what all of them together make of the
state.  A change of this test's files is a change of a format on disk.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.runtime.env import Buffer
from dledger_wire.batches.batch import CommandView, Sequence64, encode_command, iter_records
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.security.scram import Verifier
from store.commands.command import Command
from store.commands.consumer_groups import (
    CommitOffsets,
    DeleteOffsets,
    DeleteSubscriptionGroup,
    OffsetRow,
    PutSubscriptionGroup,
    ResetOffsets,
)
from store.commands.feature_level import RaiseFeatureLevel
from store.commands.pop import AcknowledgeMessages, ChangeInvisible, LeaseMessages, MarkDeadLetters
from store.commands.producers import InitProducer
from store.commands.queue_locks import LockQueues, UnlockQueues
from store.commands.quotas import CopyQuotas, DeleteQuota, Limit, PutQuota, Quota, Subject
from store.commands.redelivery import AdvanceDelayLevel, AdvanceTimers, MarkRedriven, MarkSentBack, RecallTimed
from store.commands.registry import COMMANDS, decode_command
from store.commands.replacement import SetReplacement
from store.commands.replica_group import SetReplicaGroup
from store.commands.security import Action, ChangeRules, CopySecurity, DeleteUser, Effect, PutUser, Resource, Rule, SetUserSecret, User
from store.commands.topics import DRAINED, CreateTopic, DeleteTopic, DeleteTopicIf, UpdateTopic
from store.commands.transactions import CountTransactionChecks, EndTransactions
from store.state.json_pieces import encode, pieces
from store.state.sequences import SequenceTable
from tests.levels import NEXT_BUILD
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import TINY, StoreRig, run

GOLDEN = Path(__file__).parent / "golden"
FIRST_MS = 1_700_000_000_000

# One after the other, so that every command finds what it changes.
CASES: list[tuple[str, Command[object]]] = [
    ("create_topic by an operator", CreateTopic(name="orders", read_queues=8, write_queues=8, perm=0)),
    ("create_topic by a producer", CreateTopic(name="auto", read_queues=4, write_queues=4, if_not_exists=True)),
    ("create_topic by a group", CreateTopic(name="%RETRY%audit", read_queues=1, write_queues=1, perm=6, if_not_exists=True)),
    ("create_topic to be deleted", CreateTopic(name="gone", read_queues=1, write_queues=1, perm=4, if_not_exists=True)),
    ("update_topic", UpdateTopic(name="orders", write_queues=6, perm=6)),
    ("update_topic with force", UpdateTopic(name="auto", read_queues=2, write_queues=2, force=True)),
    ("delete_topic", DeleteTopic(name="gone")),
    ("put_subscription_group", PutSubscriptionGroup(groupName="audit", consumeEnable=False, retryQueueNums=3, retryMaxTimes=0)),
    ("put_subscription_group of one setting", PutSubscriptionGroup(groupName="left", retryMaxTimes=5)),
    ("put_subscription_group to be deleted", PutSubscriptionGroup(groupName="other", consumeEnable=True)),
    ("delete_subscription_group", DeleteSubscriptionGroup(groupName="other")),
    ("lock_queues", LockQueues(group="ordered", owner="session-1", client="büro@1", queues=(("orders", 0), ("orders", 1)))),
    ("unlock_queues", UnlockQueues(group="ordered", owner="session-1", queues=(("orders", 1, 2016),))),
    ("unlock_queues of a session", UnlockQueues(group="ordered", owner="session-2")),
    ("commit_offsets", CommitOffsets(group="audit", offsets=(OffsetRow("orders", 5, 17), OffsetRow("orders", 7, 0)))),
    (
        "commit_offsets of a session",
        CommitOffsets(group="audit", offsets=(OffsetRow("orders", 0, 20, 48, 2016), OffsetRow("orders", 1, 1, None, 9))),
    ),
    ("commit_offsets to begin", CommitOffsets(group="new", offsets=(OffsetRow("orders", 0, 5), OffsetRow("auto", 1, 9)), initial=True)),
    ("reset_offsets", ResetOffsets(group="audit", offsets=(OffsetRow("orders", 0, 3),))),
    ("commit_offsets to be deleted", CommitOffsets(group="left", offsets=(OffsetRow("auto", 0, 1),))),
    ("delete_offsets", DeleteOffsets(group="left")),
    ("advance_delay", AdvanceDelayLevel(level=3, offset=12)),
    ("advance_timers", AdvanceTimers(low=1, seen=9, done_ms=1_700_000_000_123, done_offset=4, held=(2, 3))),
    ("end_transactions", EndTransactions(committed=((0, 2), (5, 6)), rolled_back=((2, 3),), parked=((8, 9),))),
    ("end_transactions gone with the head", EndTransactions(ended=((3, 5),))),
    ("check_transactions", CountTransactionChecks(runs=((6, 8),))),
    ("sent_back", MarkSentBack(group="new", topic="orders", queue_id=0, runs=((6, 8), (9, 10)))),
    ("redriven", MarkRedriven(group="audit", offset=7)),
    ("init_producer", InitProducer(name="producers")),
    ("init_producer with a name", InitProducer(stable_id="writer-1")),
    (
        "create_topic over replica groups",
        CreateTopic(name="wide", read_queues=3, write_queues=3, perm=4, if_not_exists=True, groups=("g0", "g1")),
    ),
    ("update_topic of its replica groups", UpdateTopic(name="wide", groups=("g0", "g1", "g2"))),
    ("create_topic to be deleted if drained", CreateTopic(name="left", read_queues=1, write_queues=1, perm=4)),
    ("delete_topic_if", DeleteTopicIf(name="left", only_if=DRAINED)),
    ("replica_group that wants more replicas", SetReplicaGroup(voters=5, learners=0, replace_after_ms=600_000)),
    ("replica_group that is drained", SetReplicaGroup(state="draining")),
    ("replica_group that is removed", SetReplicaGroup(state="removed", at_index=35)),
    ("replacement of a voter", SetReplacement(spare="sp0", address="10.0.9.1:1", absent="n2", voter=True)),
    ("replacement of a learner", SetReplacement(spare="sp0", address="10.0.9.1:1")),
    ("replacement that ended", SetReplacement()),
    ("put_user", PutUser(user=User("alice", Verifier(bytes(16), b"s" * 32, b"k" * 32)))),
    ("put_user without a password", PutUser(user=User("bob@example.org"))),
    ("put_user that is there", PutUser(user=User("alice", Verifier(b"n" * 16, b"t" * 32, b"l" * 32, 8192)), create=False)),
    ("put_user to be deleted", PutUser(user=User("carol"))),
    ("delete_user", DeleteUser(name="carol")),
    (
        "change_rules",
        ChangeRules(
            added=(
                Rule("alice", Effect.ALLOW, Resource.TOPIC, "orders*", Action.WRITE),
                Rule("*", Effect.DENY, Resource.GROUP, "audit", Action.READ),
            )
        ),
    ),
    ("change_rules back", ChangeRules(removed=(Rule("*", Effect.DENY, Resource.GROUP, "audit", Action.READ),))),
    (
        "copy_security",
        CopySecurity(
            version=9,
            users=(User("alice", Verifier(bytes(16), b"s" * 32, b"k" * 32)), User("bob")),
            rules=(Rule("alice", Effect.ALLOW, Resource.CLUSTER, "*", Action.ADMINISTER),),
        ),
    ),
    ("feature_level", RaiseFeatureLevel(level=1, release="0.2.0")),
    ("put_quota", PutQuota(quota=Quota(Subject.TOPIC, "orders", {Limit.PRODUCE_MESSAGES: 500, Limit.PRODUCE_BYTES: 10 << 20}))),
    ("put_quota for each", PutQuota(quota=Quota(Subject.USER, "*", {Limit.PRODUCE_BYTES: 1 << 20}))),
    ("put_quota without limits", PutQuota(quota=Quota(Subject.USER, "alice", {}))),
    ("put_quota to be deleted", PutQuota(quota=Quota(Subject.PRODUCER_GROUP, "spark", {Limit.PRODUCE_MESSAGES: 1}))),
    ("delete_quota", DeleteQuota(subject="producer-group", name="spark")),
    ("replica_group with limits", SetReplicaGroup(limits=(("diskFreeLimit", "2GB"), ("memoryHighWatermark", "")))),
    ("copy_quotas", CopyQuotas(quotas=(Quota(Subject.TOPIC, "orders", {Limit.PRODUCE_BYTES: 10 << 20}), Quota(Subject.USER, "alice", {})))),
    ("recall_timed", RecallTimed(offset=9, due_ms=1_700_000_000_123)),
    ("set_user_secret", SetUserSecret(name="alice", secret="5Zt0")),
    ("set_user_secret to be revoked", SetUserSecret(name="bob", secret="x")),
    ("set_user_secret back", SetUserSecret(name="bob")),
    (
        "pop_lease",
        LeaseMessages(
            group="new", topic="orders", queue_id=3, invisible_ms=30_000, begin=0, end=9, new=((0, 3), (4, 7)), damaged=((7, 8),)
        ),
    ),
    (
        "pop_lease in order",
        LeaseMessages(
            group="new",
            topic="orders",
            queue_id=4,
            invisible_ms=1,
            begin=0,
            end=3,
            new=((0, 1),),
            waiting=((1, 3),),
            message_groups=(7, 7, 0),
        ),
    ),
    ("pop_acknowledge", AcknowledgeMessages(group="new", topic="orders", queue_id=3, receipts=((0, 1, 10_464), (4, 5, 10_464)))),
    ("pop_change_invisible", ChangeInvisible(group="new", topic="orders", queue_id=3, receipts=((1, 2, 10_464),), invisible_ms=60_000)),
    (
        "pop_change_invisible to give back",
        ChangeInvisible(group="new", topic="orders", queue_id=3, receipts=((2, 3, 10_464),), invisible_ms=0, uncounted=True),
    ),
    ("pop_dead", MarkDeadLetters(group="new", topic="orders", queue_id=3, receipts=((5, 6, 10_464),))),
    (
        "pop_lease again",
        LeaseMessages(group="new", topic="orders", queue_id=4, invisible_ms=5, begin=3, end=3, again=((0, 1),), skipped=((1, 2),), low=1),
    ),
    ("put_subscription_group in order", PutSubscriptionGroup(groupName="in-order", consumeMessageOrderly=True)),
    ("create_topic with priorities", CreateTopic(name="urgent", read_queues=3, write_queues=3, priorities=True)),
]


class Raw:
    """A payload of bytes as they are."""

    def __init__(self, record: bytes) -> None:
        self.size_bytes = len(record)
        self._record = record

    def seal(self, _pos: int, _index: int, _term: int) -> Sequence[Buffer]:
        return (self._record,)


def record_of(number: int) -> bytes:
    command = CASES[number][1]
    return encode_command(command.KIND, {**command.encode(), "at_ms": FIRST_MS + number})


def golden_records() -> dict[str, dict[str, str]]:
    return dict(json.loads((GOLDEN / "commands.json").read_text()))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[name for name, _ in CASES])
def test_a_command_has_the_bytes_it_always_had(number: int) -> None:
    name, command = CASES[number]
    golden = golden_records()[name]
    assert record_of(number).hex() == golden["record"]
    ((view,),) = [list(iter_records(bytes.fromhex(golden["record"])))]
    assert isinstance(view, CommandView)
    assert json.loads(golden["body"]) == {"kind": view.kind, **view.arguments}
    assert decode_command(view.kind, view.arguments) == command


def test_every_golden_record_has_its_case() -> None:
    assert list(golden_records()) == [name for name, _ in CASES]


def test_every_kind_has_a_golden_record_and_a_handler() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        assert {command.KIND for _, command in CASES} == set(COMMANDS) == rig.store._state.machine.handlers.kinds()
        await rig.close()

    run(scenario)


def test_a_command_of_a_newer_version_or_with_malformed_fields_is_refused() -> None:
    for kind, arguments in (("grow_wings", {}), ("advance_delay", {"level": "three"}), ("lock_queues", {"queues": [1]})):
        with pytest.raises(InvalidArgumentError):
            decode_command(kind, arguments)
    assert decode_command("redriven", {"group": "g", "offset": 1, "added later": 2}) == MarkRedriven(group="g", offset=1)


async def sections_of(records: Sequence[bytes]) -> dict[str, str]:
    """What a store makes of these records: each section's file."""
    rig = await StoreRig.open(CrashDisk(), replace(TINY, levels=NEXT_BUILD))
    rig.promise()
    for record in records:
        rig.append(Raw(record))
        await rig.commit()
    snapshot = rig.store._capture()
    sections = {name: b"".join(pieces(data)).decode() for name, data in snapshot.sections.items()}
    sections["applied.json, producers"] = encode(rig.store.sequences.dump()).decode()
    await rig.close()
    return sections


def test_every_section_of_a_snapshot_has_the_bytes_it_always_had() -> None:
    async def scenario() -> None:
        records = [bytes.fromhex(golden["record"]) for golden in golden_records().values()]
        assert await sections_of(records) == json.loads((GOLDEN / "sections.json").read_text())

    run(scenario)


def sequence_rows() -> str:
    """Producers that stored something: one without a name, one with a name in its second epoch."""
    table = SequenceTable(10, 1 << 60)
    unnamed, _ = table.register(0, 500, FIRST_MS)
    table.store(("orders", 0), Sequence64(unnamed, 0, 0), 3, 10, FIRST_MS + 1)
    table.store(("orders", 0), Sequence64(unnamed, 0, 3), 2, 13, FIRST_MS + 2)
    table.store(("orders", 0), Sequence64(unnamed, 0, 5), 1, 20, FIRST_MS + 3)
    named, _ = table.register(0, 600, FIRST_MS + 4, "writer-1")
    table.store(("orders", 1), Sequence64(named, 0, 0), 4, 0, FIRST_MS + 5)
    table.register(0, 700, FIRST_MS + 6, "writer-1")
    table.store(("auto", 1), Sequence64(named, 1, 0), 1, 0, FIRST_MS + 7)
    return encode(table.dump()).decode()


def test_producers_with_messages_have_the_rows_they_always_had() -> None:
    assert sequence_rows() == (GOLDEN / "producers.json").read_text().strip()
