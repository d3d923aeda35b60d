"""``dledger-probe``: asks the metrics port of a process on this machine whether it lives, for health checks of containers.

Owns that this is cheap: it runs every few seconds beside each node, so it imports nothing but sockets, and TLS where the port speaks it.
"""

from __future__ import annotations

import os
import socket
import sys

ADDRESS_VARIABLE = "DLEDGER_PROBE"
DEFAULT_TARGET = "127.0.0.1:9464/livez"
TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 1 << 16
USAGE = f"""\
usage: dledger-probe [[https://]HOST:PORT[/PATH]]

Ask a metrics port whether its process lives (/livez), or with the path /readyz whether clients may be sent to it.  Exit 0 when the answer
is a success, else 1 with what failed.  Without an argument: ${ADDRESS_VARIABLE}, else {DEFAULT_TARGET}.  A port with TLS is found out; its
certificate is not checked, since nothing secret is sent or returned."""


class ProbeError(Exception):
    """No answer, or one that is none of HTTP."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``dledger-probe``."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) > 1 or any(each.startswith("-") for each in given):
        print(USAGE, file=sys.stdout if given in (["--help"], ["-h"]) else sys.stderr)
        sys.exit(0 if given in (["--help"], ["-h"]) else 2)
    target = given[0] if given else os.environ.get(ADDRESS_VARIABLE) or DEFAULT_TARGET
    try:
        status, text = probe(target)
    except (OSError, ValueError, ProbeError) as error:
        print(f"{target}: {error}", file=sys.stderr)
        sys.exit(1)
    if not 200 <= status < 400:
        print(f"{target}: {status}: {' '.join(text.split())}", file=sys.stderr)
        sys.exit(1)


def probe(target: str) -> tuple[int, str]:
    """Status and text of the answer.  OSError or ProbeError without one, ValueError when ``target`` is no address."""
    scheme, _, rest = target.rpartition("://")
    authority, slash, path = rest.partition("/")
    host, _, port = authority.rpartition(":")
    if scheme not in ("", "http", "https") or not host or not port.isdecimal():
        raise ValueError("expected HOST:PORT, HOST:PORT/PATH or https://HOST:PORT/PATH")
    address = (host.strip("[]"), int(port))
    request = f"GET {slash + path if slash else '/livez'} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n".encode()
    if scheme == "https":
        return _parsed(_ask(address, request, tls=True))
    try:
        return _parsed(_ask(address, request, tls=False))
    except (ProbeError, ConnectionResetError):
        if scheme == "http":
            raise
    return _parsed(_ask(address, request, tls=True))  # a port with TLS ends what does not begin with a handshake


def _ask(address: tuple[str, int], request: bytes, *, tls: bool) -> bytes:
    with socket.create_connection(address, timeout=TIMEOUT_S) as plain, _over_tls(plain) if tls else plain as connection:
        connection.sendall(request)
        answer = bytearray()
        while len(answer) < MAX_ANSWER_BYTES and (piece := connection.recv(MAX_ANSWER_BYTES)):
            answer += piece
    return bytes(answer)


def _over_tls(plain: socket.socket) -> socket.socket:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain, suppress_ragged_eofs=True)


def _parsed(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ProbeError("no answer in HTTP")
    return int(words[1]), body.decode("utf-8", "replace")


if __name__ == "__main__":
    main()
