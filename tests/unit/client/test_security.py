"""Who a client is: parameters of constructors and variables of the environment, what is refused, and that no secret shows."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dledger_client
import dledger_client.aio
from dledger_client import ConfigError, TlsSettings, TransactionState
from dledger_client.cluster.channels import MAX_REFUSALS, ask_in_turn
from dledger_client.cluster.leader_stream import PRODUCE_SILENCE, REFUSED_PAUSE_S, LeaderStream
from dledger_client.cluster.route_watch import RouteAnswers
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import RouteCache
from dledger_client.cluster.topic_lookup import may_not
from dledger_client.runtime.security import ENVIRONMENT, client_security, network_security, use_password, use_security
from dledger_wire._pb import routes_pb2
from dledger_wire.clock import SystemClock, system_random
from dledger_wire.errors import AuthenticationFailedError, DledgerError, InvalidArgumentError, PermissionDeniedError, UnreachableError
from dledger_wire.rpc import methods
from dledger_wire.security import credentials
from dledger_wire.security.certificates import issue, new_authority
from dledger_wire.security.credentials import PasswordCredentials
from dledger_wire.security.network_security import OPEN, NetworkSecurity
from dledger_wire.security.principal import node, user
from dledger_wire.security.tls import TlsContexts
from dledger_wire.tcp.network import TcpNetwork

NOWHERE, SECRET = "127.0.0.1:1", "n0t-to-be-shown"
CLIENTS: dict[str, tuple[Any, ...]] = {
    "Admin": (),
    "Consumer": ("billing",),
    "LogicalQueueReader": ("orders",),
    "LogicalQueueWriter": ("orders",),
    "Producer": (),
    "PullConsumer": (),
    "PushConsumer": ("billing",),
    "SimpleConsumer": ("billing",),
    "TransactionProducer": ("billing", lambda _: TransactionState.COMMIT),
}


OPENED_AT_ONCE = dledger_client, "LogicalQueueWriter"  # by its constructor, which needs a cluster


@pytest.fixture(autouse=True)
def nobody_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ENVIRONMENT.values():
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(scope="module")
def files(module_folder: Path) -> Path:
    """ca.crt, billing.crt with its key, and a password."""
    authority = new_authority("shop")
    authority.write(str(module_folder / "ca"))
    issue(authority, user("billing", "shop"), []).write(str(module_folder / "billing"))
    (module_folder / "password").touch(0o600)
    (module_folder / "password").write_text(f"{SECRET}\n", encoding="utf-8")
    return module_folder


def name_of(found: NetworkSecurity) -> str:
    """Of the user with a password; empty without one."""
    return found.credentials.user if isinstance(found.credentials, PasswordCredentials) else ""


def cert_of(found: NetworkSecurity) -> str:
    return os.path.basename(found.tls.settings.cert) if found.tls is not None else ""


@pytest.mark.parametrize("face", [dledger_client, dledger_client.aio], ids=lambda face: face.__name__)
@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_every_constructor_takes_who_the_client_is(face: Any, name: str, files: Path) -> None:
    if (face, name) != OPENED_AT_ONCE:
        made = getattr(face, name)(NOWHERE, *CLIENTS[name], user="billing", password=SECRET, tls=str(files / "ca.crt"))
        shown = [repr(made), repr(vars(made)), repr(vars(getattr(made, "_inner", made)))]
        assert not [text for text in shown if SECRET in text]
        if face is dledger_client and hasattr(made, "close"):
            made.close()
    with pytest.raises(ConfigError, match="expected either a password or a file with it"):
        getattr(face, name)(NOWHERE, *CLIENTS[name], user="billing")
    with pytest.raises(ConfigError, match="/no/ca: expected certificates of authorities: no such file"):
        getattr(face, name)(NOWHERE, *CLIENTS[name], tls="/no/ca")
    with pytest.raises(TypeError, match="usr"):
        getattr(face, name)(NOWHERE, *CLIENTS[name], usr="billing")


def test_every_client_is_tried_above() -> None:
    face: Any = dledger_client
    classes: dict[str, Any] = {name: getattr(face, name) for name in face.__all__ if name != "errors"}
    taken = {name: getattr(found.__init__, "__annotations__", {}) for name, found in classes.items() if isinstance(found, type)}
    assert {name for name, parameters in taken.items() if "bootstrap" in parameters} == set(CLIENTS)


def test_the_environment_stands_in_for_what_is_not_said(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert network_security({}) is OPEN
    values = {"user": "env", "password_file": str(files / "password"), "ca": str(files / "ca.crt")}
    for name, value in values.items():
        monkeypatch.setenv(ENVIRONMENT[name], value)
    found = network_security({})
    assert (name_of(found), found.tls is not None) == ("env", True)
    said = network_security({"user": "billing", "password": SECRET})
    assert (name_of(said), said.tls is not None) == ("billing", True)


def test_a_client_is_one_user(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate and a password of two users are never taken together from two places."""
    certificate = TlsSettings(str(files / "ca.crt"), str(files / "billing.crt"), str(files / "billing.key"))
    monkeypatch.setenv(ENVIRONMENT["user"], "env")
    monkeypatch.setenv(ENVIRONMENT["password_file"], str(files / "password"))
    said = network_security({"tls": certificate})
    assert (name_of(said), cert_of(said)) == ("", "billing.crt")
    for name in ("ca", "cert", "key"):
        monkeypatch.setenv(ENVIRONMENT[name], getattr(certificate, name))
    said = network_security({"user": "other", "password": SECRET})
    assert (name_of(said), cert_of(said)) == ("other", "")


