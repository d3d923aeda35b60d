"""Guessing passwords over the network: a source is wrong ten times a minute, then nothing of it is checked for that user."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.security import admission as admission_module
from broker.security.admission import ClusterAdmission
from dledger_wire.errors import AuthenticationFailedError
from dledger_wire.security import principal
from dledger_wire.security.attempts import OF_USER, WINDOW_S
from dledger_wire.security.scram import ClientExchange, password_verifier, secret_verifier
from dledger_wire.tcp.authentication import AcceptedAuthentication
from dledger_wire.tcp.connection import AUTHENTICATION, ERROR
from store.state.security import SecurityState

RIGHT, SECRET = "the right one", "s" * 32


class Connection:
    """What an accepted connection is for its authentication: the client on the other side answers at once."""

    def __init__(self, peer: str, client: ClientExchange) -> None:
        self.peer, self.client = peer, client
        self.receiver: Any = None
        self.refused = ""

    def put(self, kind: int, payload: bytes) -> None:
        assert kind in (AUTHENTICATION, ERROR)
        if not self.client.is_over and (answer := self.client.answer(payload.decode())):
            self.receiver.frame(AUTHENTICATION, answer.encode())

    def refuse(self, error: AuthenticationFailedError) -> None:
        self.refused = error.message

    def violate(self, text: str) -> None:
        raise AssertionError(text)


class Rig:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(admission_module, "_loop_s", lambda: self.now_s)
        verifiers = {name: secret_verifier(RIGHT) for name in ("alice", "bob")}
        self.admission = ClusterAdmission(
            "shop", administrators=verifiers, secret=SECRET, users_required=True, users=lambda: SecurityState()
        )
        self.audited: list[str] = []
        self.admission.on_refused = lambda _peer, error: self.audited.append(str(error.details.get("reason", "wrong")))

    def connect(self, user: str, secret: str, host: str = "10.0.0.1") -> str:
        """Who was let in, else why not."""
        came: list[principal.Principal] = []
        client = ClientExchange(user, lambda _salt: secret)
        connection = Connection(f"{host}:1234", client)
        said = {"mechanism": "SCRAM-SHA-256", "message": client.first()}
        AcceptedAuthentication(connection, self.admission, None, came.append).begin(said)  # type: ignore[arg-type]
        return came[0].name if came else connection.refused


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_the_right_password_is_let_in_as_often_as_it_comes(rig: Rig) -> None:
    assert {rig.connect("alice", RIGHT) for _ in range(5 * OF_USER)} == {"alice"}


def test_after_ten_wrong_ones_nothing_of_the_source_is_checked_for_a_minute(rig: Rig) -> None:
    for _ in range(OF_USER):
        assert rig.connect("alice", "wrong") == "alice: wrong name or password"
    refused = "too many wrong passwords of alice from 10.0.0.1; try again in 60 s"
    assert rig.connect("alice", "wrong") == refused
    assert rig.connect("alice", RIGHT) == refused
    assert rig.audited == ["wrong"] * OF_USER + ["too_many_attempts"] * 2
    assert rig.connect("bob", RIGHT) == "bob"
    assert rig.connect("alice", RIGHT, host="10.0.0.2") == "alice"
    rig.now_s += WINDOW_S
    assert rig.connect("alice", RIGHT) == "alice"


def test_a_name_that_is_not_known_is_refused_in_the_same_words(rig: Rig) -> None:
    found = [{rig.connect(name, "wrong").replace(name, "NAME") for _ in range(2 * OF_USER)} for name in ("alice", "ghost")]
    assert found[0] == found[1]


def test_a_member_of_the_cluster_is_never_locked_out(rig: Rig) -> None:
    node = principal.node("shop", "g0", "n0").uri
    for _ in range(2 * OF_USER):
        assert "wrong name or password" in rig.connect(node, "wrong")
    assert rig.connect(node, SECRET) == "n0"


def test_stock_grpc_clients_have_the_same_limit(rig: Rig) -> None:
    async def guess(count: int) -> list[bool]:
        return [await rig.admission.password_fits("10.0.0.1:7", "alice", "wrong") for _ in range(count)]

    assert asyncio.run(guess(OF_USER)) == [False] * OF_USER
    with pytest.raises(AuthenticationFailedError, match="too many wrong passwords of alice"):
        asyncio.run(guess(1))


def test_calls_that_begin_together_are_one_check(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.admission._administrators["carol"] = password_verifier("carol", RIGHT)

    async def together() -> list[bool]:
        return await asyncio.gather(*(rig.admission.password_fits("10.0.0.1:7", "carol", RIGHT) for _ in range(5 * OF_USER)))

    assert all(asyncio.run(together()))


def test_a_check_that_is_broken_off_counts_for_nothing(rig: Rig) -> None:
    """Its outcome was learned by nobody; a client with short deadlines must not lock itself out."""

    async def broken_off() -> None:
        for _ in range(3 * OF_USER):
            task = asyncio.ensure_future(rig.admission.password_fits("10.0.0.1:7", "alice", "wrong"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not await rig.admission.password_fits("10.0.0.1:7", "alice", "wrong")

    asyncio.run(broken_off())
