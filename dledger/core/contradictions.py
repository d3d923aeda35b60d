"""Validation of messages: what contradicts this core's state, and numbers that no group ever reaches.

Owns the checks that run before a message changes anything.  A message that fails is dropped and reported (``MessageRefused``), and the
driver closes the link it came on.  A faulty or malicious peer can neither stop this node nor corrupt its promises.  A rule that this core
itself breaks still stops the node (``require``).
"""

from __future__ import annotations

from dledger.core.messages import AppendRequest, AppendResponse, Heartbeat, Message, SnapshotOffer, VoteRequest
from dledger.core.state import CoreState
from dledger.core.types import MAX_INDEX, MAX_TERM, MAX_TERM_STEP, ZERO_ENTRY, EntryId, NodeId, Role

_OF_LEADER = (AppendRequest, Heartbeat, SnapshotOffer)


def contradiction(core: CoreState, source: NodeId, message: Message) -> str | None:
    """Why ``message`` cannot come from a correct peer; None when it may."""
    term = message.term
    if not 0 <= term <= MAX_TERM:
        return f"term {term}, expected at most {MAX_TERM}"
    if core.term and term > core.term + MAX_TERM_STEP:  # a new folder takes any term
        return f"term {term}, {term - core.term} ahead of this node's: expected at most {MAX_TERM_STEP}"
    entry = _named_entry(message)
    if entry.index > MAX_INDEX or entry.term > MAX_TERM:
        return f"an entry {entry}, which no log holds"
    if term == core.term and isinstance(message, _OF_LEADER):
        leader = core.node_id if core.role is Role.LEADER else core.leader
        if leader is not None and leader != source:
            return f"leads term {term}, which {leader} leads"
    if isinstance(message, AppendRequest) and term >= core.term:
        return _of_entries(core, message)
    if isinstance(message, SnapshotOffer) and message.last.term > term:
        return f"offers a snapshot up to {message.last} in term {term}"
    return None


def _named_entry(message: Message) -> EntryId:
    match message:
        case AppendRequest(prev=entry) | AppendResponse(match=entry) | VoteRequest(last=entry) | SnapshotOffer(last=entry):
            return entry
    return ZERO_ENTRY


def _of_entries(core: CoreState, message: AppendRequest) -> str | None:
    """The entries' terms, among themselves and against what is committed here."""
    index, before = message.prev.index, message.prev.term
    for entry in message.entries:
        if entry.term < before:
            return f"entry {index + 1} of term {entry.term} after one of term {before}"
        index, before = index + 1, entry.term
    if before > message.term:
        return f"entry {index} of term {before}, from a leader of term {message.term}"
    if index > MAX_INDEX:
        return f"an entry {index}, expected at most {MAX_INDEX}"
    clash = None if core.config.loses_unsynced else committed_clash(core, message)
    if clash is not None:
        return f"entry {clash} is committed here in term {core.log.term_at(clash)}, but it is another one there"
    return None


def contradicts_committed(core: CoreState, message: Message) -> bool:
    """Whether a leader of this term or a later one has another entry where this core has one committed."""
    return isinstance(message, AppendRequest) and message.term >= core.term and committed_clash(core, message) is not None


def committed_clash(core: CoreState, message: AppendRequest) -> int | None:
    """The first committed entry of this log in whose place the leader has another one."""
    log, first = core.log, message.prev.index
    if first > core.commit or first + len(message.entries) < log.before.index:
        return None
    terms = (message.prev.term, *(entry.term for entry in message.entries[: core.commit - first]))
    for index, term in enumerate(terms, first):
        if log.term_at(index) not in (None, term):
            return index
    return None
