"""The metrics port over real connections: paths, formats, passwords, probes of a process that hangs, and callers that hold it up."""

from __future__ import annotations

import asyncio
import base64
import gzip
import logging
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from broker.config.cluster_file import ClusterConfig
from broker.metrics import http_server, port
from broker.metrics.health import Check
from broker.metrics.port import Watched, metrics_port
from broker.metrics.samples import Samples
from broker.process.loop_watch import LoopWatch
from broker.security.access import CALLER_ADDRESS, AccessControl
from broker.security.admission import ClusterAdmission
from broker.security.setup import process_security
from dledger_cli.local.ports import free_ports
from dledger_wire.errors import AddressInUseError
from dledger_wire.security.certificates import KeyPair, issue, new_authority
from dledger_wire.security.limits import DEFAULT_LIMITS, Limits
from dledger_wire.security.network_security import OPEN, NetworkSecurity
from dledger_wire.security.principal import node
from dledger_wire.security.scram import password_verifier
from dledger_wire.tcp.arrivals import Arrivals
from store.commands.security import PutUser, User
from store.state.security import SecurityState
from store.state.state_machine import CommandContext, ReplicatedState
from tests.waiting import LIMIT_S

FILE = "cluster: c\ngroups: [{name: g0, nodes: [{id: n0, address: 127.0.0.1:10911}]}]\n"
USERS = "security: {cluster_secret_file: s, users: {}}\n"


@dataclass
class Told:
    """A process that is watched, as it is told to be."""

    checks: Sequence[Check] = (Check("open"),)
    failure: BaseException | None = None
    looks: int = 0

    async def samples(self) -> Samples:
        self.looks += 1
        samples = Samples("node", "g0", "n0")
        samples.add("raft_term", self.looks)
        return samples