def test_what_does_not_fit_together_is_refused(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="a password requires a user"):
        client_security(password=SECRET)
    with pytest.raises(ConfigError, match="a password requires a user"):
        client_security(password=SECRET, tls=files / "ca.crt")
    with pytest.raises(ConfigError, match="expected letters, digits") as failed:
        client_security(user="a b", password=SECRET)
    assert SECRET not in str(failed.value)
    monkeypatch.setenv(ENVIRONMENT["cert"], str(files / "billing.crt"))
    with pytest.raises(ConfigError, match="require DLEDGER_TLS_CA"):
        network_security({})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"user": 5}, "user 5: expected text"),
        ({"user": "u", "password": SECRET.encode()}, "password: expected text, not bytes"),
        ({"user": "u", "password_file": 5}, "password_file 5: expected the path of a file"),
        ({"tls": {}}, "tls {}: expected TlsSettings, or the path of a file with the authorities"),  # it was no TLS
        ({"tls": {"ca": "f"}}, "tls {'ca': 'f'}: expected TlsSettings, or the path of a file with the authorities"),
    ],
)
def test_values_of_wrong_types_are_named_and_no_secret_is(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        dledger_client.PullConsumer(NOWHERE, **settings)
    assert str(refused.value) == text


def test_a_file_with_a_password_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET, encoding="utf-8")
    file.chmod(0o604)
    with pytest.raises(ConfigError, match=r"can be read by others \(mode 0604\); expected mode 0600") as failed:
        client_security(user="billing", password_file=file)
    assert SECRET not in str(failed.value)


def test_what_a_tool_uses_counts_where_a_constructor_says_nothing() -> None:
    used = NetworkSecurity(None, PasswordCredentials("tool", password=SECRET))
    with use_security(used):
        assert network_security({}) is used
        assert name_of(network_security({"user": "billing", "password": SECRET})) == "billing"
    with use_password("typed", SECRET):
        assert name_of(network_security({})) == "typed"
    assert network_security({}) is OPEN


