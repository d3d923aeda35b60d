"""The sockets of pages: a socket sends events only to a page of its own session.

The page library finds a page by the id in a message and asks for nothing else, so anyone with an id could click in that page.  Here
each message that names a page is compared with the session of its socket; a socket that fails is disconnected.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

from nicegui import Client, core

from dledger_console.web.sessions import SESSION, Session
from dledger_wire.printable import printable

FIRST = "handshake"  # makes the socket one of its page
LATER = ("event", "javascript_response", "ack")
USER_EVENT = "event"  # a click or a key; what a page answers by itself has other names

_logger = logging.getLogger(__name__)
_Handler = Callable[..., Any]


def protect_sockets() -> None:
    """Check every message that names a page.  Messages that are not known here are not taken."""
    handlers: dict[str, _Handler] = core.sio.handlers["/"]
    for name in set(handlers) - {"connect", "disconnect", FIRST, *LATER}:
        del handlers[name]
    handlers["connect"] = _checked_connect(handlers["connect"])
    for name in (FIRST, *LATER):
        handlers[name] = _checked(name, handlers[name])


def is_of_session(client_id: object, session: Session | None) -> bool:
    """Whether a page exists, and is one of this session, which has not ended."""
    client = Client.instances.get(client_id) if isinstance(client_id, str) else None
    if client is None or session is None or session.ended:
        return False
    return client.request.scope.get(SESSION) is session


def open_pages(session: Session) -> int:
    """How many pages of a session are held in memory."""
    return sum(client.request.scope.get(SESSION) is session for client in Client.instances.values())


def _checked_connect(handler: _Handler) -> _Handler:
    async def connect(sid: str, environ: dict[str, Any], auth: Any = None) -> None:
        query = parse_qs(environ.get("QUERY_STRING", ""))
        if "client_id" in query and not is_of_session(query["client_id"][0], environ["asgi.scope"].get(SESSION)):
            raise ConnectionRefusedError("not a page of this session")
        try:
            await handler(sid, environ, auth)
        except (LookupError, TypeError, ValueError):
            raise ConnectionRefusedError("not understood") from None

    return connect


def _checked(name: str, handler: _Handler) -> _Handler:
    async def checked(sid: str, message: Any = None, *_: Any) -> Any:
        session: Session | None = core.sio.get_environ(sid)["asgi.scope"].get(SESSION)
        client_id = message.get("client_id") if isinstance(message, dict) else None
        if not is_of_session(client_id, session) or (name != FIRST and client_id not in core.sio.rooms(sid)):
            await _end(sid, session, f"{name} for a page of another session, or of none")
            return False
        assert session is not None  # noqa: S101 - a page is never one of no session
        if name == USER_EVENT:
            session.use()
        try:
            result = handler(sid, message)
            return await result if isinstance(result, Awaitable) else result
        except (LookupError, TypeError, ValueError) as error:
            await _end(sid, session, f"{name} that was not understood: {type(error).__name__}")
            return False

    return checked


async def _end(sid: str, session: Session | None, why: str) -> None:
    # A page that has gone may still be answered by a browser that does not know it yet, so this is no warning.
    _logger.info("disconnected a socket of %s: %s", printable(session.user) if session and session.user else "anonymous", why)
    await core.sio.disconnect(sid)
