"""Authentication by SCRAM-SHA-256, both sides without I/O."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from dledger_wire.errors import AuthenticationFailedError, NotReadyError
from dledger_wire.security.scram import (
    ClientExchange,
    Decoys,
    ServerExchange,
    Verifier,
    hashed_password,
    password_verifier,
    secret_verifier,
)


def run(client: ClientExchange, server: ServerExchange) -> None:
    message = client.first()
    while not client.is_over:
        message = client.answer(server.answer(message))


def of(user: str, password: str) -> Callable[[bytes], str]:
    return lambda salt: hashed_password(user, password, salt)


def test_both_sides_know_each_other_after_the_exchange() -> None:
    verifier = password_verifier("alice", "wonderland")
    server = ServerExchange({"alice": verifier}.__getitem__)
    run(ClientExchange("alice", of("alice", "wonderland")), server)
    assert server.is_over
    assert server.name == "alice"


def test_the_messages_are_those_of_rfc_7677() -> None:
    """The example of the RFC, with its password as it stands there."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    from scramp import ScramMechanism

    _, stored, server_key, iterations = ScramMechanism("SCRAM-SHA-256").make_auth_info("pencil", 4096, salt)
    client = ClientExchange("user", lambda _salt: "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    server = ServerExchange(lambda _name: Verifier(salt, stored, server_key, iterations), nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = server.answer(client.first())
    assert first == "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = client.answer(first)
    assert final.endswith("p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert server.answer(final) == "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(("name", "secret"), [("alice", "wrong"), ("bob", "wonderland"), ("", "wonderland"), ("alice", "")])
def test_a_wrong_name_or_password_is_refused_in_the_same_words(name: str, secret: str) -> None:
    verifier, decoys = password_verifier("alice", "wonderland"), Decoys(b"k")
    server = ServerExchange(lambda asked: verifier if asked == "alice" else decoys.verifier(asked))
    client = ClientExchange(name or "nobody", of(name, secret))
    with pytest.raises(AuthenticationFailedError, match="wrong name or password"):
        run(client, server)


def test_a_password_is_hashed_differently_for_each_verifier() -> None:
    """Nobody can hash guesses before the salt is known, and two clusters have nothing in common."""
    one, two = (password_verifier("alice", "wonderland").salt for _ in range(2))
    assert one != two
    assert len({hashed_password(user, "wonderland", salt) for user in ("alice", "bob") for salt in (one, two)}) == 4


@pytest.mark.parametrize("salted", ["", "s=", "s==,", "s=a,", "s=\x00,", "s=?,"])
def test_a_challenge_without_a_salt_is_refused(salted: str) -> None:
    client = ClientExchange("alice", lambda _salt: "x", nonce="abc")
    with pytest.raises(AuthenticationFailedError):
        client.answer(f"r=abcdef,{salted}i=4096")


def test_an_unknown_name_gets_the_same_salt_each_time() -> None:
    decoys = Decoys(b"k")
    assert decoys.verifier("bob") == decoys.verifier("bob")
    assert decoys.verifier("bob").salt != decoys.verifier("carol").salt


def test_a_server_that_does_not_know_the_secret_is_refused_by_the_client() -> None:
    impostor = ServerExchange(lambda _name: secret_verifier("another secret of another cluster"))
    client = ClientExchange("alice", lambda _salt: "wonderland")
    message = impostor.answer(client.first())
    final = client.answer(message)
    with pytest.raises(AuthenticationFailedError):
        impostor.answer(final)
    with pytest.raises(AuthenticationFailedError, match="did not prove"):
        client.answer("v=" + base64.b64encode(bytes(32)).decode())


def test_a_recorded_exchange_is_worth_nothing() -> None:
    verifier = secret_verifier("s" * 32)
    client, server = ClientExchange("n0", lambda _salt: "s" * 32), ServerExchange(lambda _name: verifier)
    first = client.first()
    final = client.answer(server.answer(first))
    server.answer(final)
    again = ServerExchange(lambda _name: verifier)
    again.answer(first)
    with pytest.raises(AuthenticationFailedError):
        again.answer(final)


@pytest.mark.parametrize(
    "message", ["", "n", "n,,", "n,,n=alice", "n,,n=,r=x", "p=x,,n=alice,r=x", "n,,n=alice,r=\x00", "x" * 2000, "n,,n=a,r=b," + "=" * 900]
)
def test_what_is_no_message_of_scram_is_refused(message: str) -> None:
    server = ServerExchange(lambda _name: secret_verifier("s" * 32))
    with pytest.raises(AuthenticationFailedError):
        server.answer(message)
    with pytest.raises(AuthenticationFailedError):
        server.answer(ClientExchange("n0", lambda _salt: "s").first())


@pytest.mark.parametrize("iterations", ["10000000", "100001", "0", "4096x", ""])
def test_a_server_cannot_keep_a_client_busy(iterations: str) -> None:
    client = ClientExchange("alice", lambda _salt: "x", nonce="abc")
    client.first()
    with pytest.raises(AuthenticationFailedError):
        client.answer(f"r=abcdef,s={base64.b64encode(bytes(16)).decode()},i={iterations}")


def test_secrets_do_not_show() -> None:
    assert "Verifier(...)" in repr([secret_verifier("x" * 16)])


def test_who_cannot_be_looked_up_yet_is_not_called_unknown() -> None:
    def look_up(_name: str) -> Verifier:
        raise NotReadyError("the users of the cluster are not known here yet")

    with pytest.raises(NotReadyError, match="not known here yet"):
        ServerExchange(look_up).answer(ClientExchange("alice", lambda _salt: "secret").first())
