"""What an operator watches a running cluster with: ``status --check``, ``--watch`` and ``--until``, and ``top``; one cluster."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from fcntl import ioctl
from struct import pack

import pytest

from dledger_client import Admin
from tests.cluster.harness import ROOT, Cluster
from tests.waiting import wait_until


class Watching:
    """A command of ours that runs until it is ended; in a terminal of its own, or with a pipe."""

    def __init__(self, cluster: Cluster, *arguments: str, size: tuple[int, int] | None = None) -> None:
        environment = os.environ | {"DLEDGER_CONFIG": str(cluster.local.file), "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
        for name in ("NO_COLOR", "COLUMNS", "LINES"):  # they count for more than the terminal
            environment.pop(name, None)
        self._text = b""
        self._reader, writer = pty.openpty() if size else os.pipe()
        if size:
            ioctl(writer, termios.TIOCSWINSZ, pack("HHHH", size[1], size[0], 0, 0))
        standard_input = writer if size else subprocess.DEVNULL
        command = [sys.executable, "-P", "-m", "dledger_cli", *arguments]
        self._process = subprocess.Popen(
            command, stdin=standard_input, stdout=writer, stderr=writer, env=environment, start_new_session=True
        )
        # A terminal that nobody has open forgets its modes.
        self._terminal = writer if size else -1
        if not size:
            os.close(writer)

    def shows(self, pattern: str) -> str:
        """Wait until what came contains the pattern; all of it, from here on."""
        wait_until(lambda: self._read() and re.search(pattern, self.text), lambda: f"{pattern!r} in {self.text[-3000:]!r}")
        return self.text

    @property
    def text(self) -> str:
        return self._text.decode(errors="replace")

    def forget(self) -> None:
        """What came so far."""
        self._read()
        self._text = b""

    def type(self, keys: bytes) -> None:
        os.write(self._reader, keys)

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        self._process.send_signal(signal.SIGINT)
        return self.ended()

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed, and waits for the end of a line."""
        modes = termios.tcgetattr(self._terminal)[3]
        return bool(modes & termios.ECHO) and bool(modes & termios.ICANON)

    def ended(self) -> int:
        wait_until(lambda: self._read() and self._process.poll() is not None, "the command ended")
        self._read()
        return self._process.wait()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        os.close(self._reader)
        if self._terminal >= 0:
            os.close(self._terminal)

    def _read(self) -> bool:
        with contextlib.suppress(OSError):  # the end of a terminal
            while select.select([self._reader], [], [], 0)[0] and (data := os.read(self._reader, 1 << 16)):
                self._text += data
        return True


@pytest.fixture
def watching(cluster: Cluster) -> Iterator[Callable[..., Watching]]:
    """Makes ``Watching`` of the cluster; all are ended at the end."""
    made: list[Watching] = []

    def make(*arguments: str, size: tuple[int, int] | None = None) -> Watching:
        made.append(Watching(cluster, *arguments, size=size))
        return made[-1]

    yield make
    for each in made:
        each.close()


CHECKS = "no-leader,no-writes,under-replicated,lag=10000,damage,clock"  # not the disk: that of the machine may be full


