"""Registration of members: a leader appends a configuration that adds the data folders of those it has heard from, and the addresses of
those that are elsewhere now.

Owns the timing: one heartbeat interval after the first response, so that one entry covers every member that responds by then, and again
while something prevents it (a change in flight, nothing committed yet in this term, a transfer).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from dledger.core.raft import Raft
from dledger.core.types import EntryId, Membership, Role
from dledger_wire.errors import DledgerError

_logger = logging.getLogger(__name__)


class MemberRegistration:
    """Of one replica.  ``moved``: the members that have another address than the configuration names, with that address."""

    def __init__(
        self,
        core: Raft,
        moved: Callable[[], dict[str, str]],
        offer: Callable[[Membership, Mapping[str, str]], asyncio.Future[EntryId]],
        delay_s: float,
    ) -> None:
        self._core = core
        self._moved = moved
        self._offer = offer
        self._delay_s = delay_s
        self._timer: asyncio.TimerHandle | None = None
        self._offered: asyncio.Future[EntryId] | None = None

    def schedule(self) -> None:
        """A node was met, or this node has become leader."""
        if self._timer is None and self._is_due():
            self._timer = asyncio.get_running_loop().call_later(self._delay_s, self._register)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def finished(self, timeout_s: float) -> None:
        """Wait until what was offered last is decided, so that a change of members does not find it in its way."""
        if self._offered is not None and not self._offered.done():
            await asyncio.wait([self._offered], timeout=timeout_s)

    def _is_due(self) -> bool:
        core = self._core
        return core.role is Role.LEADER and (core.with_known_stores(core.membership) != core.membership or bool(self._moved()))

    def _register(self) -> None:
        self._timer = None
        if not self._is_due():
            return
        moved = self._moved()
        try:
            self._offered = self._offer(self._core.membership, moved)
            self._offered.add_done_callback(lambda future: future.exception())  # a later leader registers them
        except DledgerError as error:
            _logger.debug("members not registered yet: %s", error.message)
            self.schedule()
            return
        for member, address in moved.items():
            _logger.info("%s is at %s now", member, address, extra={"event": "member_moved", "member": member, "address": address})