def test_connections_dialled_at_once_pay_for_one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash takes 32 MiB and most of the time of a handshake."""
    at_once, most, lock = 0, 0, threading.Lock()

    def hashed(_user: str, _password: str, _salt: bytes) -> str:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        entered.wait(0.01)
        with lock:
            at_once -= 1
        return "hash"

    entered = threading.Event()
    monkeypatch.setattr(credentials, "hashed_password", hashed)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: credentials._hashed_once("billing", SECRET, b"salt"), range(8)))
    assert most == 1


def test_a_password_that_two_nodes_refuse_is_not_tried_at_the_others() -> None:
    asked: list[str] = []

    async def ask(address: str) -> str:
        asked.append(address)
        raise UnreachableError("lost") if address == "n0" else AuthenticationFailedError("wrong name or password")

    async def run() -> list[DledgerError]:
        rest, problems = iter([f"n{number}" for number in range(9)]), list[DledgerError]()
        assert await ask_in_turn(lambda: next(rest, None), ask, problems) is None
        return problems

    problems = asyncio.run(run())
    assert len(asked) == 1 + MAX_REFUSALS
    assert isinstance(problems[-1], AuthenticationFailedError)


def test_who_is_refused_does_not_hammer_the_leader() -> None:
    """Streams in the background go on for as long as a client lives."""
    paused: list[float] = []

    class Cache:
        async def pause(self, _group: str, _term: int, seconds: float) -> None:
            paused.append(seconds)

    class Routes:
        clock, random, cache = SystemClock(), system_random(), Cache()

        def channel(self, _address: str) -> None: ...

    async def run() -> None:
        stream = LeaderStream(Routes(), "g0", methods.FETCH, PRODUCE_SILENCE)  # type: ignore[arg-type]
        for error in (UnreachableError("lost"), AuthenticationFailedError("wrong"), PermissionDeniedError("may not")):
            await stream.back_off(error)

    asyncio.run(run())
    assert paused[0] < REFUSED_PAUSE_S <= min(paused[1:])


def test_routes_tell_a_refusal_of_a_topic_that_may_not_be_seen() -> None:
    router = Router(NOWHERE, TcpNetwork(), SystemClock(), system_random())
    router.check_seen(["orders"])
    router.cache.set_unseen("salaries", "user bob")
    with pytest.raises(PermissionDeniedError, match="user bob may not read topic salaries"):
        router.check_seen(["orders", "salaries"])


def test_a_topic_that_may_not_be_seen_is_a_refusal_until_it_may() -> None:
    cache = RouteCache()
    answers = RouteAnswers(cache)
    hidden = routes_pb2.TopicRoute(name="salaries", version=1, unseen_by="user bob")
    answers.merge("a:1", routes_pb2.RoutesReply(topics=[hidden], complete=True))
    assert cache.unseen == {"salaries": "user bob"}
    answers.merge("a:1", routes_pb2.RoutesReply(topics=[routes_pb2.TopicRoute(name="salaries", version=2)], complete=True))
    assert cache.unseen == {}
    error = may_not("user bob", "write", "salaries")
    assert error.message == "user bob may not write topic salaries"
    assert error.details == {"user": "bob", "action": "write", "resource": "topic", "name": "salaries"}
    assert may_not("user bob", "read", "%RETRY%billing").message == "user bob may not read group billing"


@pytest.mark.parametrize("others", ["down", "as n0"])
def test_the_certificate_of_one_node_is_told_in_its_line(files: Path, tmp_path: Path, others: str) -> None:
    """The nodes beside it are listed too.  What all nodes show is a mistake of who asks, such as a file of other authorities."""
    issue(new_authority("another"), node("shop", "g0", "n0"), ["127.0.0.1"]).write(str(tmp_path / "n0"))
    accepting = TlsContexts(TlsSettings(str(files / "ca.crt"), str(tmp_path / "n0.crt"), str(tmp_path / "n0.key"))).server()

    async def scenario() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=accepting)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        nodes = {"g0": {"n0": address, "n1": NOWHERE if others == "down" else address}}
        async with server, dledger_client.aio.Admin(address, tls=files / "ca.crt") as admin:
            if others == "as n0":
                with pytest.raises(AuthenticationFailedError, match="its certificate is not trusted"):
                    await admin.cluster_status(nodes=nodes)
                return
            (group,) = await admin.cluster_status(nodes=nodes)
            said = {each.id: (each.reachable, each.error) for each in group.nodes}
            assert said["n0"] == (False, "its certificate is not trusted: unable to get local issuer certificate")
            assert said["n1"] == (False, "connection refused")

    asyncio.run(scenario())
