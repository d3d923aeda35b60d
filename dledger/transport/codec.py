"""Converts between the core's messages and RaftMessage envelopes on the wire.

Owns the field mapping.  The raw entries of an append request travel exactly as they are in the log: encoding joins their buffers
once, decoding returns slices of the received message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dledger.clock.group_time import Clocks
from dledger.core.causes import Cause, cause_of
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
from dledger.core.types import EntryId, EntryKind, EntryMeta, NodeId
from dledger.log.entry import RawEntry, parse_entries
from dledger.membership.configuration import Configuration
from dledger.runtime.env import Buffer
from dledger_wire._pb import raft_pb2
from dledger_wire.errors import CorruptEntryError, InvalidArgumentError
from dledger_wire.rpc import envelope

_Identity = raft_pb2.EntryIdentity


def _wire_id(entry: EntryId) -> Any:
    return _Identity(index=entry.index, term=entry.term)


def _fields(message: Message) -> dict[str, Any]:
    match message:
        case AppendRequest(prev=prev, commit=commit, entries=entries):
            return {"append_request": raft_pb2.AppendRequest(prev=_wire_id(prev), commit=commit, entry_count=len(entries))}
        case AppendResponse(success=success, match=entry, rejected=rejected):
            return {"append_response": raft_pb2.AppendResponse(success=success, match=_wire_id(entry), rejected=rejected)}
        case Heartbeat(commit=commit, round=number, newest_commit=newest, commit_term=commit_term):
            beat = raft_pb2.Heartbeat(commit=commit, round=number, newest_commit=newest, commit_term=commit_term)
            beat.election_timeout_ms, beat.wary_ms = message.election_timeout_ms, message.wary_ms
            beat.kept_from, beat.kept_upto, beat.sync_ms = message.kept_from, message.kept_upto, message.sync_ms
            return {"heartbeat": beat}
        case HeartbeatResponse(round=number, late_ms=late_ms, wary_ms=wary_ms, low_on_space=low, seekers=seekers, copied_bytes=copied):
            answer = raft_pb2.HeartbeatResponse(round=number, late_ms=late_ms, wary_ms=wary_ms, low_on_space=low, seekers=seekers)
            if copied is not None:
                answer.copied_bytes = copied
            answer.yields, answer.keeps_from, answer.sync_ms = message.yields, message.keeps_from, message.sync_ms
            return {"heartbeat_response": answer}
        case VoteRequest(last=last, pre_vote=pre_vote, transfer=transfer):
            return {"vote_request": raft_pb2.VoteRequest(last=_wire_id(last), pre_vote=pre_vote, transfer=transfer)}
        case VoteResponse(granted=granted, pre_vote=pre_vote, suspect=suspect, sync_ms=sync_ms):
            vote = raft_pb2.VoteResponse(granted=granted, pre_vote=pre_vote, suspect=suspect, sync_ms=sync_ms)
            return {"vote_response": vote}
        case TimeoutNow(cause=cause):
            return {"timeout_now": raft_pb2.TimeoutNow(cause=cause.value)}
        case ReadIndexRequest(token=token, suspect=suspect):
            return {"read_index_request": raft_pb2.ReadIndexRequest(token=token, suspect=suspect)}
        case ReadIndexResponse(token=token, index=index, ok=ok, last=last):
            return {"read_index_response": raft_pb2.ReadIndexResponse(token=token, index=index, ok=ok, last=last)}
        case SnapshotOffer(first_available=first, last=last):
            return {"copy_offer": raft_pb2.CopyOffer(first_available=first, upto=_wire_id(last))}


def encode(message: Message, entries: Sequence[RawEntry] = (), clocks: Clocks | None = None) -> bytes:
    """The message as it travels; ``entries`` are those an append request describes."""
    header = raft_pb2.RaftMessage(term=message.term, **_fields(message))
    if clocks is not None:
        header.clocks.wall_ms, header.clocks.group_ms, header.clocks.agreed_ms = clocks.wall_ms, clocks.group_ms, clocks.agreed_ms
    return envelope.encode_checked(header, [buffer for entry in entries for buffer in entry.buffers])


def decode(data: bytes) -> tuple[Message, list[RawEntry], Clocks | None]:
    """The message, the raw entries behind it, their bodies checked, and the sender's clocks if it sent them.

    InvalidArgumentError for anything that is not a Raft message.
    """
    try:
        header, payload = envelope.decode_checked(raft_pb2.RaftMessage, data)
        kind = header.WhichOneof("body")
        if kind is None:
            raise InvalidArgumentError("a Raft message without a body")
        if kind == "append_request":
            return *_append_request(header, payload), None
        sent = header.clocks if header.HasField("clocks") else None
        clocks = None if sent is None else Clocks(sent.wall_ms, sent.group_ms, sent.agreed_ms)
        return _DECODERS[kind](header.term, getattr(header, kind)), [], clocks
    except CorruptEntryError as error:
        raise InvalidArgumentError(f"not a Raft message: {error}") from None


def entry_meta(entry: RawEntry) -> EntryMeta:
    """An entry as the core sees it; a configuration is read from its body."""
    if entry.kind is EntryKind.CONFIG:
        return EntryMeta(entry.term, entry.size_bytes, entry.kind, Configuration.decode(entry.body_bytes()).membership)
    return EntryMeta(entry.term, entry.size_bytes, entry.kind)


def _append_request(header: Any, payload: Buffer) -> tuple[AppendRequest, list[RawEntry]]:
    body = header.append_request
    entries = parse_entries(payload) if len(payload) else []
    prev = _entry_id(body.prev)
    if len(entries) != body.entry_count:
        raise InvalidArgumentError(f"append request with {len(entries)} entries, {body.entry_count} announced")
    index, term, end_pos = prev.index, prev.term, 0
    for entry in entries:
        index += 1
        if entry.index != index or not term <= entry.term <= header.term or entry.pos < end_pos:
            raise InvalidArgumentError(f"append request of term {header.term}: entry {entry.id} at {entry.pos} does not follow {prev}")
        term, end_pos = entry.term, entry.end_pos
    metas = tuple(entry_meta(entry) for entry in entries)
    return AppendRequest(term=header.term, prev=prev, entries=metas, commit=body.commit), entries


def _entry_id(wire: Any) -> EntryId:
    return EntryId(wire.index, wire.term)


_DECODERS: dict[str, Callable[[int, Any], Message]] = {
    "append_response": lambda term, body: AppendResponse(
        term=term, success=body.success, match=_entry_id(body.match), rejected=body.rejected
    ),
    "heartbeat": lambda term, body: Heartbeat(
        term=term,
        commit=body.commit,
        round=body.round,
        newest_commit=body.newest_commit,
        commit_term=body.commit_term,
        election_timeout_ms=body.election_timeout_ms,
        wary_ms=body.wary_ms,
        kept_from=body.kept_from,
        kept_upto=body.kept_upto,
        sync_ms=body.sync_ms,
    ),
    "heartbeat_response": lambda term, body: HeartbeatResponse(
        term=term,
        round=body.round,
        late_ms=body.late_ms,
        wary_ms=body.wary_ms,
        low_on_space=body.low_on_space,
        seekers=tuple(map(NodeId, body.seekers)),
        copied_bytes=body.copied_bytes if body.HasField("copied_bytes") else None,
        yields=body.yields,
        keeps_from=body.keeps_from,
        sync_ms=body.sync_ms,
    ),
    "vote_request": lambda term, body: VoteRequest(term=term, last=_entry_id(body.last), pre_vote=body.pre_vote, transfer=body.transfer),
    "vote_response": lambda term, body: VoteResponse(
        term=term, granted=body.granted, pre_vote=body.pre_vote, suspect=body.suspect, sync_ms=body.sync_ms
    ),
    "timeout_now": lambda term, body: TimeoutNow(term=term, cause=cause_of(body.cause, Cause.TRANSFER)),
    "read_index_request": lambda term, body: ReadIndexRequest(term=term, token=body.token, suspect=body.suspect),
    "read_index_response": lambda term, body: ReadIndexResponse(term=term, token=body.token, index=body.index, ok=body.ok, last=body.last),
    "copy_offer": lambda term, body: SnapshotOffer(term=term, first_available=body.first_available, last=_entry_id(body.upto)),
}
