"""Guessing passwords over the network: a source that is wrong a hundred times a minute is slowed down, and locked out of nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.security import admission as admission_module
from broker.security.admission import ClusterAdmission
from dledger_wire.errors import AuthenticationFailedError
from dledger_wire.security import principal
from dledger_wire.security.attempts import AT_ONCE, HOLD_S, MAX_HELD, WINDOW_S
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
        self.held: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)
        monkeypatch.setattr(admission_module, "loop_s", lambda: self.now_s)
        verifiers = {name: secret_verifier(RIGHT) for name in ("alice", "bob")}
        self.admission = ClusterAdmission(
            "shop", administrators=verifiers, secret=SECRET, users_required=True, users=lambda: SecurityState()
        )
        self.audited: list[str] = []
        self.admission.on_refused = lambda _peer, error: self.audited.append(str(error.details.get("reason", "wrong")))

    def call_later(self, delay_s: float, call: Callable[..., None], *given: Any) -> None:
        """As of an event loop."""
        self.held.append((delay_s, lambda: call(*given)))

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
    assert {rig.connect("alice", RIGHT) for _ in range(20)} == {"alice"}


def test_after_a_hundred_wrong_ones_refusals_are_held_back_and_the_right_one_is_let_in(rig: Rig) -> None:
    for _ in range(AT_ONCE):
        assert rig.connect("alice", "wrong") == "alice: wrong name or password"
    for held in range(1, MAX_HELD + 1):
        assert rig.connect("alice", RIGHT) == "alice"
        assert rig.connect("alice", "wrong") == ""
        assert [delay_s for delay_s, _ in rig.held] == [HOLD_S] * held
    assert rig.connect("bob", RIGHT) == "bob"
    assert rig.connect("alice", RIGHT, host="10.0.0.2") == "alice"
    assert rig.connect("alice", "wrong") == "too many wrong passwords of alice from 10.0.0.1; try again in 1 s"
    rig.now_s += HOLD_S
    for _, refuse in rig.held:
        refuse()
    assert rig.connect("alice", RIGHT) == "alice"
    assert rig.audited == ["wrong"] * AT_ONCE + ["too_many_attempts"] + ["wrong"] * MAX_HELD
    rig.now_s += WINDOW_S
    assert rig.connect("alice", "wrong") == "alice: wrong name or password"


def test_a_name_that_is_not_known_is_refused_in_the_same_words(rig: Rig) -> None:
    found = [{rig.connect(name, "wrong").replace(name, "NAME") for _ in range(AT_ONCE + MAX_HELD)} for name in ("alice", "ghost")]
    assert found[0] == found[1]


def test_a_member_of_the_cluster_is_never_locked_out(rig: Rig) -> None:
    node = principal.node("shop", "g0", "n0").uri
    for _ in range(AT_ONCE + MAX_HELD):
        assert "wrong name or password" in rig.connect(node, "wrong")
    assert rig.connect(node, SECRET) == "n0"


def test_stock_grpc_clients_are_slowed_down_as_well(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    async def guess(count: int) -> list[bool]:
        return [await rig.admission.password_fits("10.0.0.1:7", "alice", "wrong") for _ in range(count)]

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert asyncio.run(guess(AT_ONCE + MAX_HELD)) == [False] * (AT_ONCE + MAX_HELD)
    assert slept == [0.0] * AT_ONCE + [HOLD_S] * MAX_HELD
    with pytest.raises(AuthenticationFailedError, match="too many wrong passwords of alice"):
        asyncio.run(guess(1))


def test_calls_that_begin_together_are_one_check(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.admission._administrators["carol"] = password_verifier("carol", RIGHT)

    async def together() -> list[bool]:
        return await asyncio.gather(*(rig.admission.password_fits("10.0.0.1:7", "carol", RIGHT) for _ in range(20)))

    assert all(asyncio.run(together()))
