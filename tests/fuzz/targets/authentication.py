"""Who somebody says to be: SCRAM on both sides, names of principals, certificates, Basic, and errors that a peer tells."""

from __future__ import annotations

import base64
import functools
import warnings

from google.protobuf.message import DecodeError

from dledger_wire._pb import types_pb2
from dledger_wire.errors import AuthenticationFailedError
from dledger_wire.rpc.error_detail import from_detail, to_detail
from dledger_wire.rpc.grpc_callers import _basic
from dledger_wire.security import principal
from dledger_wire.security.certificates import issue, new_authority, owner_of
from dledger_wire.security.scram import ClientExchange, Decoys, ServerExchange, Verifier, secret_verifier
from dledger_wire.tcp.connection import fresh
from tests.fuzz.target import Target

SECRET = "a secret of the cluster, drawn at random"
SERVER_NONCE = "server-nonce"
NAME = principal.node("shop", "g0", "n0").uri


@functools.cache
def _known() -> Verifier:
    return secret_verifier(SECRET)


def _verifier_of(name: str) -> Verifier:
    return _known() if name == NAME else Decoys(b"key").verifier(name)


def scram_server(data: bytes) -> None:
    """Two messages of a client, separated by a line; nobody gets in who does not know the secret."""
    exchange = ServerExchange(_verifier_of, nonce=SERVER_NONCE)
    for message in data.split(b"\n")[:3]:
        exchange.answer(message.decode(errors="surrogateescape"))
    if exchange.is_over:
        assert _proof(data) == _proof(_client_says()), "somebody got in by another proof"


def scram_client(data: bytes) -> None:
    """Two messages of a server."""
    exchange = ClientExchange(NAME, lambda _salt: SECRET, nonce="client-nonce")
    exchange.first()
    for message in data.split(b"\n")[:3]:
        exchange.answer(message.decode(errors="replace"))


def _proof(said: bytes) -> tuple[bytes, ...]:
    """The messages, with the proof decoded: Base64 has several ways to write it."""
    rest, _, proof = said.rpartition(b",p=")
    return (*rest.split(b"\n"), base64.b64decode(proof))


@functools.cache
def _client_says() -> bytes:
    client, server = ClientExchange(NAME, lambda _salt: SECRET, nonce="client-nonce"), ServerExchange(_verifier_of, nonce=SERVER_NONCE)
    first = client.first()
    final = client.answer(server.answer(first))
    return f"{first}\n{final}".encode()


@functools.cache
def _server_says() -> bytes:
    client, server = ClientExchange(NAME, lambda _salt: SECRET, nonce="client-nonce"), ServerExchange(_verifier_of, nonce=SERVER_NONCE)
    challenge = server.answer(client.first())
    return f"{challenge}\n{server.answer(client.answer(challenge))}".encode()


def names(data: bytes) -> None:
    found = principal.of_uri(data.decode(errors="surrogateescape"))
    if found is not None:
        assert principal.of_uri(found.uri) == found
        assert str(found).isprintable()


def certificate(data: bytes) -> None:
    """The DER of a certificate of a peer, as it stands in a file."""
    body = base64.encodebytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cryptography warns of what it still takes
        owner_of(b"-----BEGIN CERTIFICATE-----\n" + body + b"-----END CERTIFICATE-----\n", "peer.crt")


def basic(data: bytes) -> None:
    _basic(data.decode(errors="replace"))


def told_error(data: bytes) -> None:
    """An error as a peer tells it: it can be raised anew, shown, and told on."""
    error = fresh(from_detail(types_pb2.ErrorDetail.FromString(data)))
    assert to_detail(error).code == error.code
    str(error)
    error.detail_int("min_offset")


def _der() -> bytes:
    pem = issue(new_authority("shop"), principal.node("shop", "g0", "n0"), ["127.0.0.1"]).certificate
    return base64.b64decode(b"".join(pem.splitlines()[1:-1]))


TARGETS = [
    Target(
        "scram-server",
        scram_server,
        [_client_says()],
        [b"n,,n=", b",r=", b"c=biws", b",p=", b"\n", b"y,,", b"=2C", b"=3D", b"\xed\xa0\x80"],
    ),
    Target("scram-client", scram_client, [_server_says()], [b"r=", b",s=", b",i=4096", b"\n", b"v=", b"e=other-error"]),
    Target("principal", names, [NAME.encode()], [b"dledger://", b"/node/", b"/user/", b"/nameserver/", b"-", b"/"]),
    Target("certificate", certificate, [_der()], [b"dledger://shop/node/g0/n0", b"\x30\x82", b"\x86"]),
    Target("basic", basic, [b"Basic " + base64.b64encode(b"alice:wonderland")], [b"Basic ", b"="], (AuthenticationFailedError,)),
    Target(
        "told-error",
        told_error,
        [
            types_pb2.ErrorDetail(
                code="OFFSET_OUT_OF_RANGE", message="m", details={"min_offset": "3", "message": "m", "self": "s"}
            ).SerializeToString()
        ],
        [b"message", b"self", b"NOT_LEADER", b"\x1a", b"leader_address"],
        (DecodeError,),
    ),
]
