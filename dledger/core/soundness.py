"""Whether this replica still has every entry it acknowledged, and how it recovers that certainty after a power loss.

Under ASYNC_FLUSH an acknowledged entry may be in memory only, and a power loss takes it.  Elections rely on voters that hold what they
acknowledged, so a replica that lost power is *suspect*: its hard state is intact (always synced), its log may not be.  Its votes still keep
two leaders out of one term, but do not prove that a candidate has everything committed (``VoteTally``).  Its new acknowledgements count: it
holds those entries now.

It is sound again once it has committed everything that a leader had in its log when asked after the loss.  Every entry that was ever
committed with this replica's acknowledgement is among these: the leader sent them, or had them when it was elected.  The request carries a
token of this run, and the leader responds after a majority has confirmed it, as for a read.  A response for another leader or term
is ignored.

A configuration is on stable storage before it is acknowledged, so a suspect replica knows every committed one that was counted with it.
One that gave up its whole log (``Diverged``) knows the first one only, by which it may be a group of its own: it does not stand for
election until it is sound again.
"""

from __future__ import annotations

from dledger.core.effects import Sound
from dledger.core.messages import ReadIndexRequest, ReadIndexResponse
from dledger.core.saved import Saved
from dledger.core.state import CoreState
from dledger.core.types import NodeId


class Soundness:
    """Whether one core is suspect; normally it is not."""

    def __init__(self, core: CoreState, saved: Saved) -> None:
        self._core = core
        self.suspect = saved.suspect
        self.may_stand = not saved.discarded
        self._token = 0  # of the question under way; 0: none
        self._asked_ms = 0
        self._asked: tuple[int, NodeId | None] = (0, None)  # the term and the leader asked
        self._goal = 0  # the end of that leader's log; 0: not known

    def follow(self) -> None:
        """A leader was heard from."""
        core = self._core
        of = (core.term, core.leader)
        if of != self._asked:
            self._token = self._goal = 0
        if self._goal or core.leader is None:
            return
        if not self._token or core.now_ms - self._asked_ms >= core.config.election_timeout_ms:
            self._token, self._asked, self._asked_ms = core.reads.next_wire_token(), of, core.now_ms
            core.send(core.leader, ReadIndexRequest(term=core.term, token=self._token, suspect=True))

    def answered(self, source: NodeId, message: ReadIndexResponse) -> bool:
        """Whether ``message`` answers the question."""
        if not self._token or message.token != self._token:
            return False
        self._token = 0
        if message.ok and self._asked == (message.term, source):
            self._goal = message.last
            self.committed()
        return True

    def committed(self) -> None:
        """The commit index rose, or the end to reach became known."""
        core = self._core
        if self.suspect and self._goal and core.commit >= self._goal and self._asked == (core.term, core.leader):
            self.confirmed()

    def confirmed(self) -> None:
        """Everything required is here; a leader that has committed an entry of its own term confirms itself."""
        if self.suspect:
            self.suspect, self.may_stand = False, True
            self._core.emit(Sound())
