"""The checks before every page, and the headers of every answer.

Owns the order of the checks: host, origin, path, session.  A request that fails one never reaches a page or the socket of one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from urllib.parse import quote

import nicegui
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dledger_console.settings import ConsoleSettings
from dledger_console.web.cookies import cookie_of
from dledger_console.web.gate import Gate
from dledger_console.web.hosts import is_host_allowed, is_same_origin, own_names
from dledger_console.web.sessions import SESSION
from dledger_console.web.sockets import open_pages

SOCKET = "/_nicegui_ws/socket.io/"
OPEN_PATHS = ("/login", "/favicon.ico")
OPEN_FOLDERS = ("/static/", f"/_nicegui/{nicegui.__version__}/")  # files, the same for all users
LIBRARY = ("/_nicegui/", "/_nicegui_ws/")  # routes of the page library; what else is in them is not for browsers
NO_PAGES = ("/report",)
MAX_PAGES = 100  # of one session; each costs memory and asks the cluster
MAX_URL = 8 << 10
LAST_WORDS_S = 1.0  # a page whose session has ended gets that message before its socket is closed

# Scripts are the library's files and, by nonce, those of its page.  It compiles templates and runs what the server sends, hence
# 'unsafe-eval'; it writes styles into elements, hence 'unsafe-inline' for styles alone.
POLICY = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer a form of our own says that its origin is null
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """ASGI middleware around the whole console."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings, gate: Gate) -> None:
        self._app = app
        self._gate = gate
        self._names = frozenset(settings.host_names) | own_names() | {settings.host.lower()}
        self._tls = settings.tls is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request or socket, and hand it on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        # Nothing that a proxy may say of the path: it would be written into pages.
        scope["headers"] = [(name, value) for name, value in scope["headers"] if not name.startswith(b"x-forwarded")]
        headers = Headers(scope=scope)
        refused = self._refusal(scope, headers)
        if refused:
            await _refuse(scope, receive, send, 403, refused)
            return
        if len(scope["path"]) + len(scope["query_string"]) > MAX_URL:
            await _refuse(scope, receive, send, 414, "the address is too long")
            return
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send, headers)
        else:
            await self._request(scope, receive, send, headers)

    def _refusal(self, scope: Scope, headers: Headers) -> str:
        host = headers.get("host", "")
        if not is_host_allowed(host, self._names):
            return "this console is not known under that name; open it by its IP address, or start it with --host-name"
        origin = headers.get("origin")
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            # A link of another site may lead here; its pictures, scripts and frames may not.
            is_foreign = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
            return "a request of another site" if is_foreign and headers.get("sec-fetch-dest") != "document" else ""
        if origin is None:
            return "" if headers.get("sec-fetch-site") == "same-origin" else "a request without an origin"
        return "" if is_same_origin(origin, host) else "a request of another site"

    async def _socket(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        session = await self._gate.session(cookie_of(headers, tls=self._tls)) if scope["path"] == SOCKET else None
        if session is None:
            await _refuse(scope, receive, send, 401, "")
            return
        over = asyncio.create_task(session.over(), name="end of session")

        async def watched() -> Message:
            receiving = asyncio.ensure_future(receive())
            try:
                await asyncio.wait((receiving, over), return_when=asyncio.FIRST_COMPLETED)
                if not over.done():
                    return await receiving
            finally:
                receiving.cancel()
            await asyncio.sleep(LAST_WORDS_S)
            return {"type": "websocket.disconnect", "code": 1008}

        scope[SESSION] = session
        try:
            await self._app(scope, watched, send)
        finally:
            over.cancel()

    async def _request(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        path = str(scope["path"])
        nonce = secrets.token_urlsafe(16)
        answer = _Answer(send, nonce, tls=self._tls)
        if path in OPEN_PATHS or path.startswith(OPEN_FOLDERS):
            await self._app(scope, receive, answer)
        elif path.startswith(LIBRARY):  # its socket only as a WebSocket, whose origin is always sent
            await _refuse(scope, receive, answer, 404, "not found")
        else:
            session = await self._gate.session(cookie_of(headers, tls=self._tls))
            if session is None:
                await _to_login(scope, headers)(scope, receive, answer)
                return
            if scope["method"] == "GET" and path not in NO_PAGES and open_pages(session) >= MAX_PAGES:
                await _refuse(scope, receive, answer, 429, "too many pages are open; close some and try again in a minute")
                return
            session.use()
            scope[SESSION] = session
            await self._app(scope, receive, answer)


def _to_login(scope: Scope, headers: Headers) -> RedirectResponse | PlainTextResponse:
    if "text/html" not in headers.get("accept", ""):
        return PlainTextResponse("log in first\n", 401)
    query = scope["query_string"].decode("latin-1")
    wanted = scope["path"] + (f"?{query}" if query else "")
    return RedirectResponse("/login" if wanted == "/" else f"/login?next={quote(wanted, safe='')}", 303)


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
    else:
        await PlainTextResponse(f"{text}\n", status)(scope, receive, send)


class _Answer:
    """Puts the headers on an answer, and the nonce on the scripts of a page of the library, which comes in one piece."""

    def __init__(self, send: Send, nonce: str, *, tls: bool) -> None:
        self._send, self._nonce, self._tls = send, nonce, tls
        self._start: Message | None = None
        self._parts: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            for name, value in self._headers():
                headers.setdefault(name, value)  # a report has a policy of its own
            message["headers"] = headers.raw
            if "x-nicegui-content" in headers:
                self._start = message
                return
        elif self._start is not None:
            self._parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                await self._page()
            return
        await self._send(message)

    def _headers(self) -> Iterable[tuple[str, str]]:
        yield "Content-Security-Policy", POLICY.format(nonce=self._nonce)
        yield from HEADERS.items()
        if self._tls:
            yield "Strict-Transport-Security", "max-age=31536000"

    async def _page(self) -> None:
        # What comes from the cluster stands in a page with every "<" escaped, so each of these is the library's own.
        body = b"".join(self._parts).replace(b"<script", b'<script nonce="' + self._nonce.encode() + b'"')
        start, self._start = self._start, None
        assert start is not None  # noqa: S101 - the only caller saw it
        MutableHeaders(raw=start["headers"])["content-length"] = str(len(body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})
