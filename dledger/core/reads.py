"""Linearizable reads: a read index, confirmed by a majority, with no clock involved.

Owns pending reads.  The leader takes its commit index and confirms that it still leads, by heartbeats that carry a round number; responses
to that round or a later one count.  *Rounds are the leader's own counter*, so a response to an earlier request never confirms a later one,
whatever token its caller used (etcd #20418).  No read index is given before the term's first commit: until then the commit index of a
new leader may lag behind what was acknowledged.

The counter restarts when a node restarts.  A response to a heartbeat of an older term therefore carries no round: the receiver may lead
that term by then and count the same numbers again.

One round is open at a time; requests that arrive meanwhile share the next.  A follower forwards a read to the leader under a token
of its own.  Tokens start at a random number, so a response from before a restart matches no request.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.core.effects import ReadFailed, ReadReady
from dledger.core.messages import ReadIndexRequest, ReadIndexResponse
from dledger.core.quorum import quorum_value
from dledger.core.state import CoreState
from dledger.core.types import NodeId, Role

# In the answer to a leader of an older term: it carries the newer term, confirms nothing and does not show that the peer follows.
NO_ROUND = 0


@dataclass(slots=True)
class _Read:
    """The node that asked (None: this node) and its token."""

    token: int
    source: NodeId | None


class Reads:
    """Pending reads of one core, as leader and as follower."""

    def __init__(self, core: CoreState) -> None:
        self._core = core
        self.round = NO_ROUND + 1
        self._round_open = False
        self._round_index = 0
        self._in_round: list[_Read] = []
        self._waiting: list[_Read] = []
        self.forwarded: dict[int, tuple[int, int]] = {}  # our wire token -> (token, deadline)
        self._next_wire_token = core.random.getrandbits(62)

    # Asking

    def on_requested(self, token: int) -> None:
        core = self._core
        if core.role is Role.LEADER:
            self._add(_Read(token, None))
        elif core.leader is not None:
            wire_token = self.next_wire_token()
            self.forwarded[wire_token] = (token, core.now_ms + core.config.election_timeout_ms)
            core.send(core.leader, ReadIndexRequest(term=core.term, token=wire_token))
        else:
            core.emit(ReadFailed(token))

    def next_wire_token(self) -> int:
        """A token that no other question of this life bears, and hardly one of another."""
        self._next_wire_token += 1
        return self._next_wire_token

    def on_request(self, source: NodeId, message: ReadIndexRequest) -> None:
        """A peer passes on a read."""
        if self._core.role is Role.LEADER:
            if message.suspect:
                self._core.replication.on_peer_suspect(source)
            self._add(_Read(message.token, source))
        else:
            self.refuse(source, message.token)

    def refuse(self, to: NodeId, token: int) -> None:
        core = self._core
        core.send(to, ReadIndexResponse(term=core.term, token=token, index=0, ok=False))

    def on_response(self, message: ReadIndexResponse) -> None:
        asked = self.forwarded.pop(message.token, None)
        if asked is not None:
            self._core.emit(ReadReady(asked[0], message.index) if message.ok else ReadFailed(asked[0]))

    # Confirming

    def _add(self, read: _Read) -> None:
        self._waiting.append(read)
        self.start_round()

    def start_round(self) -> None:
        """Begin a round for everything that waits, unless one is open or nothing may be read yet."""
        core = self._core
        if self._round_open or not self._waiting or not core.confirmed:
            return
        self.round += 1
        self._round_open = True
        self._round_index = core.commit
        self._in_round, self._waiting = self._waiting, []
        core.replication.ask_voters()
        self.confirm()

    def confirm(self) -> None:
        """Answers came in, or the voters changed: close the round if a majority has answered it."""
        core = self._core
        if not self._round_open:
            return
        rounds = core.replication.voter_rounds(own=self.round)
        if quorum_value(rounds) < self.round:
            return
        self._round_open = False
        confirmed, self._in_round = self._in_round, []
        for read in confirmed:
            if read.source is None:
                core.emit(ReadReady(read.token, self._round_index))
            else:
                last = core.log.last.index
                core.send(read.source, ReadIndexResponse(term=core.term, token=read.token, index=self._round_index, ok=True, last=last))
        self.start_round()

    # Giving up

    def leadership_lost(self) -> None:
        failed = [*self._in_round, *self._waiting]
        self._in_round, self._waiting, self._round_open = [], [], False
        for read in failed:
            if read.source is None:
                self._core.emit(ReadFailed(read.token))
            else:
                self.refuse(read.source, read.token)

    def leader_changed(self) -> None:
        """The node that was asked no longer leads."""
        forwarded, self.forwarded = self.forwarded, {}
        for token, _deadline_ms in forwarded.values():
            self._core.emit(ReadFailed(token))

    @property
    def deadline_ms(self) -> int | None:
        """When the oldest forwarded read is given up."""
        for _token, deadline_ms in self.forwarded.values():
            return deadline_ms
        return None

    def on_tick(self) -> None:
        now_ms = self._core.now_ms
        while (deadline_ms := self.deadline_ms) is not None and deadline_ms <= now_ms:
            token, _deadline_ms = self.forwarded.pop(next(iter(self.forwarded)))
            self._core.emit(ReadFailed(token))
