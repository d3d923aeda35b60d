"""What a service manager is told, read from real datagram sockets: ready once clients may come, alive while the loop turns."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.process.service_manager import PATIENCE_S, Notice, NotifySocket, ServiceManager
from tests.waiting import until

STARTING, SERVES = Notice(ready=False, text="recovers"), Notice(ready=True, text="leader, term 3")
ALONE = Notice(ready=False, text="follower, term 3; no leader is known here")
MORE_TIME = {"EXTEND_TIMEOUT_USEC": "60000000"}


class Manager:
    """The other end: a bound socket, and a clock that stands until it is set."""

    def __init__(self, address: str) -> None:
        self.address, self.now_s = address, 100.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)

    def close(self) -> None:
        self._socket.close()

    def of_process(self, watchdog_s: float = 0.0) -> ServiceManager:
        return ServiceManager(NotifySocket(self.address), watchdog_s, lambda: self.now_s)

    def heard(self) -> list[dict[str, str]]:
        """Every datagram that came since the last call."""
        found: list[dict[str, str]] = []
        while True:
            try:
                lines = self._socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return found
            found.append(dict(line.split("=", 1) for line in lines))


@pytest.fixture(autouse=True)
def sockets_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process keeps its notify socket for as long as it runs; here it goes with each test."""
    opened: list[NotifySocket] = []
    make = NotifySocket.__init__

    def noted(self: NotifySocket, address: str) -> None:
        make(self, address)
        opened.append(self)

    monkeypatch.setattr(NotifySocket, "__init__", noted)
    yield
    for each in opened:
        each.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify") if request.param == "path" else f"@dledger-test-{os.getpid()}-{tmp_path.name}")
    yield made
    made.close()


def test_it_is_ready_once_clients_may_come_and_not_before(manager: Manager) -> None:
    process = manager.of_process()
    process.beat(lambda: STARTING)
    assert manager.heard() == [MORE_TIME | {"STATUS": "recovers"}]
    manager.now_s += 1_000.0
    process.beat(lambda: STARTING)
    assert manager.heard() == [MORE_TIME]  # a recovery takes as long as it takes
    process.beat(lambda: SERVES)  # it does not listen yet
    assert manager.heard() == [MORE_TIME | {"STATUS": "leader, term 3"}]
    process.listening()
    process.beat(lambda: SERVES)
    process.beat(lambda: SERVES)
    assert manager.heard() == [{"READY": "1"}]
    process.beat(lambda: ALONE)
    assert manager.heard() == [{"STATUS": ALONE.text}]  # ready is said once


def test_what_is_up_to_other_hosts_is_waited_for_a_while(manager: Manager) -> None:
    process = manager.of_process()
    process.listening()
    process.beat(lambda: ALONE)
    manager.now_s += PATIENCE_S - 0.1
    process.beat(lambda: ALONE)
    assert manager.heard() == [MORE_TIME | {"STATUS": ALONE.text}, MORE_TIME]
    manager.now_s += 0.2
    process.beat(lambda: ALONE)
    assert manager.heard() == [{"READY": "1"}]


def test_the_watchdog_hears_of_it_four_times_in_its_period_also_while_it_recovers(manager: Manager) -> None:
    process = manager.of_process(watchdog_s=40.0)
    beats = 0
    for _ in range(40):
        process.beat(lambda: STARTING)
        manager.now_s += 1.0
        beats += sum("WATCHDOG" in lines for lines in manager.heard())
    assert beats == 4


def test_after_a_signal_it_stops_and_is_not_ready_any_more(manager: Manager) -> None:
    process = manager.of_process(watchdog_s=0.1)
    process.listening()
    process.stopping("stops")
    process.beat(lambda: SERVES)
    first, second = manager.heard()
    assert first == {"STOPPING": "1", "STATUS": "stops"}
    assert second["WATCHDOG"] == "1"
    assert "READY" not in second


def test_what_the_manager_does_not_take_now_is_said_again(manager: Manager) -> None:
    process = manager.of_process()
    filling = NotifySocket(manager.address)
    with contextlib.suppress(BlockingIOError):
        while True:
            filling.send(STATUS="x")
    process.listening()
    process.beat(lambda: SERVES)
    assert all("READY" not in lines for lines in manager.heard())
    process.beat(lambda: SERVES)
    assert manager.heard() == [{"READY": "1", "STATUS": "leader, term 3"}]
    filling.close()


def test_a_line_of_status_is_one_line(manager: Manager) -> None:
    process = manager.of_process()
    process.beat(lambda: Notice(ready=False, text="two\nREADY=1"))
    assert manager.heard() == [MORE_TIME | {"STATUS": "two\\nREADY=1"}]


def test_beats_come_from_the_loop_that_serves(manager: Manager) -> None:
    async def scenario() -> None:
        process = ServiceManager(NotifySocket(manager.address), watchdog_s=0.04)
        process.listening()
        beats = 0

        def some() -> bool:
            nonlocal beats
            beats += sum("WATCHDOG" in lines for lines in manager.heard())
            return beats >= 5

        async with process.notifying(lambda: SERVES):
            await until(some)
            manager.heard()
            hangs_until_s = time.monotonic() + 0.3
            while time.monotonic() < hangs_until_s:
                pass
            assert manager.heard() == []

    asyncio.run(scenario())


def test_it_is_found_by_the_environment(manager: Manager) -> None:
    faulthandler_was_on = faulthandler.is_enabled()
    other = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid() + 1)}
    for variables, watched in (
        (other | {"WATCHDOG_PID": str(os.getpid())}, True),
        (other, False),
        ({"NOTIFY_SOCKET": manager.address}, False),
    ):
        process = ServiceManager.of_environment(variables)
        process.listening()
        process.beat(lambda: SERVES)
        (heard,) = manager.heard()
        assert heard["READY"] == "1"
        assert ("WATCHDOG" in heard) is watched
    if not faulthandler_was_on:
        faulthandler.disable()


def test_without_a_manager_nothing_is_said_and_a_wrong_one_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with ServiceManager.of_environment({}).notifying(lambda: SERVES):
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())
    ServiceManager.of_environment({}).stopping("stops")
    assert not caplog.records
    ServiceManager.of_environment({"NOTIFY_SOCKET": "vsock:2:1"}).beat(lambda: SERVES)
    nobody = ServiceManager.of_environment({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    nobody.beat(lambda: SERVES)
    nobody.beat(lambda: SERVES)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert {record.__dict__["event"] for record in caplog.records} == {"service_manager_not_notified"}
    assert "NOTIFY_SOCKET is 'vsock:2:1'; expected a path or @NAME" in caplog.text
