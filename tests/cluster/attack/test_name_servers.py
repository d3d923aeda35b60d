"""Attacks on the two ports of a name server: that of its service, and that of the quorum."""

from __future__ import annotations

import contextlib
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dledger_client import Admin
from tests.cluster.attack import secured_cluster
from tests.cluster.attack.requests import declared
from tests.cluster.attack.secured_cluster import MALLORY, Secured
from tests.cluster.attack.test_attacks import is_closed, plain_socket
from tests.cluster.attack.test_every_rpc import REFUSALS, by_frames, is_refused, strangers
from tests.waiting import LIMIT_MS, wait_until

NAME_SERVER = "ns0"


class Evil:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.fixture(scope="module")
def served(module_folder: Path) -> Iterator[Secured]:
    """One node and two name servers, with TLS, users and a secret."""
    with secured_cluster.running(secured_cluster.make(module_folder / "named", nodes=1, name_servers=2)) as made:
        wait_until(lambda: knows_the_topics(made), "the name server knows the cluster")
        yield made


def address(served: Secured, *, quorum: bool = False) -> str:
    (found,) = [each for each in served.cluster.config.name_server_processes if each.id == NAME_SERVER]
    return str(found.quorum_address if quorum else found.address)


def knows_the_topics(served: Secured) -> bool:
    with Admin(address(served), timeout_ms=LIMIT_MS) as admin:
        return {"victims-orders", "trents-topic"} <= {each.topic for each in admin.list_topics()}


def resident_mb(served: Secured) -> float:
    return float(psutil.Process(served.cluster.processes[NAME_SERVER].pid).memory_info().rss) / (1 << 20)


def test_no_stranger_is_answered_by_any_rpc(served: Secured) -> None:
    let_in = []
    for who, identity in strangers(served).items():
        for path in declared():
            codes = {each.code for each in by_frames(served, address(served), identity, path)}
            if not codes <= REFUSALS | {"CLOSED"}:
                let_in.append(f"{path} {who}: {codes}")
    assert let_in == []


def test_a_user_without_rights_learns_no_name_and_registers_nobody(served: Secured) -> None:
    told = []
    for path in declared():
        for said in by_frames(served, address(served), MALLORY, path):
            if not (said.code and "not served here" in said.text) and not is_refused(path, said.code, said.payload):
                told.append(f"{path}: {said}")
    assert told == []
    assert knows_the_topics(served)


@pytest.mark.parametrize("quorum", [False, True], ids=["service", "quorum"])
def test_garbage_and_silence_are_closed_and_cost_nothing(served: Secured, tmp_path: Path, quorum: bool) -> None:
    before, target, trap = resident_mb(served), address(served, quorum=quorum), tmp_path / "trap"
    pickled = pickle.dumps(Evil(trap))
    begun = [b"", b"\x16\x03\x01\x02\x00", b"DLTP", b"PRI * HTTP/2.0\r\n", struct.pack("i", len(pickled)) + pickled, b"\xff" * 5000]
    begun += [struct.pack("i", 1 << 30), struct.pack(">I", 1 << 31) + b"x" * 1000]
    with contextlib.ExitStack() as stack:
        connections = []
        for number in range(160):
            connection = stack.enter_context(plain_socket(target))
            with contextlib.suppress(ConnectionError):
                connection.sendall(begun[number % len(begun)])
            connections.append(connection)
        wait_until(lambda: all(map(is_closed, connections)), "the name server closes what proves nothing", limit_s=60)
    assert not trap.exists()
    assert resident_mb(served) < before + 60
    assert knows_the_topics(served)
