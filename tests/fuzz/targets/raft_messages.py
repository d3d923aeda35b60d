"""What comes from a peer: Raft messages, from the wire into the core, introductions, plans of copies and the pieces of one."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Sequence

from dledger.clock.group_time import Clocks
from dledger.core.config import CoreConfig
from dledger.core.effects import Append, SaveHardState
from dledger.core.events import Event, HardStateStored, Received, Stored
from dledger.core.messages import AppendRequest, Heartbeat, Message, SnapshotOffer, VoteRequest, VoteResponse
from dledger.core.raft import Raft
from dledger.core.types import EntryId, EntryKind, EntryMeta, HardState, Membership, NodeId
from dledger.log.entry import RawEntry, encode_entry
from dledger.log.start import LogStart
from dledger.membership import handshake
from dledger.membership.boot_history import BootHistory
from dledger.membership.configuration import Configuration
from dledger.snapshot.plan import PlanFile, PlanSegment, SnapshotPlan
from dledger.snapshot.receiver import SnapshotReceiver, received_log_path
from dledger.transport import codec
from dledger_wire.checksum import crc32c
from dledger_wire.errors import InvalidArgumentError
from tests.fuzz.target import Target
from tests.unit.core.harness import Disk, log_of
from tests.unit.log.crash_disk import CrashDisk

_loop = asyncio.new_event_loop()
_OWN, _PEER, _OTHER = NodeId("n0"), NodeId("n1"), NodeId("n2")
_MEMBERS = Membership((_OWN, _PEER, _OTHER))
_CONFIGURATION = Configuration(_MEMBERS, {_OWN: "10.0.0.1:9", _PEER: "10.0.0.2:9", _OTHER: "10.0.0.3:9"})


def message(data: bytes) -> None:
    """A message from the wire, its checksum made right: what is taken says the same when it is sent on."""
    found, entries, clocks = codec.decode(_sealed(data))
    again, again_entries, again_clocks = codec.decode(codec.encode(found, entries, clocks))
    assert again == found
    assert clocks == again_clocks
    assert [entry.body_bytes() for entry in again_entries] == [entry.body_bytes() for entry in entries]


def _sealed(data: bytes) -> bytes:
    """With header size and checksum as ``envelope.encode_checked`` sets them, where there is room for both."""
    size = int.from_bytes(data[1:5], "little")
    if data[:1] != b"\x0d" or not 10 <= size <= len(data):
        return data
    body = data[: size - 5]
    return body + b"\x75" + struct.pack("<I", crc32c(body)) + data[size:]


class _Replica:
    """A core whose disk does at once what it asks for."""

    def __init__(self) -> None:
        self.disk = Disk(hard_state=HardState(2), entries=log_of([1, 1, 2]), commit=1)
        self.core = Raft(CoreConfig(), _OWN, _MEMBERS, self.disk.saved(), random.Random(1), self)
        self.now_ms = 10_000

    def metas(self, first_index: int, last_index: int) -> Sequence[EntryMeta]:
        return self.disk.entries[first_index - 1 : last_index]

    def step(self, event: Event) -> None:
        self.now_ms += 50
        for effect in self.core.step(event, self.now_ms):
            self.disk.write(effect)
            if isinstance(effect, SaveHardState):
                self.step(HardStateStored(effect.term, effect.vote))
            elif isinstance(effect, Append):
                self.step(Stored(self.disk.last))


def core(data: bytes) -> None:
    """Messages in a row, each behind two bytes of length and one of its sender: a core takes or refuses each, and its promises hold."""
    replica, at = _Replica(), 0
    committed = replica.disk.entries[:1]
    while at + 3 <= len(data):
        size, who = int.from_bytes(data[at : at + 2], "big"), (_PEER, _OTHER, NodeId("n9"))[data[at + 2] % 3]
        raw, at = _sealed(data[at + 3 : at + 3 + size]), at + 3 + size
        try:
            found, _, _ = codec.decode(raw)
        except InvalidArgumentError:
            continue
        term = replica.disk.hard_state.term
        replica.step(Received(who, found, "store"))
        assert replica.disk.hard_state.term >= term
        assert replica.disk.entries[:1] == committed


def introduction(data: bytes) -> None:
    node_id, said = handshake.decode(data)
    assert handshake.decode(said.encode(node_id)) == (node_id, said)


def plan(data: bytes) -> None:
    found = SnapshotPlan.decode(data)
    again = SnapshotPlan.decode(found.encode())
    assert (again.segments, again.files, again.last, again.start) == (found.segments, found.files, found.last, found.start)


def copied_log(data: bytes) -> None:
    """The pieces of a log that one copies, each behind two bytes of length; nothing counts as received that is not what it must be."""
    _loop.run_until_complete(_receive(data))


async def _receive(data: bytes) -> None:
    disk = CrashDisk()
    receiver = SnapshotReceiver(disk, _PLAN)
    await receiver.resume()
    at = 0
    try:
        while at + 2 <= len(data) and not receiver.done:
            size = int.from_bytes(data[at : at + 2], "big")
            piece, at = data[at + 2 : at + 2 + size], at + 2 + size
            await receiver.take(receiver.pos, piece)
    finally:
        await receiver.close()
    if receiver.done:
        receiver.check_end()
        assert bytes(disk.files[received_log_path(0)].current) == b"".join(b"".join(entry.buffers) for entry in _LOG)


def configuration(data: bytes) -> None:
    found = Configuration.decode(data)
    again = Configuration.decode(found.encode())
    assert again.membership == found.membership
    assert {node: found.addresses[node] for node in found.members} == again.addresses


def _entries() -> list[RawEntry]:
    entries, pos, chain = [], 0, 0
    for index, (kind, body) in enumerate(
        [(EntryKind.CONFIG, _CONFIGURATION.encode()), (EntryKind.NORMAL, b"a body"), (EntryKind.NO_OP, b"")], 1
    ):
        entry = encode_entry(index, 1, kind, pos, chain, (body,))
        entries.append(entry)
        pos, chain = entry.end_pos, entry.chain_crc
    return entries


_LOG = _entries()
_PLAN = SnapshotPlan(
    "copy-1",
    "shop",
    "g0",
    LogStart(),
    EntryId(3, 1),
    (PlanSegment(0, 1, _LOG[-1].end_pos),),
    (PlanFile("config/topics.json", 10, 7),),
    _CONFIGURATION,
    1,
)


def _good_copy() -> bytes:
    log = b"".join(b"".join(entry.buffers) for entry in _LOG)
    return b"".join(len(log[at : at + 100]).to_bytes(2, "big") + log[at : at + 100] for at in range(0, len(log), 100))


def _messages() -> list[bytes]:
    said: list[Message] = [
        Heartbeat(term=3, commit=2, round=1),
        VoteRequest(term=3, last=EntryId(3, 2), pre_vote=False, transfer=False),
        VoteResponse(term=3, granted=True, pre_vote=False, suspect=False),
        SnapshotOffer(term=3, first_available=5, last=EntryId(9, 3)),
    ]
    found = [codec.encode(each, clocks=Clocks(1, 2, 3)) for each in said]
    request = AppendRequest(term=3, prev=EntryId(0, 0), entries=tuple(entry.meta() for entry in _LOG), commit=1)
    return [*found, codec.encode(request, _LOG)]


_GOOD = _messages()
_CORE = b"".join(len(each).to_bytes(2, "big") + bytes([number % 2]) + each for number, each in enumerate(_GOOD))
_WORDS = [b"\x0d", b"\x75", b"\x7a", b"\xff" * 9 + b"\x01", b"\x08\x01", bytes(4)]
_JSON = [b'"voters":', b"[]", b"{}", b"null", b"[" * 3000, b'"\\ud800"', b"1e999", b'"learners":', b'"addresses":', b'"stores":', b"1"]

TARGETS = [
    Target("raft-message", message, _GOOD, _WORDS),
    Target("raft-core", core, [_CORE], _WORDS),
    Target("introduction", introduction, [handshake.Handshake("s", 1, 2, 3, BootHistory(2, (4, 5))).encode(_OWN)], _WORDS),
    Target("copy-plan", plan, [_PLAN.encode()], [*_WORDS, b"../", b"/", b"\\"]),
    Target("copied-log", copied_log, [_good_copy()], _WORDS),
    Target("configuration", configuration, [_CONFIGURATION.encode()], _JSON),
]
