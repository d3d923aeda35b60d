"""Raft messages as they travel: every kind comes back equal, and anything else is refused by type."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.clock.group_time import Clocks
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ReadIndexRequest,
    ReadIndexResponse,
    SnapshotOffer,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.core.types import MAX_TERM, EntryId, EntryKind, Membership, NodeId
from dledger.log.entry import RawEntry, encode_entry
from dledger.membership.configuration import Configuration
from dledger.transport import codec
from dledger_wire.errors import CorruptEntryError, InvalidArgumentError

BIG = MAX_TERM

MESSAGES: list[Message] = [
    VoteRequest(term=3, last=EntryId(9, 2)),
    VoteRequest(term=BIG, last=EntryId(BIG, BIG), pre_vote=True, transfer=True),
    VoteResponse(term=3, granted=True),
    VoteResponse(term=0, granted=False, pre_vote=True, suspect=True),
    AppendRequest(term=3, prev=EntryId(0, 0), entries=(), commit=0),
    AppendResponse(term=3, success=True, match=EntryId(7, 3)),
    AppendResponse(term=3, success=False, match=EntryId(0, 0), rejected=8),
    Heartbeat(term=3, commit=7, round=1, kept_from=2, kept_upto=6),
    Heartbeat(term=3, commit=7, round=1, newest_commit=9, commit_term=2),
    HeartbeatResponse(term=3, round=BIG),
    HeartbeatResponse(
        term=3,
        round=1,
        late_ms=20,
        wary_ms=300,
        low_on_space=True,
        seekers=(NodeId("n2"), NodeId("n4")),
        copied_bytes=0,
        yields="clock",
        keeps_from=7,
    ),
    TimeoutNow(term=3),
    ReadIndexRequest(term=3, token=1, suspect=True),
    ReadIndexResponse(term=3, token=1, index=9, ok=True, last=11),
    SnapshotOffer(term=3, first_available=100, last=EntryId(200, 2)),
]


def entries(*bodies: bytes, first: int = 1, term: int = 3, kind: EntryKind = EntryKind.NORMAL) -> list[RawEntry]:
    made: list[RawEntry] = []
    chain = pos = 0
    for index, body in enumerate(bodies, first):
        entry = encode_entry(index, term, kind, pos, chain, (body[: len(body) // 2], body[len(body) // 2 :]))
        chain, pos = entry.chain_crc, entry.end_pos
        made.append(entry)
    return made


def request(raw: list[RawEntry], *, term: int = 3, prev: EntryId | None = None) -> AppendRequest:
    metas = tuple(codec.entry_meta(entry) for entry in raw)
    return AppendRequest(term=term, prev=prev or EntryId(raw[0].index - 1, 1 if raw[0].index > 1 else 0), entries=metas, commit=2)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_comes_back_equal(message: Message) -> None:
    assert codec.decode(codec.encode(message)) == (message, [], None)


def test_clocks_travel_with_a_heartbeat() -> None:
    beat, clocks = Heartbeat(term=1, commit=1, round=2), Clocks(1_750_000_000_000, 1_750_000_000_001, 1_750_000_000_002)
    assert codec.decode(codec.encode(beat, clocks=clocks)) == (beat, [], clocks)


def test_entries_travel_as_they_stand_in_the_log() -> None:
    raw = entries(b"first", b"", b"third" * 1000, first=8)
    message, received, _clocks = codec.decode(codec.encode(request(raw), raw))
    assert message == request(raw)
    assert [b"".join(entry.buffers) for entry in received] == [b"".join(entry.buffers) for entry in raw]
    assert [(entry.index, entry.term, entry.pos) for entry in received] == [(entry.index, entry.term, entry.pos) for entry in raw]


def test_a_configuration_is_read_from_the_entry() -> None:
    membership = Membership((NodeId("n0"), NodeId("n1")), (NodeId("n2"),))
    body = Configuration(membership, {NodeId(f"n{n}"): f"h:{n}" for n in range(3)}).encode()
    raw = entries(body, kind=EntryKind.CONFIG)
    message, _entries, _clocks = codec.decode(codec.encode(request(raw), raw))
    assert isinstance(message, AppendRequest)
    assert message.entries[0].config == membership


def test_a_flipped_bit_in_a_body_is_refused() -> None:
    raw = entries(b"some bytes")
    data = bytearray(codec.encode(request(raw), raw))
    data[-3] ^= 1
    with pytest.raises(InvalidArgumentError):
        codec.decode(bytes(data))


def test_entries_that_do_not_follow_prev_are_refused() -> None:
    raw = entries(b"a", b"b")
    wrong_prev = request(raw, prev=EntryId(5, 1))
    with pytest.raises(InvalidArgumentError):
        codec.decode(codec.encode(wrong_prev, raw))
    newer_than_leader = request(raw, term=2)
    with pytest.raises(InvalidArgumentError):
        codec.decode(codec.encode(newer_than_leader, raw))
    one_missing = codec.encode(request(raw), raw[:1])
    with pytest.raises(InvalidArgumentError):
        codec.decode(one_missing)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_bytes_are_a_message_or_refused(data: st.DataObject) -> None:
    raw = entries(b"body one", b"body two")
    good = bytearray(codec.encode(request(raw), raw))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    with contextlib.suppress(InvalidArgumentError):
        codec.decode(bytes(good[:cut]))


@given(st.binary(max_size=200))
def test_any_body_is_a_configuration_or_refused(body: bytes) -> None:
    with contextlib.suppress(CorruptEntryError):
        Configuration.decode(body)
