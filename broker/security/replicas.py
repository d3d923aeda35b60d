"""Admission of replicas: nodes of the replica group, each under the name in its certificate, for as long as they are members.

Owns the check of the services Raft and Copy, before a byte of their messages is decoded.  Which nodes are members is written in the own
log.  A replica that was away may know an older configuration than the leader of today is in: a name that its own configuration does not
have is asked for at those members that it knows.  A spare node has a certificate without a replica group and counts as soon as it is a
member.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from dledger_wire._pb import broker_pb2, copy_pb2
from dledger_wire.errors import DledgerError, PermissionDeniedError
from dledger_wire.rpc import methods
from dledger_wire.rpc.delivery import Take
from dledger_wire.rpc.transport import ByteStream, CallContext, Network
from dledger_wire.security.principal import SPARE_GROUP, Kind, Principal

REPLICA_SERVICES = (methods.PACKAGE + "Raft/", methods.PACKAGE + "Copy/")
ASK_S = 1.0
REMEMBERED_S = 1.0  # what other members said
MAX_REMEMBERED = 100
MAX_LOGGED = 100

_logger = logging.getLogger(__name__)


class ReplicaCheck:
    """Of one node.  ``is_member``: whether its own log names a node, in the newest configuration or the one before that may still count;
    ``known_elsewhere``: whether other members name it."""

    def __init__(self, group: str, is_member: Callable[[str], bool], known_elsewhere: Callable[[str], Awaitable[bool]]) -> None:
        self._group, self._is_member, self._known_elsewhere = group, is_member, known_elsewhere
        self.refused = 0
        self._logged: set[str] = set()

    async def check(self, method: str, caller: CallContext, request: bytes | None) -> None:
        """PermissionDeniedError when the caller may not make this call."""
        principal = caller.principal
        if principal.kind is not Kind.NODE or principal.group not in (self._group, SPARE_GROUP):
            raise self._refusal(principal, f"{principal} is no node of replica group {self._group}")
        said = _name_in(method, caller, request) or principal.name
        if said != principal.name:
            raise self._refusal(principal, f"{principal} may not speak as node {said!r} of replica group {self._group}")
        if not self._is_member(principal.name) and not await self._known_elsewhere(principal.name):
            raise self._refusal(principal, f"{principal} is no member of replica group {self._group}")

    def bound(self, stream: ByteStream, caller: CallContext) -> ByteStream:
        """The stream as long as its caller is a member."""
        return _MemberStream(stream, caller.principal.name, self._is_member, lambda: self._removed(caller.principal))

    def _removed(self, principal: Principal) -> PermissionDeniedError:
        return self._refusal(principal, f"{principal} is no member of replica group {self._group} any more")

    def _refusal(self, principal: Principal, text: str) -> PermissionDeniedError:
        self.refused += 1
        if text not in self._logged and len(self._logged) < MAX_LOGGED:  # a node that is refused tries again twice a second
            self._logged.add(text)
            _logger.warning("refused: %s", text, extra={"event": "replica_refused"})
        return PermissionDeniedError(text, user=principal.name, action="replicate", resource="cluster", name=self._group)


def _name_in(method: str, caller: CallContext, request: bytes | None) -> str:
    """The name that the caller gives itself; a link names its node in metadata, a copy in its first request."""
    if method == methods.COPY_PLAN.path and request is not None:
        return methods.decode(copy_pb2.CopyPlanRequest, request).node_id
    return caller.metadata.get("dledger-node", "")


class _MemberStream:
    """Ends once its caller was a member and is none any more.  Implements ``ByteStream``."""

    def __init__(
        self, stream: ByteStream, name: str, is_member: Callable[[str], bool], removed: Callable[[], PermissionDeniedError]
    ) -> None:
        self._stream, self._name, self._is_member, self._removed = stream, name, is_member, removed
        self._was_member = is_member(name)

    async def read(self) -> bytes | None:
        message = await self._stream.read()
        self._check()
        return message

    async def receive(self, take: Take) -> bool:
        def checked(message: bytes) -> bool:
            self._check()
            return take(message)

        stopped = await self._stream.receive(checked)
        self._check()
        return stopped

    def _check(self) -> None:
        if self._is_member(self._name):
            self._was_member = True
        elif self._was_member:
            raise self._removed()

    async def write(self, message: bytes) -> None:
        if self._was_member and not self._is_member(self._name):
            raise self._removed()
        await self._stream.write(message)

    def write_now(self, message: bytes) -> bool:
        return not (self._was_member and not self._is_member(self._name)) and self._stream.write_now(message)

    async def close(self) -> None:
        await self._stream.close()


class OtherMembers:
    """Asks the members that this node knows (``addresses``) whether they name a node as one of the replica group."""

    def __init__(self, network: Network, group: str, addresses: Callable[[], Collection[str]]) -> None:
        self._network, self._group, self._addresses = network, group, addresses
        self._said: dict[str, tuple[float, bool]] = {}

    async def name(self, node_id: str) -> bool:
        """Whether one of them does; those that do not answer do not."""
        now_s = asyncio.get_running_loop().time()
        until_s, said = self._said.get(node_id, (0.0, False))
        if now_s >= until_s:
            said = any(await asyncio.gather(*(self._names(address, node_id) for address in self._addresses())))
            if len(self._said) >= MAX_REMEMBERED:
                self._said.clear()
            self._said[node_id] = now_s + REMEMBERED_S, said
        return said

    async def _names(self, address: str, node_id: str) -> bool:
        channel = self._network.connect(address)
        try:
            reply = await methods.METADATA.call(channel, broker_pb2.MetadataRequest(), timeout_s=ASK_S)
        except DledgerError:
            return False
        finally:
            await channel.close()
        return any(node.id == node_id for group in reply.groups if group.name == self._group for node in group.nodes)