@dataclass
class Served:
    """A port that answers."""

    told: Told
    url: str

    async def get(self, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
        return await asyncio.to_thread(self.get_here, path, headers)

    def get_here(self, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> tuple[int, bytes, dict[str, str]]:
        """On the thread of the caller."""
        request = urllib.request.Request(self.url + path, headers=headers or {}, method=method)  # noqa: S310 - an address of our own
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:  # noqa: S310
                return answer.status, answer.read(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(), dict(error.headers)

    def connect(self) -> socket.socket:
        host, _, number = self.url.removeprefix("http://").partition(":")
        return socket.create_connection((host, int(number)), LIMIT_S)


@asynccontextmanager
async def served(text: str = FILE, network: NetworkSecurity = OPEN, access: AccessControl | None = None) -> AsyncIterator[Served]:
    address, told, watch = f"127.0.0.1:{free_ports(1)[0]}", Told(), LoopWatch()
    arrivals = Arrivals(DEFAULT_LIMITS)
    watched = Watched(told, lambda: told.checks, lambda: told.failure, arrivals, access or AccessControl(None), watch)
    async with metrics_port(ClusterConfig.parse(text, "c.yaml"), address, network, watched):
        yield Served(told, f"http://{address}")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), LIMIT_S)

    asyncio.run(bounded())


def test_metrics_come_in_the_format_and_encoding_that_is_asked_for() -> None:
    async def scenario() -> None:
        async with served() as here:
            status, text, headers = await here.get("/metrics")
            assert (status, headers["Content-Type"].partition(";")[0]) == (200, "text/plain")
            assert b'dledger_raft_term{group="g0",node="n0"} 1.0' in text
            assert b"dledger_process_resident_memory_bytes" in text
            status, text, headers = await here.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
            assert headers["Content-Type"].startswith("application/openmetrics-text")
            assert text.endswith(b"# EOF\n")
            status, text, headers = await here.get("/metrics", **{"Accept-Encoding": "gzip"})
            assert headers["Content-Encoding"] == "gzip"
            assert b"dledger_raft_term" in gzip.decompress(text)
            assert (await here.get("/"))[0] == 404
            assert here.get_here("/metrics", method="POST")[0] == 405

    run(scenario)


def test_probes_say_which_check_failed() -> None:
    async def scenario() -> None:
        async with served() as here:
            assert (await here.get("/readyz"))[:2] == (200, b"ok\n")
            assert (await here.get("/readyz?verbose"))[1] == b"[+]loop ok\n[+]running ok\n[+]open ok\nok\n"
            here.told.checks = (Check("open"), Check("leader", "no leader is known here"))
            assert (await here.get("/readyz"))[:2] == (503, b"[-]leader failed: no leader is known here\nfailed\n")
            assert (await here.get("/livez"))[0] == 200
            here.told.failure = OSError("the disk is gone")
            assert (await here.get("/livez"))[:2] == (503, b"[-]running failed: stopped: the disk is gone\nfailed\n")

    run(scenario)


def test_a_certificate_of_another_node_is_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the port of the node: what probes and Prometheus dial keeps the one in use."""
    monkeypatch.setattr("dledger_wire.security.tls.LOOK_S", 0)
    authority = new_authority("c")
    (tmp_path / "ca.crt").write_bytes(authority.certificate)

    def put(name: str) -> KeyPair:
        pair = issue(authority, node("c", "g0", name), ["127.0.0.1"])
        for suffix, data in ((".key", pair.key), (".crt", pair.certificate)):
            (tmp_path / f"n0{suffix}").write_bytes(data)
            (tmp_path / f"n0{suffix}").chmod(0o600)
        return pair

    files = {name: str(tmp_path / file) for name, file in (("ca", "ca.crt"), ("cert", "n0.crt"), ("key", "n0.key"))}
    text = FILE + yaml.safe_dump({"security": {"tls": files}, "metrics": {"tls": True}})
    shown_by = ssl.create_default_context(cafile=files["ca"])

    def shown(here: Served) -> bytes:
        with here.connect() as plain, shown_by.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            return ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True) or b"").encode()

    async def scenario() -> None:
        first = put("n0")
        config = ClusterConfig.parse(text, str(tmp_path / "c.yaml"))
        network = process_security(config, node("c", "g0", "n0")).network
        async with served(text, network) as here:
            assert await asyncio.to_thread(shown, here) == first.certificate
            put("n1")
            assert await asyncio.to_thread(shown, here) == first.certificate
            newer = put("n0")
            assert await asyncio.to_thread(shown, here) == newer.certificate

    run(scenario)


def test_a_process_whose_loop_hangs_is_told_of_by_the_thread_of_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "ANSWER_S", 0.2)

    async def scenario() -> None:
        async with served() as here:
            # Called on this loop, so that it hangs as long as the answer takes.
            assert here.get_here("/livez")[0] == 200
            status, text, _ = here.get_here("/metrics")
            assert (status, text) == (503, b"the event loop did not answer within 0.2 s\n")
            assert b"[-]answer failed: the event loop did not answer" in here.get_here("/readyz")[1]
            monkeypatch.setattr("broker.metrics.health.LOOP_S", -1.0)
            status, text, _ = here.get_here("/livez")
            assert status == 503
            assert b"the event loop has not turned for" in text

    run(scenario)


def test_with_users_metrics_ask_for_one_who_may_describe_the_cluster() -> None:
    async def scenario() -> None:
        state = SecurityState()
        context = CommandContext(1, 1, 0, 0)
        made = ReplicatedState([state], []).apply(PutUser(user=User("nobody", password_verifier("nobody", "pw"))), context)
        assert made.error is None
        root = {"root": password_verifier("root", "right")}
        admission = ClusterAdmission("c", administrators=root, secret=None, users_required=True, users=lambda: state)
        refused: list[tuple[str, object]] = []
        admission.on_refused = lambda peer, error: refused.append((peer.partition(":")[0], error.details["reason"]))
        network, access = NetworkSecurity(admission=admission), AccessControl(lambda: state, ["root"])
        access.denied = lambda who, *_: refused.append((CALLER_ADDRESS.get().partition(":")[0], who.name))
        async with served(FILE + USERS, network, access) as here:
            for given, expected in ((None, 401), ("root:wrong", 401), ("root:right", 200), ("nobody:pw", 403), ("who:pw", 401)):
                headers = {} if given is None else {"Authorization": f"Basic {base64.b64encode(given.encode()).decode()}"}
                status, text, told = await here.get("/metrics", **headers)
                assert status == expected, text
                assert ("WWW-Authenticate" in told) == (expected == 401)
            assert here.told.looks == 1
            assert (await here.get("/metrics", Authorization="Bearer x"))[0] == 401
            assert {peer for peer, _ in refused} == {"127.0.0.1"}
            assert [why for _, why in refused] == ["no_credentials", "wrong_credentials", "nobody", "wrong_credentials", "no_credentials"]
            assert (await here.get("/readyz"))[0] == 200
        async with served(FILE + USERS + "metrics: {anonymous: true}\n", network, access) as here:
            assert (await here.get("/metrics"))[0] == 200

    run(scenario)


def test_callers_that_are_slow_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "LIMITS", Limits(reserve=0, handshake_s=0.5))

    async def scenario() -> None:
        async with served() as here:
            slow = [here.connect() for _ in range(3)]
            slow[0].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")  # and never the rest
            for each in slow:
                assert await asyncio.to_thread(_is_over, each)
                each.close()
            assert (await here.get("/livez"))[0] == 200

    run(scenario)


def test_a_probe_is_answered_while_others_hold_every_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_REQUESTS", 1)
    monkeypatch.setattr(http_server, "LIMITS", Limits(unknown=2, reserve=0, chance_s=0.0, handshake_s=10 * LIMIT_S))

    async def scenario() -> None:
        async with served() as here:
            first = here.connect()
            first.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")  # answered, and its body never comes
            assert await asyncio.to_thread(first.recv, 12) == b"HTTP/1.1 405"
            idle = [here.connect() for _ in range(2)]
            assert (await here.get("/livez"))[:2] == (200, b"ok\n")
            assert await asyncio.to_thread(_is_over, idle[0]), "of those without a request"
            while await asyncio.to_thread(first.recv, 4096):  # of those with one
                pass
            idle[1].setblocking(False)
            with pytest.raises(BlockingIOError):
                idle[1].recv(1)
            for each in (first, *idle):
                each.close()

    run(scenario)


@pytest.mark.parametrize("request_head", [b"GET /" + b"a" * 9000, b"GET /metrics HTTP/1.1\r\nContent-Length: x"])
def test_what_is_no_request_does_not_fill_the_log(request_head: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with served() as here:
            with here.connect() as connection:
                connection.sendall(request_head + b"\r\n\r\n")
                assert (await asyncio.to_thread(connection.recv, 100)).startswith(b"HTTP/1.0 400 ")
            assert (await here.get("/livez"))[0] == 200
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

    run(scenario)


def test_an_address_that_is_taken_is_named() -> None:
    async def scenario() -> None:
        async with served() as here:
            address = here.url.removeprefix("http://")
            told = cast(Any, Told())
            watched = Watched(told, list, lambda: None, Arrivals(DEFAULT_LIMITS), AccessControl(None), LoopWatch())
            with pytest.raises(AddressInUseError, match=f"metrics: {address}: cannot listen"):
                async with metrics_port(ClusterConfig.parse(FILE, "c.yaml"), address, OPEN, watched):
                    pass

    run(scenario)


def _is_over(connection: socket.socket) -> bool:
    """Once the other side ended it."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
