"""Logging in and out: two plain forms without a script.

Owns the page of the form, and when the cookie is set: a log in always gives a new one, a log out ends the session behind it.
"""

from __future__ import annotations

import asyncio
import logging
from html import escape
from pathlib import Path
from urllib.parse import parse_qs, quote

from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from dledger_console.settings import ConsoleSettings
from dledger_console.web.cookies import cookie_name, cookie_of, cookie_options
from dledger_console.web.gate import Gate
from dledger_wire.errors import AuthenticationFailedError, ConfigError, DledgerError
from dledger_wire.printable import printable
from dledger_wire.security.attempts import TooManyAttemptsError

MAX_FORM_BYTES = 8 << 10
MAX_USER = 127  # characters of a name
FORM_S = 10.0

_logger = logging.getLogger(__name__)

PAGE = Path(__file__).with_name("login.html").read_text(encoding="utf-8")


def register(app: FastAPI, settings: ConsoleSettings, gate: Gate) -> None:
    """Serve /login and /logout."""
    tls = settings.tls is not None

    async def form(request: Request) -> Response:
        if not await gate.wants_users() or gate.sessions.find(cookie_of(request.headers, tls=tls)) is not None:
            return RedirectResponse(_wanted(request), 303)
        return _page(request, "No node of the cluster answers now." if gate.is_unanswered else "")

    async def log_in(request: Request) -> Response:
        given = await _form(request)
        user, password = (given.get(name, "") for name in ("user", "password"))
        source = request.client.host if request.client is not None else ""
        try:
            if not user or not password or len(user) > MAX_USER:
                raise AuthenticationFailedError("expected a user and a password")
            secret = await gate.log_in(user, password, source)
        except (AuthenticationFailedError, ConfigError) as error:  # the latter: no user can have this name
            if error.details.get("reason") == TooManyAttemptsError.REASON:  # of the gate, or of a node, for all that log in by this console
                return _page(request, error.message, user, 429)
            _logger.warning("refused a login of %s from %s", printable(user), source)
            return _page(request, "No user of the cluster has this name and this password.", user, 401)
        except DledgerError as error:
            return _page(request, f"The cluster could not be asked: {printable(error.message)}", user, 503)
        _logger.info("%s logged in from %s", printable(user), source)
        await gate.sessions.close(cookie_of(request.headers, tls=tls))
        answer = RedirectResponse(_wanted(request), 303)
        answer.set_cookie(cookie_name(request.headers, tls=tls), secret, **cookie_options(tls=tls))
        return answer

    async def log_out(request: Request) -> Response:
        await gate.sessions.close(cookie_of(request.headers, tls=tls))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(cookie_name(request.headers, tls=tls), **cookie_options(tls=tls))
        return answer

    app.add_api_route("/login", form, methods=["GET"], include_in_schema=False)
    app.add_api_route("/login", log_in, methods=["POST"], include_in_schema=False)
    app.add_api_route("/logout", log_out, methods=["POST"], include_in_schema=False)


def _page(request: Request, error: str = "", user: str = "", status: int = 200) -> HTMLResponse:
    wanted = _wanted(request)
    query = "" if wanted == "/" else f"?next={quote(wanted, safe='')}"
    text = PAGE.format(error=escape(error), user=escape(printable(user)[:MAX_USER]), next=escape(query))
    return HTMLResponse(text, status, headers={"Cache-Control": "no-store"})


def _wanted(request: Request) -> str:
    """Where to go afterwards: a path of this console and nothing else."""
    wanted = request.query_params.get("next", "/")
    is_form = wanted.partition("?")[0] in ("/login", "/logout")
    plain = wanted.startswith("/") and not wanted.startswith("//") and not is_form and "\\" not in wanted
    return wanted if plain and wanted.isprintable() and len(wanted) <= 2_000 else "/"


async def _form(request: Request) -> dict[str, str]:
    """The fields of a small form; none when it is too large, comes too slowly or is no form."""
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_S):
            async for part in request.stream():
                body += part
                if len(body) > MAX_FORM_BYTES:
                    return {}
        fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=16)
    except (TimeoutError, ValueError):
        return {}
    return {name: values[0] for name, values in fields.items()}