def test_checks_pages_and_top_through_a_failover(cluster: Cluster, watching: Callable[..., Watching]) -> None:
    cluster.cli_ok("topic", "create", "orders", "--queues", "2")
    cluster.produce("orders", [b"order"] * 20)
    cluster.consume("orders", 5, "--group", "audit")

    with Admin(cluster.bootstrap) as admin:
        assert admin.node_details(cluster.leader()).connections["known"] >= 2, "its followers at least"
    _check_well(cluster)
    _check_once(cluster)
    piped = watching("topic", "list", "--watch", "1")
    stream = watching("top", "--json", "--interval", "1")
    pages = watching("group", "describe", "audit", "--watch", size=(100, 30))
    wide, narrow = (watching("top", "--interval", "1", size=size) for size in ((200, 40), (80, 24)))
    piped.shows(r"(?s)TOPIC .*\norders .*\n\nTOPIC .*\norders ")
    pages.shows("every 2 s .* Ctrl-C ends")
    for screen in (wide, narrow):
        screen.shows("3 of 3 nodes up")
        screen.shows("audit .*orders")
    wide.shows("BYTES-OUT/S")  # gives way while a note is long
    assert "BYTES-OUT/S" not in narrow.text

    old = cluster.leader()
    cluster.kill(old)
    for screen in (wide, narrow):
        screen.shows("unreachable: connection ")
        screen.shows(rf"{old} -> n\d")
    new = cluster.leader()
    found = cluster.cli("status", "--check", CHECKS)
    lines = found.stdout.splitlines()
    assert found.returncode == 1
    assert any(line.startswith(f"under-replicated: g0/{old}: a member that does not answer") for line in lines)
    assert all(re.match(r"(unreachable|under-replicated|lag): g0", line) for line in lines)
    critical = cluster.cli("status", "--check", f"quorum-critical={new}", "--json")
    (told,) = json.loads(critical.stdout)["findings"]
    assert (critical.returncode, told["node"], told["text"].startswith("must not stop")) == (1, new, True)
    late = cluster.cli("status", "--until", "healthy", "--timeout", "1")
    assert (late.returncode, late.stderr.startswith("dledger: not healthy after 1 s: 1 group, 2 of 3")) == (1, True)
    until = watching("status", "--watch", "0.5", "--until", "healthy", "--timeout", "200")
    until.shows("losing one more stops writes")
    checked = watching("status", "--check", CHECKS, "--until", "healthy", "--timeout", "200")

    cluster.start(old)
    assert (until.ended(), checked.ended()) == (0, 0)
    assert until.text.splitlines()[-1].endswith("3 of 3 nodes up, quorum ok (writes go on when one more node fails)")
    wide.forget()
    wide.shows("3 of 3 nodes up")
    _check_documents(stream, old)
    _check_ends(wide, narrow, pages, piped)


def _check_documents(stream: Watching, old: str) -> None:
    stream.shows(rf'"old": "{old}"')
    assert stream.interrupt() == 130
    documents = [json.loads(line) for line in stream.text.splitlines() if line.endswith("}")]
    assert documents[0]["groups"][0]["rates"]["messages_in"] is None
    assert documents[1]["groups"][0]["rates"]["messages_in"] is not None
    assert old in [change["old"] for change in documents[-1]["changes"]]  # a busy machine may have elected anew since
    assert {row["name"]: row["lag"] for row in documents[-1]["consumers"]} == {"audit": 15}


def _check_ends(wide: Watching, narrow: Watching, pages: Watching, piped: Watching) -> None:
    """Keys, Ctrl-C and SIGTERM end a view, and the terminal is as before."""
    narrow.type(b"l")
    narrow.shows("by lag")
    narrow.type(b"q")
    assert narrow.ended() == 0
    assert wide.interrupt() == 130
    for screen in (wide, narrow):
        assert screen.echoes()
        assert screen.text.endswith("\x1b[?25h\x1b[?1049l")
    assert pages.interrupt() == 130
    assert "TOTAL" in pages.text.rpartition("\x1b[?1049l")[2]  # the newest page stays
    assert piped.interrupt() == 130


def _check_once(cluster: Cluster) -> None:
    """Without a terminal."""
    text = cluster.cli_ok("top", "--interval", "0.2")
    assert re.search(r"(?m)^g0 +n\d +\d+ +3/3 ", text)
    assert len(re.findall(r"(?m)^g0 +n\d +(leader|follower) ", text)) == 3
    assert re.search(r"(?m)^audit +0 +15 +0 +\+0 +orders$", text)
    told = json.loads(cluster.cli_ok("top", "--once", "--json"))
    assert (told["healthy"], [node["id"] for node in told["groups"][0]["nodes"]]) == (True, ["n0", "n1", "n2"])
    assert told["groups"][0]["rates"]["messages_in"] == 0.0
    assert cluster.cli("top", "--sort", "size").returncode == 2


def _check_well(cluster: Cluster) -> None:
    """Checks that find nothing, and one that is none."""
    well = cluster.cli("status", "--check", CHECKS)
    assert (well.returncode, well.stdout) == (0, ""), well
    assert well.stderr.startswith("no findings: no-leader")
    assert cluster.cli("status", "--check", "quorum-critical=n1").returncode == 0
    wrong = cluster.cli("status", "--check", "no-leadr")
    assert (wrong.returncode, "no check 'no-leadr'" in wrong.stderr) == (2, True)
