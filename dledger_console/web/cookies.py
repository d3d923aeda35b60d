"""The console's cookie: its name, and what a browser may do with it.

A browser sends the cookies of a host to all of its ports, so the name has the port: two consoles of one host do not overwrite each
other's.  With TLS the prefix ``__Host-`` makes browsers refuse such a cookie from plain HTTP and from neighbouring names.
"""

from __future__ import annotations

from typing import Any

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

NAME = "dledger_console"


def cookie_name(headers: Headers, *, tls: bool) -> str:
    """The name at the port that the browser asked for, which a forwarded port makes another one than the console's own."""
    port = headers.get("host", "").rpartition("]")[2].partition(":")[2]
    return f"{'__Host-' if tls else ''}{NAME}" + (f"_{port}" if port.isdecimal() and port.isascii() else "")


def cookie_of(headers: Headers, *, tls: bool) -> str:
    """The secret in the cookie; empty without one."""
    return cookie_parser(headers.get("cookie", "")).get(cookie_name(headers, tls=tls), "")


def cookie_options(*, tls: bool) -> dict[str, Any]:
    """Not readable by scripts, to no other host, of this browser's run only.

    Lax and not Strict, so that a link in an alert opens its page without another log in: a GET changes nothing, and forms and sockets
    of other sites are refused by their origin.
    """
    return {"path": "/", "httponly": True, "samesite": "lax", "secure": tls}
