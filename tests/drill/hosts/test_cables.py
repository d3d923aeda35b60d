"""Links on loopback: each direction is cut by itself, whoever made the connection, and nothing is lost."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from dledger_drill.hosts.cables import Cables
from dledger_drill.hosts.machine import CountedLinks, LinkShape
from dledger_wire.errors import InvalidArgumentError
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.cluster

Connection = tuple[socket.socket, socket.socket]  # the dialling end, the end that listened


@contextlib.contextmanager
def dialled(cables: Cables, one: str, other: str, server: socket.socket) -> Iterator[Connection]:
    host, _, port = cables.address(one, other).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as near:
        far, _ = server.accept()
        with far:
            far.settimeout(LIMIT_S)
            yield near, far


def says(source: socket.socket, target: socket.socket) -> None:
    source.sendall(b"x")
    assert target.recv(10) == b"x"


def says_in_vain(source: socket.socket, target: socket.socket) -> None:
    source.sendall(b"y")
    target.settimeout(0.2)
    with pytest.raises(TimeoutError):
        target.recv(10)
    target.settimeout(LIMIT_S)


def test_each_direction_is_cut_by_itself() -> None:
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(socket.create_server(("127.0.0.1", 0))) for name in ("a", "b")}
        cables = Cables({name: f"127.0.0.1:{server.getsockname()[1]}" for name, server in servers.items()})
        stack.callback(cables.close)
        a_near, b_far = stack.enter_context(dialled(cables, "a", "b", servers["b"]))
        b_near, a_far = stack.enter_context(dialled(cables, "b", "a", servers["a"]))
        links: CountedLinks = cables
        links.cut("a", "b")
        says_in_vain(a_near, b_far)
        says_in_vain(a_far, b_near)
        says(b_far, a_near)
        says(b_near, a_far)
        assert (links.struck("a", "b"), links.struck("b", "a")) == (2, 0)
        links.heal()
        assert b_far.recv(10) == b"y"
        assert b_near.recv(10) == b"y"
        links.isolate("a", ["b"])
        says_in_vain(a_near, b_far)
        says_in_vain(b_near, a_far)


def test_what_takes_namespaces_is_refused() -> None:
    cables = Cables({"a": "127.0.0.1:1"})  # alone: it listens nowhere
    try:
        with pytest.raises(InvalidArgumentError, match="namespaces"):
            cables.shape("a", "b", LinkShape(loss=0.1))
        with pytest.raises(InvalidArgumentError, match="namespaces"):
            cables.cut("clients", "a")
    finally:
        cables.close()
