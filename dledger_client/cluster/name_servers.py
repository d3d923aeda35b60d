"""Which name server one client asks, and whether there is one that answers.

Owns the order: the last that answered, the name servers learned of, the client's configured addresses, then nodes, which name the name
servers.  One that did not answer, or is none, is left out for a while.  Nothing that a name server says is trusted for safety: leaders
check for themselves, so a wrong answer costs time only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dledger_client.cluster.channels import Channels, ask_in_turn
from dledger_client.cluster.routes import RouteCache
from dledger_wire._pb import routes_pb2
from dledger_wire.addresses import is_address
from dledger_wire.clock import Clock, Random
from dledger_wire.errors import DledgerError, NotReadyError, PermissionDeniedError, UnreachableError
from dledger_wire.rpc import methods
from dledger_wire.status import REMOVED

ASK_TIMEOUT_S = 1.0
POLL_MARGIN_S = 2.0  # how much later than promised the answer to a long poll may come
DOWN_MS = 1_000  # how long an address is left out that gave no answer
ELSEWHERE_MS = 60_000  # a node that named the name servers
MAX_NODES = 3  # nodes that are asked where the name servers are, beside the addresses the client was given


class NameServers:
    """The name servers, as one client sees them."""

    def __init__(self, channels: Channels, cache: RouteCache, bootstrap: Sequence[str], clock: Clock, random: Random) -> None:
        self._channels, self._cache, self._bootstrap = channels, cache, bootstrap
        self._clock, self._random = clock, random
        self.known: tuple[str, ...] = ()
        self.current = ""  # answered last
        self._left_out: dict[str, int] = {}  # address -> until when
        self._directory_version = 0
        self._directory: tuple[str, ...] = ()

    # The address to ask

    def _order(self) -> list[str]:
        known = [self.current, *self.known] if self.current else list(self.known)
        return list(dict.fromkeys([*known, *self._bootstrap, *self._cache.node_addresses()[:MAX_NODES]]))

    def _is_left_out(self, address: str) -> bool:
        return self._left_out.get(address, 0) > self._clock.monotonic_ms()

    def _leave_out(self, address: str, for_ms: int) -> None:
        self._left_out[address] = self._clock.monotonic_ms() + for_ms
        if self.current == address:
            self.current = ""

    def spread(self) -> None:
        """Choose any of the name servers for what follows, so that clients spread over them."""
        able = [address for address in self.known if not self._is_left_out(address)]
        if len(able) > 1:
            self.current = able[self._random.randrange(0, len(able))]

    # Asking

    async def routes(self, request: routes_pb2.RoutesRequest) -> tuple[str, routes_pb2.RoutesReply]:
        """What the first name server that answers says, and which one it is.  UnreachableError when there is none now."""
        asked: set[str] = set()
        problems: list[DledgerError] = []

        def next_address() -> str | None:
            for address in self._order():
                if address not in asked and not self._is_left_out(address):
                    asked.add(address)
                    return address
            return None

        found = await ask_in_turn(next_address, lambda address: self.routes_at(address, request), problems)
        if found is None:
            raise UnreachableError(f"no name server answers ({problems[-1] if problems else 'none was found a moment ago'})")
        return found

    async def poll(self, request: routes_pb2.RoutesRequest) -> routes_pb2.RoutesReply:
        """The answer of the current name server, which may wait as long as the request says.  UnreachableError when it is none any more."""
        if not self.current:
            raise UnreachableError("no name server is known")
        return await self.routes_at(self.current, request)

    async def routes_at(self, address: str, request: routes_pb2.RoutesRequest) -> routes_pb2.RoutesReply:
        """The answer of that name server, which is the current one from then on."""
        timeout_s = request.wait_ms / 1000 + (POLL_MARGIN_S if request.wait_ms else ASK_TIMEOUT_S)
        try:
            reply = await methods.ROUTES.call(self._channels.to(address), request, timeout_s=timeout_s)
        except DledgerError:
            self._leave_out(address, DOWN_MS)
            raise
        self._cache.cluster = reply.cluster or self._cache.cluster
        named = tuple(each for each in reply.name_servers if is_address(each))
        if named and named != self.known:
            self.known = named
        if not reply.is_name_server:
            self._leave_out(address, ELSEWHERE_MS)
            raise NotReadyError(f"{address} is a node without a name service; {', '.join(named) or 'no process'} has it")
        self._left_out.pop(address, None)
        self.current = address
        return reply

    async def replica_groups(self) -> tuple[str, ...]:
        """The names of all replica groups.  Raises what ``directory`` does."""
        reply = await self.directory(self._directory_version, names_only=True)
        if not reply.unchanged:
            self._directory_version = reply.version
            self._directory = tuple(sorted(group.name for group in reply.groups if group.state != REMOVED))
        return self._directory

    async def directory(self, known_version: int = 0, *, complete: bool = True, names_only: bool = False) -> routes_pb2.DirectoryReply:
        """Everything that the name server knows, unless that is still ``known_version``.  UnreachableError when none answers; if it is to
        be ``complete``, NotReadyError when a replica group has not registered yet, or has no majority."""
        if not self.current:
            await self.routes(routes_pb2.RoutesRequest())
        address, request = self.current, routes_pb2.DirectoryRequest(known_version=known_version, names_only=names_only)
        try:
            reply = await methods.DIRECTORY.call(self._channels.to(address), request, timeout_s=ASK_TIMEOUT_S)
        except DledgerError as error:
            if not isinstance(error, PermissionDeniedError):
                self._leave_out(address, DOWN_MS)
            raise
        if complete and not reply.complete:
            raise NotReadyError(f"{address}: not all replica groups have registered yet")
        return reply

    async def addresses(self) -> tuple[str, ...]:
        """Of all name servers, as the first one or the first node that answers returns them; the client's own list when none answers."""
        with contextlib.suppress(DledgerError):
            await self.routes(routes_pb2.RoutesRequest())
        return self.known or tuple(self._bootstrap)
