"""apache.rocketmq.v2.MessagingService at a node: from calls to their handlers, and from errors to statuses.

Owns the table of methods, and that each request is answered with a status: a failure of gRPC itself is one of the connection to clients.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from google.protobuf.message import Message

from broker.remoting.leader import CALLER
from broker.rocketmq_grpc._pb.definition_pb2 import Code, Status
from broker.rocketmq_grpc.client import Client, client_of
from broker.rocketmq_grpc.statuses import StatusError, status, status_of
from broker.rocketmq_grpc.users import GrpcUsers, pack, unpack
from dledger_wire.errors import DledgerError, UnreachableError
from dledger_wire.rpc import methods
from dledger_wire.rpc.local import LocalCaller
from dledger_wire.rpc.transport import ByteStream, CallContext, Server

SERVICE = "/apache.rocketmq.v2.MessagingService/"

RequestT = TypeVar("RequestT", bound=Message)
Answer = TypeVar("Answer", bound=Message)
T = TypeVar("T")

_logger = logging.getLogger(__name__)


class MessagingService:
    """Registers handlers at the gRPC server of a port.  ``users``: of a cluster that has users."""

    def __init__(self, server: Server, users: GrpcUsers | None = None) -> None:
        self._server, self._users = server, users

    def unary(
        self,
        name: str,
        request: type[RequestT],
        answer: Callable[..., Answer],
        handler: Callable[[RequestT, Client], Awaitable[Answer]],
        *,
        led: bool = False,
    ) -> None:
        """Answer calls with ``handler``; ``led``: it calls services of the leader, which no other node may for a user."""

        async def handled(data: bytes, caller: CallContext) -> Answer:
            client, _ = await self._client(caller)
            return await handler(methods.decode(request, data), client)

        async def here(data: bytes, caller: CallContext) -> bytes:
            outcome = await _outcome(name, handled(data, caller))
            return methods.encode(answer(status=outcome) if isinstance(outcome, Status) else outcome)

        if self._users is None or not led:
            self._server.add_unary(SERVICE + name, here)
            return
        at_leader = self._users.led(name, here)

        async def passed_on(data: bytes, caller: CallContext) -> bytes:
            outcome = await _outcome(name, at_leader(data, caller))
            return methods.encode(answer(status=outcome)) if isinstance(outcome, Status) else outcome

        self._server.add_unary(SERVICE + name, passed_on)

    def refused(self, name: str, request: type[RequestT], answer: Callable[..., Answer]) -> None:
        """Answer calls by that there is nothing of the kind here."""

        async def not_here(_request: RequestT, _client: Client) -> Answer:
            raise StatusError(Code.NOT_IMPLEMENTED, f"{name} is not implemented")

        self.unary(name, request, answer, not_here)

    def stream(self, name: str, answer: Callable[..., Answer], handler: Callable[[ByteStream, Client], Awaitable[None]]) -> None:
        """Run ``handler`` for every stream."""

        async def handled(stream: ByteStream, caller: CallContext) -> None:
            client, secret = await self._client(caller)
            async with self._ending(caller, secret):
                await handler(stream, client)

        async def served(stream: ByteStream, caller: CallContext) -> None:
            outcome = await _outcome(name, handled(stream, caller))
            if outcome is not None:
                with contextlib.suppress(UnreachableError):  # it may have gone
                    await stream.write(methods.encode(answer(status=outcome)))

        self._server.add_stream(SERVICE + name, served)

    def answers(
        self,
        name: str,
        request: type[RequestT],
        answer: Callable[..., Answer],
        handler: Callable[[RequestT, Client], Awaitable[list[Answer]]],
        undo: Callable[[RequestT, list[Answer]], Awaitable[None]],
    ) -> None:
        """Answer calls, of services of the leader, with several answers each; ``undo`` them when the client has gone."""

        async def handled(data: bytes, caller: CallContext) -> list[Answer]:
            client, secret = await self._client(caller)
            async with self._ending(caller, secret):
                return await handler(methods.decode(request, data), client)

        async def here(data: bytes, caller: CallContext) -> list[Answer]:
            outcome = await _outcome(name, handled(data, caller))
            return [answer(status=outcome)] if isinstance(outcome, Status) else outcome

        async def packed(data: bytes, caller: CallContext) -> bytes:
            return pack([methods.encode(each) for each in await here(data, caller)])

        at_leader = self._users.led(name, packed, repeat=False) if self._users is not None else None

        async def written(stream: ByteStream, caller: CallContext) -> None:
            data = await stream.read()
            if data is None:
                return
            if at_leader is not None:
                for each in unpack(await at_leader(data, caller)):
                    await stream.write(each)
                return
            answers = await here(data, caller)
            try:
                for each_ in answers:
                    await stream.write(methods.encode(each_))
            except UnreachableError:
                await undo(methods.decode(request, data), answers)

        async def served(stream: ByteStream, caller: CallContext) -> None:
            outcome = await _outcome(name, written(stream, caller))
            if outcome is not None:
                with contextlib.suppress(UnreachableError):
                    await stream.write(methods.encode(answer(status=outcome)))

        self._server.add_stream(SERVICE + name, served)

    def _ending(self, caller: CallContext, secret: str) -> AbstractAsyncContextManager[None]:
        return self._users.ending(caller, secret) if self._users is not None else contextlib.nullcontext()

    async def _client(self, caller: CallContext) -> tuple[Client, str]:
        """Who calls, and the secret that the call is signed with; services are called for that one from here on."""
        client = client_of(caller)
        if self._users is not None:
            return client, await self._users.admit(caller)
        CALLER.set(LocalCaller(caller.peer))
        return client, ""


async def _outcome(name: str, work: Awaitable[T]) -> T | Status:
    """What a handler returns, or the status that its failure becomes."""
    try:
        return await work
    except StatusError as error:
        return error.status
    except DledgerError as error:
        return status_of(error)
    except Exception:
        _logger.exception("%s of a gRPC client failed", name, extra={"event": "handler_failed"})
        return status(Code.INTERNAL_SERVER_ERROR, "the request failed; the node's log says why")
