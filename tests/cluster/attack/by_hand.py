"""The wire protocol as an attacker speaks it: sockets, TLS, frames and SCRAM made by hand, without the product's client.

Owns the frames and the exchange as they are described, written a second time; a caller here may say what no client would say.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import hmac
import json
import os
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dledger_wire._pb import types_pb2

MESSAGE, END, ERROR, REQUEST, ANSWER, FAILURE, PART, CANCEL, AUTHENTICATION = range(1, 10)
CLOSED = 0
PATIENCE_S = 30.0


@dataclass(frozen=True)
class Said:
    """What came back: a frame, or that the connection was closed (kind 0)."""

    kind: int
    payload: bytes = b""

    @property
    def code(self) -> str:
        """The error's code; empty for an answer, CLOSED for a connection that was closed."""
        if self.kind == CLOSED:
            return "CLOSED"
        if self.kind not in (ERROR, FAILURE):
            return ""
        return str(self._detail.code)

    @property
    def text(self) -> str:
        return str(self._detail.message)

    @property
    def _detail(self) -> Any:
        return types_pb2.ErrorDetail.FromString(self.payload[4:] if self.kind == FAILURE else self.payload)


@dataclass(frozen=True)
class Identity:
    """What a caller shows: a certificate (path without its ending), or a user and a password; or nothing."""

    certificate: Path | None = None
    user: str = ""
    password: str = ""


NO_RECEIVER = Identity()


SEEN: set[str] = set()  # what the protocol used in place of passwords


@functools.cache
def hashed(user: str, password: str, salt: bytes) -> str:
    """What the protocol uses in place of a password."""
    digest = hashlib.sha256(password.encode()).digest()
    salt = b"dledger user " + user.encode() + b" " + salt
    key = hashlib.scrypt(digest, salt=salt, n=1 << 15, r=8, p=1, maxmem=64 << 20, dklen=32)
    SEEN.add(base64.b64encode(key).decode())
    return base64.b64encode(key).decode()


class Connection:
    """One connection to a node, with TLS unless ``ca`` is None."""

    def __init__(
        self,
        address: str,
        ca: Path | None,
        identity: Identity = NO_RECEIVER,
        *,
        newest: ssl.TLSVersion | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        host, port = address.rsplit(":", 1)
        self._identity = identity
        self.socket: socket.socket = socket.create_connection((host, int(port)), timeout=patience_s)
        self._received = b""
        if ca is not None:
            context = ssl.create_default_context(cafile=str(ca))
            if newest is not None:
                context.maximum_version = newest
            if identity.certificate is not None:
                context.load_cert_chain(f"{identity.certificate}.crt", f"{identity.certificate}.key")
            self.socket = context.wrap_socket(self.socket, server_hostname=host)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # -- bytes and frames

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, kind: int, payload: bytes) -> None:
        self.send(struct.pack(">BI", kind, len(payload)) + payload)

    def _exactly(self, size: int) -> bytes | None:
        while len(self._received) < size:
            try:
                data = self.socket.recv(1 << 16)
            except (ConnectionError, ssl.SSLError):
                return None
            if not data:
                return None
            self._received += data
        taken, self._received = self._received[:size], self._received[size:]
        return taken

    def read(self) -> Said:
        head = self._exactly(5)
        if head is None:
            return Said(CLOSED)
        kind, length = struct.unpack(">BI", head)
        payload = self._exactly(length)
        return Said(CLOSED) if payload is None else Said(kind, payload)

    # -- what a connection begins with

    def open(self, opening: dict[str, Any]) -> Said | None:
        """Say what the connection is for; what refused it, None when nothing has yet."""
        try:
            if not self._identity.user:
                self.send_opening(opening)
                return None
            user, password = self._identity.user, self._identity.password
            return self.authenticate(opening, user, lambda salt: hashed(user, password, salt))
        except (ConnectionError, ssl.SSLError):
            return Said(CLOSED)

    def send_opening(self, opening: dict[str, Any]) -> None:
        packed = json.dumps(opening).encode()
        self.send(b"DLTP" + struct.pack(">I", len(packed)) + packed)

    def authenticate(self, opening: dict[str, Any], name: str, secret_for: Callable[[bytes], str]) -> Said | None:
        """SCRAM-SHA-256 by hand (RFC 5802); None when both sides have proved what they know."""
        nonce = base64.b64encode(os.urandom(18)).decode()
        bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self.send_opening({**opening, "auth": {"mechanism": "SCRAM-SHA-256", "message": "n,," + bare}})
        first = self.read()
        if first.kind != AUTHENTICATION:
            return first
        challenge = first.payload.decode()
        fields = dict(part.split("=", 1) for part in challenge.split(","))
        salt = base64.b64decode(fields["s"])
        salted = hashlib.pbkdf2_hmac("sha256", secret_for(salt).encode(), salt, int(fields["i"]))
        without_proof = f"c=biws,r={fields['r']}"
        signed = f"{bare},{challenge},{without_proof}".encode()
        key = hmac.digest(salted, b"Client Key", "sha256")
        signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
        self.send_frame(AUTHENTICATION, f"{without_proof},p={proof}".encode())
        last = self.read()
        if last.kind != AUTHENTICATION:
            return last
        expected = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")
        assert last.payload.decode() == "v=" + base64.b64encode(expected).decode()
        return None

    # -- a call, a stream

    def call(self, path: str, request: bytes, number: int = 1) -> Said:
        """One unary call on a connection opened for calls."""
        method = path.encode()
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # what was said before the end may still be read
            self.send_frame(REQUEST, struct.pack(">II", number, len(request)) + bytes([len(method)]) + method + request)
        return self.read()


def call(address: str, ca: Path | None, identity: Identity, path: str, request: bytes) -> Said:
    """What one unary call brings."""
    try:
        with Connection(address, ca, identity) as connection:
            return connection.open({"calls": True}) or connection.call(path, request)
    except (ConnectionError, ssl.SSLError):
        return Said(CLOSED)


def stream(
    address: str, ca: Path | None, identity: Identity, path: str, *messages: bytes, metadata: dict[str, str] | None = None
) -> list[Said]:
    """What a stream with these messages brings, until the other side ends it."""
    try:
        with Connection(address, ca, identity) as connection:
            refused = connection.open({"method": path, "metadata": metadata or {}})
            if refused is not None:
                return [refused]
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                for message in messages:
                    connection.send_frame(MESSAGE, message)
                connection.send_frame(END, b"")
            found = []
            while (said := connection.read()).kind not in (CLOSED, END):
                found.append(said)
            return found or [said]
    except (ConnectionError, ssl.SSLError):
        return [Said(CLOSED)]
