"""From requests to their handlers, and from errors to answers.

Owns the table of codes, and that each request is answered: a client closes its connection, with everything else on it, when one is not.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from broker.remoting.codes import Answer, answer_to
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from dledger_wire.errors import DledgerError

_logger = logging.getLogger(__name__)

Handler = Callable[[Command, RemotingConnection], Awaitable[Command]]
Handlers = Mapping[int, Handler]
Admit = Callable[[Command, RemotingConnection], Awaitable[None]]


class Dispatcher:
    """Answers requests with ``handlers``, by code, after ``admit`` has let them in."""

    def __init__(self, handlers: Handlers, admit: Admit | None = None) -> None:
        self._handlers, self._admit = handlers, admit

    async def serve(self, client: RemotingConnection, request: Command) -> Command:
        handler = self._handlers.get(request.code)
        if handler is None:
            return Command(Answer.REQUEST_CODE_NOT_SUPPORTED, remark=f"request code {request.code} is not supported")
        try:
            if self._admit is not None:
                await self._admit(request, client)
            return await handler(request, client)
        except DledgerError as error:
            return Command(answer_to(error), remark=error.message)
        except Exception:
            _logger.exception("request %d of %s failed", request.code, client.peer, extra={"event": "handler_failed"})
            return Command(Answer.SYSTEM_ERROR, remark="the request failed; the node's log says why")
